// A member's part in the end of a step with several shards: it combines what the shards say about
// their results, and says what all of them come to.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "client/core/effects.h"

namespace gradwire::client {

// Of the open step, whichever it is: shards are in the same one until Conclude. Not thread-safe.
class ShardVote {
 public:
  struct Outcome {
    Verdict verdict = Verdict::kApply;
    std::uint64_t digest = 0;
  };

  explicit ShardVote(std::uint32_t shards, std::int64_t step = 0)
      : prepared_(shards), step_(step) {}

  // The shard has sent all its results. Returns what to say to shard 0 when all have; a repeat says
  // nothing. Internal: the shard now says something else.
  absl::StatusOr<std::optional<Outcome>> OnPrepared(std::uint32_t shard,
                                                    const PreparedEffect& prepared);

  // Before the first event.
  void BeginAt(std::int64_t step) { step_ = step; }

  // Shard 0 has concluded this step: the open one, or a later one, where the member is new.
  void Conclude(std::int64_t step);
  // The shards were lost: what they said of the open step is void.
  void Restart();

  std::int64_t step() const { return step_; }
  // Shards whose results are not all here.
  std::vector<std::uint32_t> Missing() const;

 private:
  std::vector<std::optional<PreparedEffect>> prepared_;  // by shard
  std::int64_t step_;
};

}  // namespace gradwire::client
