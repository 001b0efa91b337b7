// How members' streams end, and what they wait for.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "server/rpc/clock.h"
#include "server/session/session_runner.h"

namespace gradwire::server {

// Members of a session that closes go on elsewhere, with the same memory: none of its sums may
// write there any more.
void SessionRunner::Close(const CloseEffect& close, Work& work) {
  const bool goes_on = core_.state() == SessionCore::State::kClosed &&
                       core_.member_state(close.rank) != SessionCore::MemberState::kLeft;
  if (goes_on && sums_ > 0) {
    late_closes_.push_back(close);
    return;
  }
  const auto found = streams_.find(close.connection);
  if (found == streams_.end()) return;
  // Frames that wait, such as the Failure, are sent first.
  found->second->EndAfterQueue(CloseReason(close.rank, close.connection));
  work.streams.push_back(found->second);
}

// The status that ends the stream's RPC; the member's SDK decides by it whether to resume.
absl::Status SessionRunner::CloseReason(int rank, std::uint64_t connection) const {
  const bool is_current = current_[static_cast<std::size_t>(rank)] == connection;
  if (is_current && core_.member_state(rank) == SessionCore::MemberState::kLeft) {
    return absl::OkStatus();
  }
  if (core_.state() == SessionCore::State::kFailed) return core_.failure();
  if (!is_current) {
    return Coded(ErrorCode::kResume,
                 absl::AbortedError(absl::StrCat("another stream of rank ", rank, " took over")));
  }
  if (core_.awaits_successor()) {
    return Coded(ErrorCode::kResume,
                 absl::NotFoundError("a member or a shard was lost; members report to the session "
                                     "that goes on"));
  }
  if (core_.state() == SessionCore::State::kClosed) {
    return Coded(ErrorCode::kDraining,
                 absl::UnavailableError("the daemon ends, and leaves the session to the next one"));
  }
  return Coded(ErrorCode::kEndedBeforeStart,
               absl::CancelledError(
                   absl::StrCat("rank ", rank, " gave up its place before the session began")));
}

// One acquisition of the lock for the whole batch, so that its results are released together.
void SessionRunner::OnReduced(const std::vector<Reducer::Done>& done) {
  Work work;
  {
    MutexLock lock(mutex_);
    Effects effects;
    core_.Observe(MonotonicNow());
    for (const Reducer::Done& one : done) {
      core_.Reduced(one.id, one.chunk, one.result, one.outcome, one.spent, effects);
    }
    sums_ -= done.size();
    if (sums_ == 0) {
      for (const CloseEffect& close : std::exchange(late_closes_, {})) effects.push_back(close);
    }
    Execute(std::move(effects), work);
  }
  Finish(std::move(work));
}

}  // namespace gradwire::server
