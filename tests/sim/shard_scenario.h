// What one seed of the simulation of sessions with several shards, and with leaf daemons, stands
// for.
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
  kDeath,      // of a trainer
  kCutOff,     // a member loses the daemon of one shard for good, or a leaf's trainer its leaf
  kEvicted,    // the owner of one daemon's session ends it
  kLeafDeath,  // of a leaf daemon
  kAbsent,     // a trainer dies before its session has begun
  kQuit        // a trainer leaves before its last step
};

// What contributes once to the root's session: a leaf daemon with its trainers, or a trainer there.
struct ShardGroup {
  int first = 0;  // rank
  int ranks = 1;
  bool leaf = false;

  bool Has(int rank) const { return rank >= first && rank < first + ranks; }
  std::string name() const;  // of the leaf
};

struct ShardScenario {
  std::uint64_t seed = 0;
  server::SessionOptions options;  // of all shards, but for their places
  std::vector<ShardGroup> groups;  // by their first ranks
  std::size_t leaf_chunk_bytes = 64;
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
  std::int64_t barrier_step = -1;  // before this one all members enter a barrier
  struct Broadcast {
    int root = 0;
    std::size_t bytes = 0;
  };
  std::vector<Broadcast> broadcasts;  // one after another, before broadcast_step
  std::int64_t broadcast_step = -1;

  absl::Duration longest_delay;
  absl::Duration longest_thought;  // of a member before its next bucket
  int cut_percent = 0;             // of frames, after which the stream breaks
  ShardFault fault = ShardFault::kNone;
  int fault_rank = -1;  // whose stream it is, or who dies
  std::uint32_t fault_shard = 0;
  int fault_leaf = -1;            // group whose daemon or client it is; -1: the fault is no leaf's
  std::size_t fault_after = 0;    // events of the run
  std::int64_t fault_before = 0;  // step; of kQuit

  std::uint32_t shards() const { return map->shards(); }
  bool has_leaves() const;
  std::size_t GroupOf(int rank) const;
  server::SessionOptions OptionsOf(std::uint32_t shard) const;
  server::SessionOptions OptionsOfLeaf(std::size_t group) const;
  std::vector<std::byte> GradientBytes(int rank, std::int64_t step, std::uint32_t parameter) const;
};

// Every rank is a trainer at the root.
ShardScenario MakeShardScenario(std::uint64_t seed);
// Up to three leaves with up to three trainers each, and trainers at the root.
ShardScenario MakeLeafScenario(std::uint64_t seed);
std::string Describe(const ShardScenario& scenario);

}  // namespace gradwire::sim
