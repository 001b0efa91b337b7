#include "client/transport/stream.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/tls/access_token.h"
#include "proto/wire/codec.h"
#include "proto/wire/status.h"

namespace gradwire::client {

// Handles the end of an operation. The last one of a finishing stream pushes StreamEndEvent.
template <void (ExchangeStream::*end)(bool)>
Poller::Operation ExchangeStream::Operation() {
  const auto done = [](void* owner, bool ok) {
    auto& stream = *static_cast<ExchangeStream*>(owner);
    (stream.*end)(ok);
    bool last = false;
    {
      MutexLock lock(stream.mutex_);
      last = --stream.in_flight_ == 0 && stream.finishing_;
    }
    if (!last) return;
    // The stream may be gone before Push returns.
    const std::shared_ptr<EventQueue> events = stream.events_;
    const Source source = stream.options_.source;
    events->Push(StreamEndEvent{.status = wire::FromGrpc(stream.outcome_),
                                .stream = std::move(stream.self_),
                                .from = source});
  };
  return {.done = done, .owner = this};
}

ExchangeStream::ExchangeStream(std::shared_ptr<Poller> poller, std::shared_ptr<EventQueue> events,
                               const Options& options)
    : poller_(std::move(poller)),
      events_(std::move(events)),
      options_(options),
      read_(Operation<&ExchangeStream::OnRead>()),
      write_(Operation<&ExchangeStream::OnWritten>()),
      finish_(Operation<&ExchangeStream::OnFinished>()) {}

std::shared_ptr<ExchangeStream> ExchangeStream::Start(const std::shared_ptr<grpc::Channel>& channel,
                                                      std::shared_ptr<Poller> poller,
                                                      std::shared_ptr<EventQueue> events,
                                                      const Options& options) {
  static const std::string main = "/gradwire.v1.AggregationService/Exchange";
  static const std::string bulk = "/gradwire.v1.AggregationService/ExchangeBulk";
  const std::string& method = options.source.lane == wire::Lane::kMain ? main : bulk;
  std::shared_ptr<ExchangeStream> stream(
      new ExchangeStream(std::move(poller), std::move(events), options));
  // gRPC holds raw tags into the stream, so the stream keeps itself alive until nothing is in
  // flight.
  stream->self_ = stream;
  tls::AddAccessToken(options.access_token, stream->context_);
  stream->context_.set_initial_metadata_corked(true);  // the first write takes it along
  stream->call_ =
      grpc::GenericStub(channel).PrepareCall(&stream->context_, method, stream->poller_->queue());
  // With corked metadata this begins no operation, so it needs no tag.
  stream->call_->StartCall(nullptr);
  stream->ReadOn();
  return stream;
}

void ExchangeStream::Write(const std::vector<wire::Frame>& frames) {
  std::vector<grpc::ByteBuffer> serialized;
  for (const wire::Frame& frame : frames) {
    serialized.push_back(wire::Serialize(frame.header, frame.payload));
    if (frame.after > 0) wire::PutAfter(serialized.back(), frame.after);
  }
  const grpc::ByteBuffer bytes = wire::Bundle(std::move(serialized));
  {
    MutexLock lock(mutex_);
    ++in_flight_;
  }
  call_->Write(bytes, poller_->Begin(write_));  // has its own reference
}

void ExchangeStream::ReadOn() {
  {
    MutexLock lock(mutex_);
    if (finishing_) return;
    reading_ = true;
    ++in_flight_;
  }
  call_->Read(&incoming_, poller_->Begin(read_));
}

// Without further reads Finish can begin; it ends with the stream's status.
void ExchangeStream::Release() {
  {
    MutexLock lock(mutex_);
    released_ = true;
  }
  MaybeFinish();
}

void ExchangeStream::Cancel() {
  context_.TryCancel();
  Release();
}

// Finish returns the status that follows all messages, so it must not overlap with a read.
void ExchangeStream::MaybeFinish() {
  {
    MutexLock lock(mutex_);
    if (!released_ || reading_ || finishing_) return;
    finishing_ = true;
    ++in_flight_;
  }
  call_->Finish(&outcome_, poller_->Begin(finish_));
}

void ExchangeStream::OnRead(bool ok) {
  {
    MutexLock lock(mutex_);
    reading_ = false;
  }
  MaybeFinish();
  if (!ok) return events_->Push(ReadEndEvent{options_.source});
  arrivals_.Add(incoming_.Length(), Clock::now());
  absl::StatusOr<std::vector<wire::Frame>> frames =
      wire::ParseBundle(incoming_, {.max_payload_bytes = options_.max_payload_bytes});
  incoming_.Clear();
  if (absl::Status fits = frames.ok() ? CheckLanes(*frames) : absl::OkStatus(); !fits.ok()) {
    frames = fits;
  }
  // Reads the next frames while these are handled.
  if (events_->PushFrames(std::move(frames), options_.source)) ReadOn();
  events_->Work();
}

absl::Status ExchangeStream::CheckLanes(const std::vector<wire::Frame>& frames) const {
  if (options_.paired && frames.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "bundle has ", frames.size() - 1, " frames; allowed: 0, because there is a bulk lane"));
  }
  for (const wire::Frame& frame : frames) {
    if (frame.after == 0 || options_.paired) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "after is ", frame.after, "; allowed: 0, because the Hello named no bulk lane"));
  }
  return absl::OkStatus();
}

void ExchangeStream::OnWritten(bool ok) { events_->Push(WriteEvent{ok, options_.source}); }

// Operation pushes the StreamEndEvent once nothing else is in flight.
void ExchangeStream::OnFinished(bool) {}

}  // namespace gradwire::client
