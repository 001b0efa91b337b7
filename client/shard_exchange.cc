#include "client/shard_exchange.h"

#include <cstddef>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "client/client_impl.h"

namespace gradwire::client {

void ShardExchange::BeginAt(std::int64_t step) {
  MutexLock lock(mutex_);
  vote_.BeginAt(step);
}

std::uint64_t ShardExchange::life() {
  MutexLock lock(mutex_);
  return life_;
}

absl::Status ShardExchange::failure() {
  MutexLock lock(mutex_);
  return failure_;
}

ShardLink ShardExchange::LinkOf(std::uint32_t shard) {
  return {.prepared = [this, shard](const PreparedEffect& effect) { OnPrepared(shard, effect); },
          .concluded =
              [this, shard](const StepDoneEffect& effect) {
                if (shard == 0) OnConcluded(effect);
              },
          .failed = [this, shard](const FailedEffect& effect) { OnFailed(shard, effect); },
          .lost = [this, shard](const ShardLoss& loss) { OnLost(shard, loss); },
          .is_asked =
              [this, shard](std::uint64_t number) {
                MutexLock lock(mutex_);
                return losses_.IsAsked(shard, number);
              },
          .has_told =
              [this, shard] {
                MutexLock lock(mutex_);
                return losses_.HasTold(shard);
              },
          .goes_on =
              [this, shard](const ShardLife& life) { shard == 0 ? OnGoesOn(life) : OnOutlives(); }};
}

void ShardExchange::FailAll(const absl::Status& status, int blamed_rank) {
  if (failed_.exchange(true) || !Begin()) return;
  FailOthers(std::nullopt, status, blamed_rank, /*is_told=*/true);
  if (on_failed_) on_failed_(status, blamed_rank);
  End();
}

void ShardExchange::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
  while (busy_ > 0) idle_.Wait(mutex_);
}

void ShardExchange::OnPrepared(std::uint32_t shard, const PreparedEffect& effect) {
  if (!Begin()) return;
  absl::StatusOr<std::optional<ShardVote::Outcome>> outcome = std::nullopt;
  {
    MutexLock lock(mutex_);
    outcome = vote_.OnPrepared(shard, effect);
  }
  if (!outcome.ok()) {
    FailMember(outcome.status());
  } else if (*outcome) {
    shards_.front().load()->SayReady((*outcome)->verdict, (*outcome)->digest);
  }
  End();
}

void ShardExchange::OnConcluded(const StepDoneEffect& lead) {
  if (!Begin()) return;
  {
    MutexLock lock(mutex_);
    vote_.Conclude(lead.step);
  }
  for (std::size_t i = 1; i < shards_.size(); ++i) {
    if (ClientImpl* const one = shards_[i]) one->ConcludeAs(lead);
  }
  End();
}

void ShardExchange::OnLost(std::uint32_t shard, const ShardLoss& loss) {
  if (!Begin()) return;
  ShardLosses::Next next;
  {
    MutexLock lock(mutex_);
    next = losses_.OnLost(shard, loss);
    if (next.report) vote_.Restart();
  }
  for (const std::uint32_t other : next.ask) {
    if (ClientImpl* const one = shards_[other]) {
      one->AskToGather(shard, next.number);
      continue;
    }
    FailMember(Coded(ErrorCode::kResume,
                     absl::UnavailableError("a daemon was lost, or another member, while this one "
                                            "was taken in; start it again")));
    break;
  }
  if (next.report) shards_.front().load()->RejoinWith(*next.report);
  if (next.ends_with) {
    FailMember(Coded(ErrorCode::kResume,
                     absl::UnavailableError(absl::StrCat(
                         "a daemon was lost, and shard ", *next.ends_with,
                         " does not go on without it: it has not welcomed this member, or its "
                         "on_coordinator_loss is fail; allowed: resume at all daemons. Start this "
                         "member again"))));
  }
  End();
}

void ShardExchange::OnGoesOn(const ShardLife& life) {
  if (!Begin()) return;
  {
    MutexLock lock(mutex_);
    life_ = life.number;
    outlives_ = true;
  }
  for (std::size_t i = 1; i < shards_.size() && life.number > 0; ++i) {
    if (ClientImpl* const one = shards_[i]) one->Follow(life);
  }
  End();
}

// Each shard's Welcome says so, and the member may fail before shard 0's.
void ShardExchange::OnOutlives() {
  MutexLock lock(mutex_);
  outlives_ = true;
}

void ShardExchange::OnFailed(std::uint32_t shard, const FailedEffect& effect) {
  if (failed_.exchange(true) || !Begin()) return;
  FailOthers(shard, effect.status, effect.blamed_rank, effect.is_told);
  if (on_failed_) on_failed_(effect.status, effect.blamed_rank);
  End();
}

void ShardExchange::FailMember(const absl::Status& status) {
  FailOthers(std::nullopt, status, -1, /*is_told=*/false);
}

// What a daemon has said ends the session on all shards. What fails in this member alone ends it
// only where it would end with a lost member, too.
void ShardExchange::FailOthers(std::optional<std::uint32_t> shard, const absl::Status& status,
                               int blamed_rank, bool is_told) {
  bool outlives = false;
  {
    MutexLock lock(mutex_);
    outlives = outlives_;
    if (failure_.ok()) failure_ = status;
  }
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    ClientImpl* const one = shards_[i];
    if (one == nullptr || i == shard) continue;
    outlives && !is_told ? one->Abandon(status) : one->FailElsewhere(status, blamed_rank);
  }
}

bool ShardExchange::Begin() {
  MutexLock lock(mutex_);
  if (closed_) return false;
  ++busy_;
  return true;
}

void ShardExchange::End() {
  MutexLock lock(mutex_);
  if (--busy_ == 0) idle_.NotifyAll();
}

}  // namespace gradwire::client
