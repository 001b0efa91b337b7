#include "server/services/member_exchange.h"

#include <atomic>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "proto/wire/bundle.h"
#include "proto/wire/codec.h"
#include "server/rpc/clock.h"
#include "server/services/bulk_lane.h"
#include "server/session/outgoing.h"
#include "server/session/registry.h"
#include "server/session/session_memory.h"
#include "server/session/session_runner.h"

namespace gradwire::server {
namespace {

// A small payload with its header. Larger frames take long, because their digests are computed.
constexpr std::size_t kSmallFrame = wire::kSmallPayload + 1024;

std::uint64_t NextId() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

}  // namespace

MemberExchange::MemberExchange(const StreamLimits& limits, std::shared_ptr<Registry> registry,
                               std::shared_ptr<LanePairs> pairs,
                               std::shared_ptr<PeriodicTasks> ticks)
    : id_(NextId()),
      limits_(limits),
      registry_(std::move(registry)),
      pairs_(std::move(pairs)),
      ticks_(std::move(ticks)),
      opened_(MonotonicNow()),
      queue_(limits.queue) {}

void MemberExchange::OnStart() {
  SendInitialMetadata();
  StartRead();
  ticks_->Add(Self<MemberExchange>());  // last: the ticker may end it
}

// If the stream is ending, the lane came too late and is broken at once: OnDone will not see it.
void MemberExchange::Connect(const std::shared_ptr<BulkLane>& bulk) {
  if (!bulk->Connect(Self<MemberExchange>())) return OnBulkEnd();
  bool late = false;
  {
    MutexLock lock(mutex_);
    late = end_.has_value();
    if (!late) bulk_ = bulk;
    // The lane's silence counts from now on.
    receiver_.Heard(wire::Lane::kBulk, MonotonicNow());
  }
  if (late) return bulk->Break();
  ReadOn(wire::Lane::kBulk);
  QueueHeartbeats();  // tells the member that the lane is there
  for (const wire::Lane lane : wire::kAllLanes) Pump(lane);
}

void MemberExchange::Queue(Outgoing frame) {
  MutexLock lock(mutex_);
  if (end_) return;
  const absl::Status added = queue_.Add(std::move(frame));
  if (added.ok()) return;
  // The member does not read, so it would not read a status after the queue either. The next tick
  // cancels the call.
  queue_.Drop();
  EndLocked(added);
  end_deadline_ = absl::InfinitePast();
}

void MemberExchange::QueueHeartbeats() {
  MutexLock lock(mutex_);
  if (!end_ && place_) queue_.AddHeartbeats();
}

void MemberExchange::EndAfterQueue(const absl::Status& status) {
  MutexLock lock(mutex_);
  EndLocked(status);
}

void MemberExchange::EndLocked(const absl::Status& status) {
  // The first reason stays; later ones are its consequences.
  if (end_) return;
  end_ = status;
  end_deadline_ = MonotonicNow() + limits_.close_timeout;
}

void MemberExchange::End(const absl::Status& status) {
  EndAfterQueue(status);
  Pump(wire::Lane::kMain);
}

// Writes the next frame of the lane, or finishes the call. The bulk lane ends after this call.
void MemberExchange::Pump(wire::Lane lane) {
  std::vector<SendQueue::Ready> ready;
  std::optional<absl::Status> end;
  std::shared_ptr<BulkLane> bulk;
  {
    MutexLock lock(mutex_);
    if (lane == wire::Lane::kBulk && bulk_ == nullptr) return;
    ready = queue_.Take(lane, bundles_ ? arrivals_.Budget() : 0);
    if (!ready.empty()) {
      bulk = bulk_;
    } else if (end_ && lane == wire::Lane::kMain && !queue_.writing(lane)) {
      end = end_;
    } else {
      return;
    }
  }
  // The queue is empty, so frames such as a Failure precede the status.
  if (end) return Finish(*end);
  // Writing copies the bytes to the socket, and perhaps out of a member's memory before.
  std::size_t payload_bytes = 0;
  for (const SendQueue::Ready& one : ready) payload_bytes += one.item.payload_bytes();
  if (payload_bytes > wire::kSmallPayload) RpcThreads::YieldLeadership();
  std::vector<grpc::ByteBuffer> frames;
  for (const SendQueue::Ready& one : ready) frames.push_back(one.item.Serialize(one.after));
  ready.clear();  // gRPC has its own references now
  const grpc::ByteBuffer message = wire::Bundle(std::move(frames));
  if (lane == wire::Lane::kBulk) return bulk->Write(message);
  StartWrite(message);
}

bool MemberExchange::shares_memory() const {
  MutexLock lock(mutex_);
  return place_ && place_->memory != nullptr;
}

bool MemberExchange::ending() const {
  MutexLock lock(mutex_);
  return end_.has_value();
}

bool MemberExchange::has_pair() const {
  MutexLock lock(mutex_);
  return pair_.has_value();
}

std::optional<MemberExchange::Place> MemberExchange::place() const {
  MutexLock lock(mutex_);
  return place_;
}

std::shared_ptr<BulkLane> MemberExchange::bulk() const {
  MutexLock lock(mutex_);
  return bulk_;
}

void MemberExchange::OnTick(absl::Time now) {
  bool late = false;
  bool silent = false;
  absl::Status lanes;
  {
    MutexLock lock(mutex_);
    late = end_ && now > end_deadline_;
    silent = !end_ && !place_ && now > opened_ + limits_.hello_timeout;
    if (!end_ && pair_) lanes = CheckLanes(now);
  }
  if (silent) {
    End(absl::DeadlineExceededError(
        absl::StrCat("no Hello within ", absl::FormatDuration(limits_.hello_timeout))));
  }
  if (!lanes.ok()) HandleEnd(lanes);
  // Finish would wait for a write that the member's flow-control window blocks.
  if (late) TryCancel();
}

absl::Status MemberExchange::CheckLanes(absl::Time now) {
  const absl::Duration since = now - std::exchange(last_tick_, now);
  // If this process was suspended, ticks stopped too, and the silence was not the member's fault.
  if (since > absl::Seconds(wire::kStandstillSeconds)) receiver_.ForgivePause(since, now);
  if (bulk_ == nullptr && now > opened_ + limits_.hello_timeout) {
    return absl::UnavailableError(
        absl::StrCat("the Hello named a bulk lane, which did not come within ",
                     absl::FormatDuration(limits_.hello_timeout)));
  }
  for (const wire::Lane lane : wire::kAllLanes) {
    const bool is_bulk = lane == wire::Lane::kBulk;
    const absl::Duration limit =
        is_bulk ? limits_.bulk_silence_timeout : limits_.stream_silence_timeout;
    const std::optional<absl::Time> silent = receiver_.SilentAt(lane, limit);
    if (!silent || now <= *silent) continue;
    return absl::UnavailableError(absl::StrCat("nothing came on the ",
                                               is_bulk ? "bulk lane" : "stream", " for ",
                                               absl::FormatDuration(limit)));
  }
  return absl::OkStatus();
}

void MemberExchange::OnReadDone(bool ok) {
  if (!ok) return HandleEnd(absl::CancelledError("the member ended its stream"));
  if (incoming().Length() > kSmallFrame) RpcThreads::YieldLeadership();
  // `place_` is set by the Hello and never changes again.
  if (place()) return OnMessage();
  absl::StatusOr<wire::Frame> frame =
      wire::Parse(incoming(), {.max_payload_bytes = limits_.max_payload_bytes});
  incoming().Clear();
  if (ending()) return;
  const absl::Status status = HandleHello(frame);
  if (!status.ok()) return End(status);
  ReadOn(wire::Lane::kMain);
}

// The next message is read once the session has the last frame of this one.
void MemberExchange::OnMessage() {
  arrivals_.Add(incoming().Length(), wire::ArrivalRate::Clock::now());
  absl::StatusOr<std::vector<wire::Frame>> frames =
      wire::ParseBundle(incoming(), {.max_payload_bytes = limits_.max_payload_bytes});
  incoming().Clear();
  if (frames.ok() && frames->size() > 1 && has_pair()) {
    frames = absl::InvalidArgumentError(absl::StrCat(
        "bundle has ", frames->size() - 1, " frames; allowed: 0, because there is a bulk lane"));
  }
  if (!frames.ok()) return OnFrame(wire::Lane::kMain, frames.status());
  for (std::size_t i = 0; i + 1 < frames->size(); ++i) {
    if (!TakeOne(std::move((*frames)[i]))) return;
  }
  OnFrame(wire::Lane::kMain, std::move(frames->back()));
}

// There is no other lane, so nothing waits for this frame.
bool MemberExchange::TakeOne(wire::Frame frame) {
  if (ending()) return false;
  const Place at = *place();
  if (const absl::Status whole = Resolve(at, frame); !whole.ok()) {
    OnFrame(wire::Lane::kMain, whole);
    return false;
  }
  at.session->Receive(at.rank, id_, frame, MonotonicNow(), [] {});
  return true;
}

void MemberExchange::OnFrame(wire::Lane lane, absl::StatusOr<wire::Frame> frame) {
  if (ending()) return;
  const Place at = *place();
  if (const absl::Status whole = frame.ok() ? Resolve(at, *frame) : frame.status(); !whole.ok()) {
    const absl::Status status(whole.code(), absl::StrCat("rank ", at.rank, ": ", whole.message()));
    // Invalid bytes are a violation, which ends the session for all of its members.
    at.session->FailFrom(at.rank, id_, status);
    return End(status);
  }
  std::optional<wire::Frame> next;
  {
    MutexLock lock(mutex_);
    const std::uint64_t after = frame->after;
    next = receiver_.Arrive(lane, *std::move(frame), after, MonotonicNow());
  }
  // A frame counts as taken once the session has it, and not before: a thread that reads the other
  // lane could overtake this one on the way to the session.
  while (next) {
    std::optional<wire::Frame> freed;
    at.session->Receive(at.rank, id_, *next, MonotonicNow(), [&] { freed = OnTaken(lane); });
    next = std::move(freed);
    lane = wire::Other(lane);
  }
}

std::optional<wire::Frame> MemberExchange::OnTaken(wire::Lane lane) {
  std::optional<wire::Frame> freed;
  {
    MutexLock lock(mutex_);
    freed = receiver_.Taken(lane, MonotonicNow());
  }
  ReadOn(lane);
  return freed;
}

void MemberExchange::ReadOn(wire::Lane lane) {
  if (ending()) return;
  if (lane == wire::Lane::kMain) return StartRead();
  if (const std::shared_ptr<BulkLane> its = bulk()) its->ReadOn();
}

absl::Status MemberExchange::Resolve(const Place& at, wire::Frame& frame) const {
  if (frame.after > 0) {
    MutexLock lock(mutex_);
    if (!pair_) {
      return absl::InvalidArgumentError(absl::StrCat(
          "after: is ", frame.after, "; allowed: 0, for the Hello named no bulk lane"));
    }
  }
  // Computes and caches the digest, which the session compares under its lock.
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

absl::Status MemberExchange::HandleHello(const absl::StatusOr<wire::Frame>& frame) {
  if (!frame.ok()) return frame.status();
  const auto* hello = std::get_if<wire::Hello>(&frame->header);
  if (hello == nullptr)
    return absl::InvalidArgumentError("the first frame of a stream must be a Hello");
  const absl::StatusOr<MemberHandle> member =
      registry_->Find(hello->token, hello->start_id, caller().identity);
  if (!member.ok()) return member.status();
  std::shared_ptr<MemberMemory> memory;
  if (hello->memory != 0) {
    // An attachment has one stream: a resumed stream brings new memory.
    auto claimed = member->session->memory().Claim(member->rank, hello->memory);
    if (!claimed.ok()) return claimed.status();
    memory = *std::move(claimed);
  }
  std::optional<LanePairs::Key> pair;
  if (hello->pair != 0) {
    // Its join asked as well, so only a member that ignores the answer is refused here.
    if (!member->session->GrantLane(member->rank, hello->start_id, caller().holder())) {
      return absl::ResourceExhaustedError(
          absl::StrCat("pair: rank ", member->rank,
                       " names a bulk lane, for which a quota leaves no stream; "
                       "allowed is 0, or raise streams="));
    }
    pair = {.generation = member->session->options().generation,
            .rank = member->rank,
            .pair = hello->pair};
  }
  {
    MutexLock lock(mutex_);
    place_ = Place{.session = member->session, .rank = member->rank, .memory = std::move(memory)};
    pair_ = pair;
    if (pair) queue_.UseBothLanes();
    bundles_ = hello->bundles && !pair;
    receiver_.Heard(wire::Lane::kMain, MonotonicNow());
  }
  CountAsMember();
  // After `place_` is set, since the session may queue frames for this stream at once and asks
  // whether it shares memory.
  absl::Status attached = member->session->Attach(
      member->rank, hello->start_id, hello->step, Self<MemberExchange>(), MonotonicNow(),
      {.takes_residuals = hello->takes_residuals, .may_miss = hello->may_miss});
  if (attached.ok() && pair) pairs_->Add(*pair, Self<MemberExchange>());
  return attached;
}

void MemberExchange::OnWriteDone(bool ok) { OnWritten(wire::Lane::kMain, ok); }

// After a failed write only the main lane is pumped, which finishes the call.
void MemberExchange::OnWritten(wire::Lane lane, bool ok) {
  {
    MutexLock lock(mutex_);
    queue_.Written(lane);
    if (!ok) {
      queue_.Drop();
      EndLocked(absl::CancelledError("the member's stream is broken"));
    }
  }
  Pump(ok ? lane : wire::Lane::kMain);
}

void MemberExchange::OnCancel() {
  HandleEnd(absl::CancelledError("the member's stream is broken"));
}

void MemberExchange::OnBulkEnd() {
  HandleEnd(absl::CancelledError("the member's bulk lane is broken"));
}

// Detaches first, so that the grace period for resuming begins before the call has ended.
void MemberExchange::HandleEnd(const absl::Status& status) {
  if (const std::optional<Place> at = place()) at->session->Detach(at->rank, id_, MonotonicNow());
  End(status);
}

void MemberExchange::OnDone() {
  EndAfterQueue(absl::CancelledError("the stream has ended"));
  if (const std::optional<Place> at = place()) at->session->Detach(at->rank, id_, MonotonicNow());
  std::optional<LanePairs::Key> pair;
  std::shared_ptr<BulkLane> bulk;
  {
    MutexLock lock(mutex_);
    pair = pair_;
    bulk = std::move(bulk_);
  }
  if (pair) pairs_->Remove(*pair, this);
  if (bulk != nullptr) bulk->Break();
  ticks_->Remove(this);
}

}  // namespace gradwire::server
