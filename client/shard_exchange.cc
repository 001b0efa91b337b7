#include "client/shard_exchange.h"

#include <cstddef>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "client/client_impl.h"

namespace gradwire::client {

void ShardExchange::SetShards(std::vector<ClientImpl*> shards) {
  MutexLock lock(mutex_);
  shards_ = std::move(shards);
}

ShardLink ShardExchange::LinkOf(std::uint32_t shard) {
  return {.prepared = [this, shard](const PreparedEffect& effect) { OnPrepared(shard, effect); },
          .concluded =
              [this, shard](const StepDoneEffect& effect) {
                if (shard == 0) OnConcluded(effect.verdict);
              },
          .failed = [this, shard](const FailedEffect& effect) { OnFailed(shard, effect); }};
}

void ShardExchange::FailAll(const absl::Status& status, int blamed_rank) {
  if (failed_.exchange(true) || !Begin()) return;
  for (ClientImpl* one : shards_) one->FailElsewhere(status, blamed_rank);
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
    for (ClientImpl* one : shards_) one->FailElsewhere(outcome.status(), -1);
  } else if (*outcome) {
    shards_.front()->SayReady((*outcome)->verdict, (*outcome)->digest);
  }
  End();
}

void ShardExchange::OnConcluded(Verdict verdict) {
  if (!Begin()) return;
  {
    MutexLock lock(mutex_);
    vote_.Conclude();
  }
  for (std::size_t i = 1; i < shards_.size(); ++i) shards_[i]->ConcludeAs(verdict);
  End();
}

void ShardExchange::OnFailed(std::uint32_t shard, const FailedEffect& effect) {
  if (failed_.exchange(true) || !Begin()) return;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    if (i != shard) shards_[i]->FailElsewhere(effect.status, effect.blamed_rank);
  }
  if (on_failed_) on_failed_(effect.status, effect.blamed_rank);
  End();
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
