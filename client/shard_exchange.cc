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
              [this, shard](const ShardLife& life) {
                if (shard == 0) OnGoesOn(life);
              }};
}

void ShardExchange::FailAll(const absl::Status& status, int blamed_rank) {
  if (failed_.exchange(true) || !Begin()) return;
  FailThose(status, blamed_rank);
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
    FailThose(outcome.status(), -1);
  } else if (*outcome) {
    shards_.front().load()->SayReady((*outcome)->verdict, (*outcome)->digest);
  }
  End();
}

void ShardExchange::OnConcluded(const StepDoneEffect& lead) {
  if (!Begin()) return;
  {
    MutexLock lock(mutex_);
    vote_.Conclude();
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
    FailThose(Coded(ErrorCode::kResume,
                    absl::UnavailableError("a daemon was lost, or another member, while this one "
                                           "was taken in; start it again")),
              -1);
    break;
  }
  if (next.report) shards_.front().load()->RejoinWith(*next.report);
  if (next.ends_with) {
    FailThose(Coded(ErrorCode::kResume,
                    absl::UnavailableError(absl::StrCat(
                        "a daemon was lost, and shard ", *next.ends_with,
                        " does not go on without it; allowed: on_coordinator_loss=resume at all "
                        "daemons"))),
              -1);
  }
  End();
}

void ShardExchange::OnGoesOn(const ShardLife& life) {
  if (!Begin()) return;
  {
    MutexLock lock(mutex_);
    life_ = life.number;
  }
  for (std::size_t i = 1; i < shards_.size() && life.number > 0; ++i) {
    if (ClientImpl* const one = shards_[i]) one->Follow(life);
  }
  End();
}

void ShardExchange::OnFailed(std::uint32_t shard, const FailedEffect& effect) {
  if (failed_.exchange(true) || !Begin()) return;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    ClientImpl* const one = shards_[i];
    if (i != shard && one != nullptr) one->FailElsewhere(effect.status, effect.blamed_rank);
  }
  if (on_failed_) on_failed_(effect.status, effect.blamed_rank);
  End();
}

void ShardExchange::FailThose(const absl::Status& status, int blamed_rank) {
  for (const std::atomic<ClientImpl*>& shard : shards_) {
    if (ClientImpl* const one = shard) one->FailElsewhere(status, blamed_rank);
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
