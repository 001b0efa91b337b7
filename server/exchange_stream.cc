#include "server/exchange_stream.h"

#include <atomic>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "proto/wire/codec.h"
#include "proto/wire/overtake.h"
#include "server/clock.h"

namespace gradwire::server {
namespace {

// What a queued frame costs besides its bytes.
constexpr std::size_t kFrameOverhead = 256;
// A small payload with its header. Larger frames are work: their digests are computed.
constexpr std::size_t kSmallFrame = wire::kSmallPayload + 1024;

std::uint64_t NextId() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

}  // namespace

ExchangeStream::ExchangeStream(const StreamLimits& limits, std::shared_ptr<Registry> registry,
                               std::shared_ptr<TickList> ticks)
    : id_(NextId()),
      limits_(limits),
      registry_(std::move(registry)),
      ticks_(std::move(ticks)),
      opened_(MonotonicNow()) {}

void ExchangeStream::OnStart() {
  SendInitialMetadata();
  StartRead();
  ticks_->Add(Self<ExchangeStream>());  // last: the ticker may end it
}

void ExchangeStream::Queue(grpc::ByteBuffer frame, const wire::Weight& weight) {
  MutexLock lock(mutex_);
  if (end_) return;
  const std::size_t bytes = frame.Length() + kFrameOverhead;
  if (queued_bytes_ + bytes > limits_.max_queued_bytes) {
    queue_.clear();
    queued_bytes_ = 0;
    EndLocked(absl::ResourceExhaustedError(absl::StrCat(
        "the member does not read: more than ", limits_.max_queued_bytes, " bytes wait for it")));
    end_deadline_ = absl::InfinitePast();
    return;
  }
  queued_bytes_ += bytes;
  const auto at =
      queue_.insert(wire::PlaceFor(queue_, weight, [](const Waiting& one) { return one.weight; }),
                    Waiting{.bytes = grpc::ByteBuffer(), .weight = weight});
  at->bytes.Swap(&frame);  // a move would copy
}

void ExchangeStream::EndAfterQueue(const absl::Status& status) {
  MutexLock lock(mutex_);
  EndLocked(status);
}

void ExchangeStream::EndLocked(const absl::Status& status) {
  if (end_) return;
  end_ = status;
  end_deadline_ = MonotonicNow() + limits_.close_timeout;
}

void ExchangeStream::End(const absl::Status& status) {
  EndAfterQueue(status);
  Pump();
}

void ExchangeStream::Pump() {
  grpc::ByteBuffer frame;
  std::optional<absl::Status> end;
  {
    MutexLock lock(mutex_);
    if (writing_) return;
    if (!queue_.empty()) {
      frame.Swap(&queue_.front().bytes);
      queue_.pop_front();
      queued_bytes_ -= frame.Length() + kFrameOverhead;
      writing_ = true;
    } else if (end_) {
      end = end_;
    } else {
      return;
    }
  }
  if (end) return Finish(*end);
  // The bytes are copied into the socket.
  if (frame.Length() > kSmallFrame) RpcThreads::HandOver();
  StartWrite(frame);
}

bool ExchangeStream::idle() const {
  MutexLock lock(mutex_);
  return !writing_ && queue_.empty();
}

bool ExchangeStream::shares_memory() const {
  MutexLock lock(mutex_);
  return place_ && place_->memory != nullptr;
}

bool ExchangeStream::ending() const {
  MutexLock lock(mutex_);
  return end_.has_value();
}

std::optional<ExchangeStream::Place> ExchangeStream::place() const {
  MutexLock lock(mutex_);
  return place_;
}

void ExchangeStream::OnTick(absl::Time now) {
  bool late = false;
  bool silent = false;
  {
    MutexLock lock(mutex_);
    late = end_ && now > end_deadline_;
    silent = !end_ && !place_ && now > opened_ + limits_.hello_timeout;
  }
  if (silent) {
    End(absl::DeadlineExceededError(
        absl::StrCat("no Hello within ", absl::FormatDuration(limits_.hello_timeout))));
  }
  if (late) TryCancel();
}

void ExchangeStream::OnReadDone(bool ok) {
  if (!ok) return HandleEnd(absl::CancelledError("the member ended its stream"));
  if (incoming().Length() > kSmallFrame) RpcThreads::HandOver();
  absl::StatusOr<wire::Frame> frame =
      wire::Parse(incoming(), {.max_payload_bytes = limits_.max_payload_bytes});
  incoming().Clear();
  if (ending()) return;
  const std::optional<Place> at = place();
  if (!at) {
    const absl::Status status = HandleHello(frame);
    if (!status.ok()) return End(status);
  } else if (const absl::Status whole = frame.ok() ? Resolve(*at, *frame) : frame.status();
             !whole.ok()) {
    const absl::Status status(whole.code(), absl::StrCat("rank ", at->rank, ": ", whole.message()));
    at->session->FailFrom(at->rank, id_, status);
    return End(status);
  } else {
    return at->session->Receive(at->rank, id_, *frame, MonotonicNow(), [this] { ReadOn(); });
  }
  ReadOn();
}

void ExchangeStream::ReadOn() {
  if (!ending()) StartRead();
}

absl::Status ExchangeStream::Resolve(const Place& at, wire::Frame& frame) const {
  // The session compares it; computed here, while its lock is free.
  if (frame.payload != nullptr && wire::HasDigest(frame.header)) frame.payload->digest();
  auto* contribution = std::get_if<wire::Contribution>(&frame.header);
  if (contribution == nullptr || !contribution->shared) return absl::OkStatus();
  if (at.memory == nullptr) {
    return absl::FailedPreconditionError(
        "sent a chunk in shared memory; its Hello named no attachment");
  }
  if (frame.payload != nullptr) {
    return absl::InvalidArgumentError(
        "sent a chunk both in shared memory and as a payload; allowed: one of them");
  }
  absl::StatusOr<wire::PayloadRef> payload =
      at.memory->Resolve(*contribution->shared, at.rank, id_);
  if (!payload.ok()) return payload.status();
  frame.payload = *std::move(payload);
  return absl::OkStatus();
}

absl::Status ExchangeStream::HandleHello(const absl::StatusOr<wire::Frame>& frame) {
  if (!frame.ok()) return frame.status();
  const auto* hello = std::get_if<wire::Hello>(&frame->header);
  if (hello == nullptr) return absl::InvalidArgumentError("the first frame of a stream is a Hello");
  const absl::StatusOr<Seat> seat = registry_->Find(hello->token, hello->start_id);
  if (!seat.ok()) return seat.status();
  std::shared_ptr<MemberMemory> memory;
  if (hello->memory != 0) {
    auto claimed = seat->session->memory().Claim(seat->rank, hello->memory);
    if (!claimed.ok()) return claimed.status();
    memory = *std::move(claimed);
  }
  {
    MutexLock lock(mutex_);
    place_ = Place{.session = seat->session, .rank = seat->rank, .memory = std::move(memory)};
  }
  return seat->session->Attach(seat->rank, hello->start_id, hello->step, Self<ExchangeStream>(),
                               MonotonicNow());
}

void ExchangeStream::OnWriteDone(bool ok) {
  {
    MutexLock lock(mutex_);
    writing_ = false;
    if (!ok) {
      queue_.clear();
      queued_bytes_ = 0;
      EndLocked(absl::CancelledError("the member's stream is broken"));
    }
  }
  Pump();
}

void ExchangeStream::OnCancel() {
  HandleEnd(absl::CancelledError("the member's stream is broken"));
}

void ExchangeStream::HandleEnd(const absl::Status& status) {
  if (const std::optional<Place> at = place()) at->session->Detach(at->rank, id_, MonotonicNow());
  End(status);
}

void ExchangeStream::OnDone() {
  if (const std::optional<Place> at = place()) at->session->Detach(at->rank, id_, MonotonicNow());
  ticks_->Remove(this);
}

}  // namespace gradwire::server
