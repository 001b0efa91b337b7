// What makes the shards of a session one session to its member.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/sync.h"
#include "client/core/shard_losses.h"
#include "client/core/shard_vote.h"
#include "client/runtime/shard_place.h"

namespace gradwire {
class ClientImpl;
}  // namespace gradwire

namespace gradwire::client {

// What the shards' runtimes tell each other, each on its own thread. Events are handed on without
// the lock, because an event queue may handle them at once on this thread.
class ShardExchange {
 public:
  // `failed`: called once, with the first failure; may be empty.
  using Failed = std::function<void(const absl::Status& why, int blamed_rank)>;
  ShardExchange(std::uint32_t shards, std::int64_t step, Failed failed = {})
      : shards_(shards), on_failed_(std::move(failed)), vote_(shards, step), losses_(shards) {}

  // Before the shard's first event. A member that is taken into a session has shard 0's client
  // earlier than the others'; if it loses that meanwhile, it fails.
  void SetShard(std::uint32_t shard, ClientImpl* client) { shards_[shard] = client; }
  // Shard 0 has welcomed this member in this step.
  void BeginAt(std::int64_t step) GRADWIRE_EXCLUDES(mutex_);
  // In which life of the session it has; 0: the session begins.
  std::uint64_t life() GRADWIRE_EXCLUDES(mutex_);
  // Ok until the member has failed.
  absl::Status failure() GRADWIRE_EXCLUDES(mutex_);

  ShardLink LinkOf(std::uint32_t shard);

  // Ends the session on all shards. Before Close.
  void FailAll(const absl::Status& status, int blamed_rank = -1) GRADWIRE_EXCLUDES(mutex_);

  // Nothing is handed on from now on. Whoever hands on something now does not wait for anybody.
  void Close() GRADWIRE_EXCLUDES(mutex_);

 private:
  void OnPrepared(std::uint32_t shard, const PreparedEffect& effect) GRADWIRE_EXCLUDES(mutex_);
  void OnConcluded(const StepDoneEffect& lead) GRADWIRE_EXCLUDES(mutex_);
  // The first loss is everybody's: when all shards have ended, shard 0's next daemon gets a report
  // of all.
  void OnLost(std::uint32_t shard, const ShardLoss& loss) GRADWIRE_EXCLUDES(mutex_);
  void OnGoesOn(const ShardLife& life) GRADWIRE_EXCLUDES(mutex_);
  void OnOutlives() GRADWIRE_EXCLUDES(mutex_);
  // The first failure is everybody's; those that it causes come back here and have no effect.
  void OnFailed(std::uint32_t shard, const FailedEffect& effect) GRADWIRE_EXCLUDES(mutex_);

  // On all shards, of this member alone.
  void FailMember(const absl::Status& status) GRADWIRE_EXCLUDES(mutex_);
  void FailOthers(std::optional<std::uint32_t> shard, const absl::Status& status, int blamed_rank,
                  bool is_told) GRADWIRE_EXCLUDES(mutex_);
  bool Begin() GRADWIRE_EXCLUDES(mutex_);
  void End() GRADWIRE_EXCLUDES(mutex_);

  std::vector<std::atomic<ClientImpl*>> shards_;  // null: not there yet
  const Failed on_failed_;
  std::atomic<bool> failed_ = false;
  Mutex mutex_;
  CondVar idle_;
  ShardVote vote_ GRADWIRE_GUARDED_BY(mutex_);
  ShardLosses losses_ GRADWIRE_GUARDED_BY(mutex_);
  std::uint64_t life_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  bool outlives_ GRADWIRE_GUARDED_BY(mutex_) = false;  // the session, its daemons
  absl::Status failure_ GRADWIRE_GUARDED_BY(mutex_);
  bool closed_ GRADWIRE_GUARDED_BY(mutex_) = false;
  int busy_ GRADWIRE_GUARDED_BY(mutex_) = 0;
};

}  // namespace gradwire::client
