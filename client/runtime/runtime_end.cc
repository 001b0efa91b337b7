// The end of a membership: a failure, a Leave, or the client's destruction.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "client/runtime/join.h"
#include "client/runtime/runtime.h"
#include "client/transport/address_watch.h"
#include "client/transport/rejoin.h"

namespace gradwire::client {
namespace {

// After a Leave the daemon ends the stream; if it does not, this side does.
constexpr std::chrono::seconds kCloseTimeout(2);
// How long a Leave is tried again: while no daemon answers, since a connection may have broken; and
// where the daemon or the next one may need what the member knows.
constexpr absl::Duration kLeavePatience = absl::Seconds(1);
constexpr absl::Duration kLooksToLeave = absl::Seconds(10);
// Of one call. A daemon that does not answer the short one may be lost.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(10);
constexpr absl::Duration kShortLeaveTimeout = absl::Seconds(2);

absl::Status InCollective() {
  return Coded(ErrorCode::kWrongMoment,
               absl::FailedPreconditionError("Leave was called during a broadcast or barrier"));
}

}  // namespace

// The core has completed the buckets; the waits that only the runtime knows end here.
void Runtime::On(FailedEffect& effect) {
  if (link_.failed) link_.failed(effect);
  if (rejoin_ != nullptr) rejoin_->Stop();
  if (watch_ != nullptr) watch_->Stop();
  device_.Release();
  group_.Abort();
  if (effect.last_words) {
    connection_->CloseWith(*effect.last_words, Clock::now() + kCloseTimeout);
  } else {
    connection_->Close(Clock::now());
  }
  joined_->Complete(effect.status);
  // After the buckets, whose memory the device may still write.
  device_.queue().InOrder([this, status = effect.status] {
    if (auto call = std::exchange(end_step_, nullptr)) call->outcome.Complete(status);
    EndCollectives(status);
    if (auto call = std::exchange(hand_over_, nullptr)) call->outcome.Complete(status);
  });
}

void Runtime::Fail(const absl::Status& status) {
  Effects effects;
  member_.Fail(status, effects);
  Apply(std::move(effects));
}

absl::Status Runtime::MayBeginLeave() const {
  if (absl::Status may = BetweenSteps("Leave"); !may.ok()) return may;
  return collective_ != nullptr ? InCollective() : absl::OkStatus();
}

absl::StatusOr<HookState> Runtime::BeginHandOver() {
  if (absl::Status may = MayBeginLeave(); !may.ok()) return may;
  member_.SetLeaving(true);
  absl::StatusOr<HookState> state = State();
  if (!state.ok()) member_.SetLeaving(false);
  return state;
}

void Runtime::HandOver(std::shared_ptr<HandOverCall> call, std::vector<std::byte> file) {
  if (absl::Status may = MayBeginLeave(); !may.ok()) {
    const bool leaves = hand_over_ != nullptr || leaving_ || looks_to_leave_;  // another call
    if (!leaves) member_.SetLeaving(false);
    return call->outcome.Complete(may);
  }
  hand_over_ = std::move(call);
  if (file.empty() && !member_.has_late()) return CancelHandOver("");
  if (!member_.outlives_daemon() || member_.grouped()) {
    return CancelHandOver(member_.grouped()
                              ? "in a node group residuals are the group's, not a member's"
                              : "the session ends with a member that leaves before the others");
  }
  Effects effects;
  member_.HandOver(DrawStartId(), std::move(file), effects);
  Apply(std::move(effects));
}

void Runtime::On(HandedOverEffect& effect) {
  const auto call = std::exchange(hand_over_, nullptr);
  if (call == nullptr) return;
  call->rank = effect.rank;
  call->reason = std::move(effect.reason);
  call->outcome.Complete(absl::OkStatus());
}

void Runtime::CancelHandOver(const std::string& why) {
  HandedOverEffect outcome{.rank = member_.CancelHandOver(), .reason = why};
  On(outcome);
}

// Others may need to hear from this member how the last step ended, so it goes on with the next
// daemon, if one comes in time. It needs nothing for itself any more: it has left, whatever happens
// there. Nor does a member that has left shard 0 need the others.
absl::StatusOr<Runtime::Leaving> Runtime::BeginLeave(absl::Duration waited) {
  if (left()) return Leaving::kLeft;
  const bool is_free = looks_to_leave_ || !leads_ || (leaving_ && member_.outlives_daemon());
  if (member_.failed() && is_free) return Left();
  // Let go meanwhile. Its last call is for the daemon's audit log.
  if (leaving_ && connection_->ended_well()) return Leaving::kAsks;
  if (!leaving_ && !looks_to_leave_) {
    if (absl::Status may = MayBeginLeave(); !may.ok()) return may;
    member_.SetLeaving(true);
  }
  leaving_ = !MayLookToLeave(waited) || WhereFrom() == Away::kNot;
  looks_to_leave_ |= !leaving_;
  if (!leaving_) FollowEnd();
  return leaving_ ? Leaving::kAsks : Leaving::kWaits;
}

// After a refused Leave the member goes on.
absl::StatusOr<Runtime::Leaving> Runtime::FinishLeave(const absl::Status& answer,
                                                      absl::Duration waited) {
  if (left()) return Leaving::kLeft;
  if (connection_->ended_well()) return Left();
  // Its host may be gone, or another daemon there that does not know this member.
  const bool is_away = absl::IsDeadlineExceeded(answer) || absl::IsNotFound(answer);
  const bool is_lost = absl::IsUnavailable(answer) || (is_away && MayLookToLeave(waited));
  if (is_lost && (MayLookToLeave(waited) || waited < kLeavePatience)) {
    looks_to_leave_ |= MayLookToLeave(waited);
    if (!ended_in_leave_.ok()) {
      leaving_ = false;
      FollowEnd();
    }
    return Leaving::kWaits;
  }
  // Shard 0 has let it go, and members that stay have left this shard's life of the session.
  const bool is_left = !leads_ && absl::IsNotFound(answer);
  const bool needs_nobody = member_.outlives_daemon() && (is_left || is_lost);
  if (looks_to_leave_ && !answer.ok()) {
    Say(absl::StrCat("leaves, although no daemon has let it go within ",
                     absl::FormatDuration(absl::Trunc(waited, absl::Milliseconds(100))), ": ",
                     answer.message()));
  }
  if (answer.ok() || needs_nobody || looks_to_leave_) return Left();
  leaving_ = false;
  member_.SetLeaving(false);
  FollowEnd();
  return answer;
}

absl::Duration Runtime::LeaveTimeout() const {
  return MayLookToLeave(absl::ZeroDuration()) ? kShortLeaveTimeout : kLeaveTimeout;
}

bool Runtime::MayLookToLeave(absl::Duration waited) const {
  return member_.outlives_daemon() && leads_ && options_.world_size > 1 && waited < kLooksToLeave;
}

Runtime::Leaving Runtime::Left() {
  left_.store(true, std::memory_order_relaxed);
  leaving_ = looks_to_leave_ = false;
  if (rejoin_ != nullptr) rejoin_->Stop();
  if (watch_ != nullptr) watch_->Stop();
  connection_->Close(Clock::now() + kCloseTimeout);
  return Leaving::kLeft;
}

// What the end of the stream meant: nothing else would look for the next daemon.
void Runtime::FollowEnd() {
  const absl::Status ended = std::exchange(ended_in_leave_, absl::OkStatus());
  if (!ended.ok()) OnEnded(ended);
}

// In the middle of a step, other members wait for this one, so they must learn of its end as a
// failure. Between steps it is an ordinary Leave.
bool Runtime::CancelCalls() {
  const bool is_member = !member_.failed() && !left();
  const bool open =
      !buckets_.empty() || end_step_ != nullptr || collective_ != nullptr || !device_.idle();
  if (open) {
    Fail(Coded(ErrorCode::kClosed, absl::CancelledError("the client was destroyed")));
  } else {
    leaving_ = true;  // keeps the stream until the Leave is answered: a leave is no loss
  }
  return is_member;
}

}  // namespace gradwire::client
