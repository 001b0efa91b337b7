// Which of a session's shards a daemon is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/mutants.h"
#include "hooks/shard_map.h"

namespace gradwire::server {

// By default: the only one.
struct ShardPlace {
  std::uint32_t number = 0;               // from 0; shard 0 leads
  std::vector<std::string> addresses{};   // of all shards, as members call them; empty: one daemon
  std::shared_ptr<const ShardMap> map{};  // null: one daemon

  // How much later than shard 0 this one declares a member lost. Whoever dies is lost to all shards
  // at once; without this each would have words of its own for it, as its step has come.
  absl::Duration patience() const { return number == 0 ? absl::ZeroDuration() : absl::Seconds(1); }

  std::uint32_t count() const { return map == nullptr ? 1 : map->shards(); }
  bool Owns(std::uint32_t parameter) const {
    return map == nullptr || map->Owns(number, parameter);
  }
  Slice SliceOf(std::uint32_t bucket) const {
    const bool again = number == 1 && IsActive(Mutant::kSliceSentTwice);
    return map == nullptr ? Slice{} : map->SliceOf(bucket, again ? 0 : number);
  }
  // How many of the manifest's parameters are this shard's.
  std::size_t ParametersOf(std::size_t manifest) const {
    return map == nullptr ? manifest : map->ParametersOf(number);
  }
};

}  // namespace gradwire::server
