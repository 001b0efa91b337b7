// What one seed of the simulation of sessions with several shards stands for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hooks/draw_buckets.h"
#include "hooks/shard_map.h"
#include "server/core/session_options.h"

namespace gradwire::sim {

// What ends the session before its last step.
enum class ShardFault : std::uint8_t {
  kNone,
  kDeath,   // of a member
  kCutOff,  // a member loses the daemon of one shard for good
  kEvicted  // the owner of one shard's session ends it
};

struct ShardScenario {
  std::uint64_t seed = 0;
  server::SessionOptions options;  // of all shards, but for their places
  std::shared_ptr<const ShardMap> map;
  // By step, then bucket: positions in the manifest. Each member starts them in its own order.
  std::vector<std::vector<std::vector<std::uint32_t>>> steps;
  std::vector<bool> ended;  // by step: whether members end it themselves

  struct NonFinite {
    std::int64_t step = -1;
    int rank = 0;
    std::uint32_t parameter = 0;
    std::size_t element = 0;
  };
  NonFinite nonfinite;
  DrawBuckets draw_plan;  // before draw_plan_step
  std::int64_t draw_plan_step = -1;

  absl::Duration longest_delay;
  absl::Duration longest_thought;  // of a member before its next bucket
  int cut_percent = 0;             // of frames, after which the stream breaks
  ShardFault fault = ShardFault::kNone;
  int fault_rank = -1;  // whose stream it is, or who dies
  std::uint32_t fault_shard = 0;
  std::size_t fault_after = 0;  // events of the run

  std::uint32_t shards() const { return map->shards(); }
  server::SessionOptions OptionsOf(std::uint32_t shard) const;
  std::vector<std::byte> GradientBytes(int rank, std::int64_t step, std::uint32_t parameter) const;
};

ShardScenario MakeShardScenario(std::uint64_t seed);
std::string Describe(const ShardScenario& scenario);

}  // namespace gradwire::sim
