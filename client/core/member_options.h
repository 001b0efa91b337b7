// What a member knows about its session after the join.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutants.h"
#include "hooks/device.h"
#include "hooks/ledger_hook.h"
#include "hooks/shard_map.h"
#include "proto/wire/frame.h"
#include "proto/wire/send_priority.h"

namespace gradwire::client {

struct MemberOptions {
  int rank = 0;
  int ranks = 1;  // that the member stands for, from `rank` on: more, if it is a leaf daemon
  int world_size = 1;
  std::uint64_t generation = 1;
  std::int64_t step = 0;
  std::size_t chunk_bytes = std::size_t{1} << 20;
  std::uint32_t window_chunks = 4;
  std::size_t eager_bytes = 0;
  bool draw_plan = false;          // the daemon takes one
  bool parameter_digests = false;  // and these
  // Its daemon is one of the session's shards, and gets the buckets, or slices of them, that are
  // this shard's. Null: one daemon.
  std::uint32_t shard = 0;
  std::shared_ptr<const ShardMap> shards{};
  std::size_t large_chunk_bytes = wire::kSmallPayload + 1;
  std::vector<ParameterSpec> manifest;
  // In sessions that outlive their daemon: copies of the open step's gradients lie on `device`, so
  // that it can be reduced again. Also where they are not asked for, if the session needs them.
  bool keep_gradients = false;
  std::shared_ptr<Device> device{};  // null: nothing is kept
  LedgerHook* ledger = nullptr;      // the member's hook; null: the session has no ledger
  // Others may go on without this member's gradients before its trainer has begun the step. Only if
  // the hook keeps nothing between steps, which the trainer may read or scale there.
  bool misses_early = false;

  bool has_shards() const { return shards != nullptr && shards->shards() > 1; }
  Slice SliceOf(std::uint32_t bucket) const {
    const bool again = shard == 1 && IsActive(Mutant::kSliceSentTwice);
    return has_shards() ? shards->SliceOf(bucket, again ? 0 : shard) : Slice{};
  }
};

}  // namespace gradwire::client
