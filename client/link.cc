#include "client/link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/merge.h"
#include "proto/wire/overtake.h"

namespace gradwire::client {
namespace {

constexpr std::chrono::milliseconds kBetweenTries(50);

// gRPC ends a cancelled stream at once. If it ever does not, the stream is left to itself: it owns
// everything that it touches.
constexpr std::chrono::seconds kCancelTimeout(5);

// What a transport reports. Every other code is the daemon's own answer.
bool IsBrokenConnection(absl::StatusCode code) {
  return code == absl::StatusCode::kOk || code == absl::StatusCode::kUnavailable ||
         code == absl::StatusCode::kInternal || code == absl::StatusCode::kCancelled ||
         code == absl::StatusCode::kUnknown;
}

Clock::duration ToClock(absl::Duration duration) {
  return std::chrono::duration_cast<Clock::duration>(absl::ToChronoNanoseconds(duration));
}

}  // namespace

Link::Link(std::string address, Membership membership, std::uint64_t start_id,
           std::shared_ptr<Inbox> inbox)
    : address_(std::move(address)),
      membership_(std::move(membership)),
      start_id_(start_id),
      inbox_(std::move(inbox)),
      poller_(Poller::Start()),
      heartbeat_interval_(ToClock(membership_.heartbeat_interval)),
      silence_timeout_(ToClock(membership_.silence_timeout)),
      last_heard_(Clock::now()) {}

std::string Link::Daemon() const { return absl::StrCat("the daemon at ", address_); }

void Link::Open(std::shared_ptr<grpc::Channel> channel, std::int64_t step, std::uint64_t memory) {
  channel_ = std::move(channel);
  stream_ = ExchangeStream::Start(channel_, poller_, inbox_, membership_.chunk_bytes);
  opened_at_ = Clock::now();
  next_heartbeat_ = opened_at_ + heartbeat_interval_;
  Send(wire::Hello{
      .token = membership_.token, .start_id = start_id_, .step = step, .memory = memory});
}

void Link::Send(wire::Header header, wire::PayloadRef payload) {
  if (stream_ == nullptr || broken_ || closing_) return;
  if (payload == nullptr && !outgoing_.empty() && outgoing_.back().payload == nullptr &&
      wire::Merge(outgoing_.back().header, header)) {
    return;
  }
  const auto at = wire::PlaceFor(
      outgoing_, wire::WeightOf(header, payload.get()),
      [](const wire::Frame& frame) { return wire::WeightOf(frame.header, frame.payload.get()); });
  outgoing_.insert(at, {.header = std::move(header), .payload = std::move(payload)});
}

void Link::PumpWrites() {
  if (stream_ == nullptr || broken_ || closing_ || writing_ || outgoing_.empty()) return;
  stream_->Write(outgoing_.front());
  outgoing_.pop_front();
  writing_ = true;
}

void Link::OnHeard() {
  last_heard_ = Clock::now();
  lost_at_.reset();
}

void Link::OnWrite(bool ok) {
  writing_ = false;
  if (ok) return;
  broken_ = true;
  outgoing_.clear();
}

void Link::OnReadOn() {
  if (stream_ != nullptr) stream_->ReadOn();
}

void Link::OnReadEnd() {
  broken_ = true;
  outgoing_.clear();
  if (stream_ != nullptr) stream_->Release();
}

absl::Status Link::OnStreamEnd(const absl::Status& status) {
  stream_.reset();
  channel_.reset();
  outgoing_.clear();
  writing_ = false;
  broken_ = false;
  if (closing_) return absl::OkStatus();
  if (!IsBrokenConnection(status.code())) {
    return absl::Status(status.code(),
                        absl::StrCat(Daemon(), " ended the stream: ", status.message()));
  }
  lost_because_ = status.ok() ? "it ended the stream" : std::string(status.message());
  const Clock::time_point now = Clock::now();
  retry_at_ = lost_at_ ? now + kBetweenTries : now;
  if (!lost_at_) lost_at_ = now;
  return absl::OkStatus();
}

bool Link::WantsStream(Clock::time_point now) const {
  return !closing_ && stream_ == nullptr && lost_at_ && now >= retry_at_;
}

Clock::time_point Link::LostDeadline() const {
  // Connected again: it is up to the daemon to speak. It may have nothing to say but heartbeats.
  if (channel_ != nullptr && channel_->GetState(false) == GRPC_CHANNEL_READY) {
    return opened_at_ + silence_timeout_;
  }
  return *lost_at_ + ToClock(membership_.resume_grace);
}

absl::Status Link::CheckTimers(Clock::time_point now) {
  if (closing_) {
    if (stream_ == nullptr || now < close_deadline_) return absl::OkStatus();
    if (cancelled_) {
      stream_.reset();
      return absl::OkStatus();
    }
    stream_->Cancel();
    cancelled_ = true;
    close_deadline_ = now + kCancelTimeout;
    return absl::OkStatus();
  }
  if (now >= next_heartbeat_) {
    next_heartbeat_ = now + heartbeat_interval_;
    if (outgoing_.empty()) Send(wire::Heartbeat{});
  }
  if (lost_at_) {
    if (now < LostDeadline()) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("lost ", Daemon(), ": ", lost_because_));
  }
  last_heard_ = std::max(last_heard_, inbox_->last_heard());
  if (now - last_heard_ > silence_timeout_) {
    return absl::UnavailableError(absl::StrCat("lost ", Daemon(),
                                               ": nothing was heard from it for ",
                                               absl::FormatDuration(membership_.silence_timeout)));
  }
  return absl::OkStatus();
}

Clock::time_point Link::NextTimer() const {
  if (closing_) return stream_ == nullptr ? Clock::time_point::max() : close_deadline_;
  if (!lost_at_) return std::min(next_heartbeat_, last_heard_ + silence_timeout_);
  return std::min(LostDeadline(), stream_ == nullptr ? retry_at_ : next_heartbeat_);
}

void Link::Close(Clock::time_point deadline) {
  if (closing_ && deadline >= close_deadline_) return;
  if (cancelled_) return;
  closing_ = true;
  close_deadline_ = deadline;
  outgoing_.clear();
}

}  // namespace gradwire::client
