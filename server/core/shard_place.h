// Which of a session's shards a daemon is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hooks/shard_map.h"

namespace gradwire::server {

// By default: the only one.
struct ShardPlace {
  std::uint32_t number = 0;               // from 0; shard 0 leads
  std::vector<std::string> addresses{};   // of all shards, as members call them; empty: one daemon
  std::shared_ptr<const ShardMap> map{};  // null: one daemon

  std::uint32_t count() const { return map == nullptr ? 1 : map->shards(); }
  bool Owns(std::uint32_t parameter) const {
    return map == nullptr || map->Owns(number, parameter);
  }
  Slice SliceOf(std::uint32_t bucket) const {
    return map == nullptr ? Slice{} : map->SliceOf(bucket, number);
  }
  // How many of the manifest's parameters are this shard's.
  std::size_t ParametersOf(std::size_t manifest) const {
    return map == nullptr ? manifest : map->ParametersOf(number);
  }
};

}  // namespace gradwire::server
