// What a member's runtime with one daemon knows of the others, where a session has several.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/core/effects.h"
#include "client/memory/gradient_memory.h"
#include "hooks/shard_map.h"

namespace gradwire::client {

// What happens with this shard, told to the whole member. Called on the runtime's thread; other
// runtimes may be called through their event queues only. Empty functions: one daemon.
struct ShardLink {
  std::function<void(const PreparedEffect& prepared)> prepared = {};
  std::function<void(const StepDoneEffect& done)> concluded = {};
  std::function<void(const FailedEffect& failed)> failed = {};
};

// By default: the only one.
struct ShardPlace {
  std::uint32_t number = 0;                 // from 0; shard 0 leads
  std::vector<std::string> addresses = {};  // of all shards; empty: one daemon
  std::shared_ptr<const ShardMap> map = {};
  ShardLink link = {};
  int ranks = 1;  // that the member stands for: more, if it is a leaf daemon
  // Of all shards of the member: whichever daemons are on this host map the same gradients, and
  // each writes its own part of a result there. Null: the runtime's own.
  std::shared_ptr<GradientMemory> gradients = {};
};

}  // namespace gradwire::client
