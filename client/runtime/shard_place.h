// What a member's runtime with one daemon knows of the others, where a session has several.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/core/effects.h"
#include "client/core/shard_losses.h"
#include "client/memory/gradient_memory.h"
#include "client/runtime/send_window.h"
#include "hooks/shard_map.h"
#include "proto/wire/roster.h"

namespace gradwire::client {

// What shard 0 has begun after a loss, for the others.
struct ShardLife {
  std::uint64_t number = 0;
  std::optional<wire::Roster> roster = {};  // none: all ranks
};

// What happens with this shard, told to the whole member. Called on the runtime's thread; other
// runtimes may be called through their event queues only. Empty functions: one daemon.
struct ShardLink {
  std::function<void(const PreparedEffect& prepared)> prepared = {};
  std::function<void(const StepDoneEffect& done)> concluded = {};
  std::function<void(const FailedEffect& failed)> failed = {};
  // This shard's daemon is lost, and nothing comes from it any more. RejoinWith or Follow is the
  // answer.
  std::function<void(const ShardLoss& loss)> lost = {};
  // Whether the request to gather with this number is still to be answered; and whether this shard
  // has told of a loss that others have not had yet. Those may be overtaken.
  std::function<bool(std::uint64_t number)> is_asked = {};
  std::function<bool()> has_told = {};
  // Shard 0, rejoined, has welcomed this member in this life of the session; 0: it has begun there.
  std::function<void(const ShardLife& life)> goes_on = {};
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
  std::shared_ptr<SendWindow> window = std::make_shared<SendWindow>();  // of all shards
};

}  // namespace gradwire::client
