#include "client/transport/daemon_connection.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "client/transport/stream.h"
#include "proto/wire/bundle.h"
#include "proto/wire/frame_priority.h"
#include "proto/wire/merge.h"

namespace gradwire::client {
namespace {

constexpr std::chrono::milliseconds kBetweenTries(50);

// gRPC ends a cancelled stream at once. If it ever does not, the connection goes on without
// waiting: the stream owns everything that it touches.
constexpr std::chrono::seconds kCancelTimeout(5);

// Consecutive connections whose bulk lane fails while the stream itself works, before the client
// stops opening one.
constexpr int kBulkTries = 2;

constexpr std::chrono::milliseconds kLastWords(200);

// Codes that gRPC's transport reports. Every other code is the daemon's own answer, and final.
bool IsBrokenConnection(absl::StatusCode code) {
  return code == absl::StatusCode::kOk || code == absl::StatusCode::kUnavailable ||
         code == absl::StatusCode::kInternal || code == absl::StatusCode::kCancelled ||
         code == absl::StatusCode::kUnknown;
}

std::size_t BytesOf(const wire::Frame& frame) {
  return wire::BundleBytes(frame.header, frame.payload == nullptr ? 0 : frame.payload->bytes());
}

Clock::duration ToClock(absl::Duration duration) {
  return std::chrono::duration_cast<Clock::duration>(absl::ToChronoNanoseconds(duration));
}

}  // namespace

DaemonConnection::DaemonConnection(std::string address, JoinResult membership,
                                   std::uint64_t start_id, std::shared_ptr<EventQueue> events,
                                   std::shared_ptr<Poller> poller)
    : address_(std::move(address)),
      membership_(std::move(membership)),
      start_id_(start_id),
      events_(std::move(events)),
      poller_(std::move(poller)),
      heartbeat_interval_(ToClock(membership_.heartbeat_interval)),
      silence_timeout_(ToClock(membership_.silence_timeout)),
      resume_grace_(ToClock(membership_.resume_grace)),
      reconnect_(kBetweenTries, resume_grace_) {}

bool DaemonConnection::may_have_bulk() const { return bulk_failures_ < kBulkTries; }

std::string DaemonConnection::Daemon() const { return absl::StrCat("the daemon at ", address_); }

void DaemonConnection::Open(std::shared_ptr<grpc::Channel> channel,
                            const std::shared_ptr<grpc::Channel>& bulk,
                            const std::string& access_token, std::int64_t step,
                            std::uint64_t memory, bool may_miss) {
  connection_ = events_->BeginConnection();
  channel_ = std::move(channel);
  const bool paired = bulk != nullptr;
  // Frames that still waited for the last connection are dropped: after a resume both sides send
  // again what the other may have missed.
  sender_ = wire::LaneSender<wire::Frame>(paired);
  stream_is_there_ = bulk_is_there_ = ended_well_ = false;
  opened_at_ = Clock::now();
  next_heartbeat_ = opened_at_ + heartbeat_interval_;
  wire::Hello hello = {.token = membership_.token,
                       .start_id = start_id_,
                       .step = step,
                       .memory = memory,
                       .bundles = true,
                       .takes_residuals = true,
                       .may_miss = may_miss};
  if (paired) {
    std::random_device random;
    // Never 0, which means that there is no bulk lane.
    hello.pair = std::uint64_t{random()} << 32 | random() | 1;
  }
  for (const wire::Lane lane : wire::kAllLanes) {
    const std::shared_ptr<grpc::Channel>& on = lane == wire::Lane::kMain ? channel_ : bulk;
    if (on == nullptr) continue;
    streams_[wire::Index(lane)] =
        ExchangeStream::Start(on, poller_, events_,
                              {.max_payload_bytes = membership_.chunk_bytes,
                               .source = {.lane = lane, .connection = connection_},
                               .paired = paired,
                               .access_token = access_token});
  }
  sender_.QueueHello({.header = hello});
}

void DaemonConnection::SetGrace(Clock::duration grace) {
  reconnect_ =
      Reconnect<Clock::time_point, Clock::duration>(kBetweenTries, std::max(grace, resume_grace_));
  outlives_daemon_ = true;
}

// A frame without a payload may join the last one that still waits, such as an acknowledgement that
// covers the one before.
void DaemonConnection::Send(wire::Header header, wire::PayloadRef payload) {
  const bool joined = payload == nullptr && sender_.JoinLast([&header](wire::Frame& last) {
    return last.payload == nullptr && wire::Merge(last.header, header);
  });
  if (joined) return;
  const wire::SendPriority priority = wire::PriorityOf(header, payload.get());
  sender_.Queue({.header = std::move(header), .payload = std::move(payload)}, priority);
}

// Next returns nothing while a write of the lane is in flight.
void DaemonConnection::PumpWrites() {
  for (const wire::Lane lane : wire::kAllLanes) {
    if (stream(lane) == nullptr) continue;
    // The Hello goes alone: the daemon decides by it how it reads on.
    const bool several = membership_.bundles && !sender_.paired() && stream_is_there_;
    const std::size_t most = several ? wire::kMaxBundleFrames : 1;
    std::vector<wire::Frame> frames;
    for (auto& next : sender_.NextFew(lane, stream(lane)->write_budget(), most, BytesOf)) {
      next.item.after = next.after;
      frames.push_back(std::move(next.item));
    }
    if (!frames.empty()) stream(lane)->Write(frames);
  }
}

// Events of a connection that was replaced still arrive, and are ignored.
bool DaemonConnection::OnHeard(const Source& from) {
  if (!IsCurrent(from)) return false;
  (from.lane == wire::Lane::kBulk ? bulk_is_there_ : stream_is_there_) = true;
  reconnect_.OnHeard();
  return true;
}

void DaemonConnection::Cancel() {
  for (const std::shared_ptr<ExchangeStream>& its : streams_) {
    if (its != nullptr) its->Cancel();
  }
}

// The first lane to break is the cause that errors name. Both lanes count as one connection, so the
// other one ends too.
void DaemonConnection::Break(wire::Lane lane) {
  sender_.Drop();
  if (broken_) return;
  broken_ = lane;
  ending_ = false;
  const bool is_bulk = lane == wire::Lane::kBulk;
  lost_because_ = is_bulk ? "its bulk lane broke" : "the stream broke";
  end_by_ = Clock::now() + Patience();
  const std::shared_ptr<ExchangeStream>& bulk = stream(wire::Lane::kBulk);
  if (!is_bulk && bulk != nullptr) bulk->Cancel();
}

// How long a broken stream may take to end by itself. It is less than the grace period, in which
// the daemon waits for the next stream.
Clock::duration DaemonConnection::Patience() const {
  if (!sender_.paired()) return kCancelTimeout;
  // It is whole, or cannot go on without the other: all that may still come is why both end.
  const bool only_last_words =
      broken_ == wire::Lane::kBulk ? stream_is_there_ : events_->holds(wire::Lane::kMain);
  return only_last_words ? std::min<Clock::duration>(kLastWords, resume_grace_ / 4)
                         : std::min<Clock::duration>(kCancelTimeout, resume_grace_ / 2);
}

// A stream that does not end by itself is cancelled. If its socket accepts no data, even a
// cancelled stream may end late, so it is abandoned after a second period.
absl::Status DaemonConnection::CheckBroken(Clock::time_point now) {
  if (!broken_ || now < end_by_) return absl::OkStatus();
  if (ending_) return EndConnection(absl::CancelledError(lost_because_));
  Cancel();
  ending_ = true;
  end_by_ = now + std::min<Clock::duration>(kLastWords, resume_grace_ / 4);
  return absl::OkStatus();
}

void DaemonConnection::OnWrite(const Source& from, bool ok) {
  if (!IsCurrent(from)) return;
  sender_.Written(from.lane);
  if (!ok) Break(from.lane);
}

void DaemonConnection::OnReadOn(const ReadOn& lanes) {
  for (const wire::Lane lane : wire::kAllLanes) {
    if (lanes[wire::Index(lane)] && stream(lane) != nullptr) stream(lane)->ReadOn();
  }
}

void DaemonConnection::OnReadEnd(const Source& from) {
  if (!IsCurrent(from)) return;
  Break(from.lane);
  stream(from.lane)->Release();
}

absl::Status DaemonConnection::OnStreamEnd(const Source& from, const absl::Status& status) {
  if (!IsCurrent(from)) return absl::OkStatus();
  Break(from.lane);
  if (from.lane == wire::Lane::kMain) {
    ended_well_ = status.ok();
    if (broken_ == from.lane) {
      lost_because_ = status.ok() ? "it ended the stream" : std::string(status.message());
    }
    return EndConnection(status);
  }
  streams_[wire::Index(from.lane)].reset();
  if (broken_ == from.lane) absl::StrAppend(&lost_because_, ": ", status.message());
  // The daemon itself has refused the lane, so further attempts are useless.
  if (!IsBrokenConnection(status.code())) bulk_failures_ = kBulkTries;
  return absl::OkStatus();
}

absl::Status DaemonConnection::EndConnection(const absl::Status& status) {
  // Counts against the bulk lane only if the daemon can be reached: otherwise both lanes failed for
  // one reason, such as a restart.
  const bool gets_through = stream_is_there_ || channel_->GetState(false) == GRPC_CHANNEL_READY;
  if (sender_.paired() && gets_through && (broken_ == wire::Lane::kBulk || !bulk_is_there_)) {
    ++bulk_failures_;
  }
  Cancel();
  streams_ = {};
  sender_.Drop();
  channel_.reset();
  broken_.reset();
  if (closing_) return absl::OkStatus();
  if (!IsBrokenConnection(status.code())) {
    return absl::Status(status.code(),
                        absl::StrCat(Daemon(), " ended the stream: ", status.message()));
  }
  reconnect_.OnLost(Clock::now());
  return absl::OkStatus();
}

bool DaemonConnection::WantsStream(Clock::time_point now) const {
  return !closing_ && !open() && reconnect_.lost() && now >= reconnect_.next_try();
}

Clock::time_point DaemonConnection::LostDeadline() const {
  // Connected again: the daemon speaks next, perhaps only by a heartbeat, so the limit on its
  // silence applies.
  if (channel_ != nullptr && channel_->GetState(false) == GRPC_CHANNEL_READY) {
    const Clock::time_point silent = opened_at_ + silence_timeout_;
    return outlives_daemon_ ? std::max(silent, reconnect_.gives_up_at()) : silent;
  }
  return reconnect_.gives_up_at();
}

// A closing stream is first waited for, then cancelled, and finally left to itself, since it owns
// everything that it touches.
absl::Status DaemonConnection::CheckClosing(Clock::time_point now) {
  if (!open() || now < close_deadline_) return absl::OkStatus();
  if (cancelled_) {
    streams_ = {};
    return absl::OkStatus();
  }
  Cancel();
  cancelled_ = true;
  close_deadline_ = now + kCancelTimeout;
  return absl::OkStatus();
}

// A silent bulk lane does not lose the daemon: the connection breaks and resumes, if need be
// without a bulk lane.
void DaemonConnection::CheckBulk(Clock::time_point now) {
  if (stream(wire::Lane::kBulk) == nullptr || broken_) return;
  const auto silent = events_->SilentAt(wire::Lane::kBulk, wire::kBulkSilences * silence_timeout_);
  if (!silent || now <= *silent) return;
  Break(wire::Lane::kBulk);
  lost_because_ = "nothing was heard on its bulk lane";
}

absl::Status DaemonConnection::CheckTimers(Clock::time_point now) {
  if (closing_) return CheckClosing(now);
  if (now >= next_heartbeat_) {
    next_heartbeat_ = now + heartbeat_interval_;
    sender_.QueueHeartbeats({.header = wire::Heartbeat{}});
  }
  CheckBulk(now);
  if (absl::Status status = CheckBroken(now); !status.ok()) return status;
  if (reconnect_.lost()) {
    // Another stream may find another daemon.
    if (outlives_daemon_ && open() && !broken_ && now >= opened_at_ + silence_timeout_ &&
        now < reconnect_.gives_up_at()) {
      return EndConnection(absl::CancelledError(lost_because_));
    }
    if (now < LostDeadline()) return absl::OkStatus();
    return Coded(ErrorCode::kOutcomeUnknown,
                 absl::UnavailableError(absl::StrCat("lost ", Daemon(), ": ", lost_because_)));
  }
  const auto silent = events_->SilentAt(wire::Lane::kMain, silence_timeout_);
  if (!broken_ && silent && now > *silent && outlives_daemon_) {
    lost_because_ = absl::StrCat("nothing was heard from it for ",
                                 absl::FormatDuration(membership_.silence_timeout));
    return EndConnection(absl::CancelledError(lost_because_));
  }
  if (!broken_ && silent && now > *silent) {
    return Coded(
        ErrorCode::kOutcomeUnknown,
        absl::UnavailableError(absl::StrCat("lost ", Daemon(), ": nothing was heard from it for ",
                                            absl::FormatDuration(membership_.silence_timeout))));
  }
  return absl::OkStatus();
}

Clock::time_point DaemonConnection::NextTimer() const {
  if (closing_) return open() ? close_deadline_ : Clock::time_point::max();
  Clock::time_point next = broken_ ? end_by_ : Clock::time_point::max();
  if (!broken_ && !reconnect_.lost()) {
    next = events_->SilentAt(wire::Lane::kMain, silence_timeout_).value_or(next);
  }
  if (reconnect_.lost()) next = std::min(next, LostDeadline());
  if (reconnect_.lost() && outlives_daemon_ && open()) {
    next = std::min(next, std::max(opened_at_ + silence_timeout_, Clock::now() + kBetweenTries));
  }
  return std::min(next, open() ? next_heartbeat_ : reconnect_.next_try());
}

void DaemonConnection::CloseWith(wire::Header last, Clock::time_point deadline) {
  if (closing_ || cancelled_) return;
  closing_ = true;
  close_deadline_ = deadline;
  has_last_words_ = true;
  const wire::SendPriority priority = wire::PriorityOf(last, nullptr);
  sender_.DropFor({.header = std::move(last)}, priority);
}

void DaemonConnection::Close(Clock::time_point deadline) {
  // A later call may only bring the deadline forward, for example a failure after a Leave.
  if (closing_ && deadline >= close_deadline_) return;
  if (cancelled_) return;
  closing_ = true;
  close_deadline_ = deadline;
  sender_.Drop();
}

}  // namespace gradwire::client
