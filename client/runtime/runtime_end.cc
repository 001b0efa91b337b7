// The end of a membership: a failure, a Leave, or the client's destruction.
#include <utility>

#include "base/error_code.h"
#include "client/runtime/join.h"
#include "client/runtime/runtime.h"
#include "client/transport/address_watch.h"
#include "client/transport/rejoin.h"

namespace gradwire::client {
namespace {

// After a Leave the daemon ends the stream; if it does not, this side does.
constexpr std::chrono::seconds kCloseTimeout(2);

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

void Runtime::HandOver(std::shared_ptr<HandOverCall> call, std::vector<std::byte> file) {
  absl::Status may = BetweenSteps("Leave");
  if (may.ok() && collective_ != nullptr) may = InCollective();
  if (!may.ok()) return call->outcome.Complete(may);
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

absl::Status Runtime::BeginLeave() {
  if (absl::Status may = BetweenSteps("Leave"); !may.ok()) return may;
  if (collective_ != nullptr) {
    return InCollective();
  }
  leaving_ = true;
  member_.SetLeaving(true);
  return absl::OkStatus();
}

// After a refused Leave the member goes on. One whose daemon is lost while it leaves needs nobody
// any more: its place is held, or not, as if the daemon had heard of it.
absl::Status Runtime::FinishLeave(const absl::Status& answer, bool lost) {
  leaving_ = false;
  // Shard 0 has let it go, and members that stay have left this shard's life of the session.
  const bool is_left = !leads_ && absl::IsNotFound(answer);
  if (!answer.ok() && !(member_.outlives_daemon() && (is_left || lost))) {
    // Nothing else would look for the next daemon.
    member_.SetLeaving(false);
    const absl::Status ended = std::exchange(ended_in_leave_, absl::OkStatus());
    if (!ended.ok()) OnEnded(ended);
    return answer;
  }
  left_.store(true, std::memory_order_relaxed);
  connection_->Close(Clock::now() + kCloseTimeout);
  return absl::OkStatus();
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
