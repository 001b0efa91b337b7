// What a session is: its limits, and what it makes the daemon reserve.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/limits.h"
#include "gradwire/hooks/hook_spec.h"
#include "server/core/manifest.h"

namespace gradwire::server {

// A user's own hook announces its own rounds (at most kMaxRounds); these bound what
// one bucket may ask for.
constexpr std::size_t kMaxBytesPerGradientByte = 2;
constexpr std::size_t kExtraRoundBytes = 4096;
constexpr std::size_t kMaxSegmentsPerParameter = 8;
constexpr std::size_t kExtraSegments = 64;

// What a member asks to join as.
struct JoinAsk {
  int world_size = 0;
  int rank = -1;
  std::uint64_t start_id = 0;
  HookSpec spec;
  Manifest manifest;
};

struct SessionOptions {
  std::string name;
  int world_size = 1;
  HookSpec spec;
  Manifest manifest;
  std::uint64_t generation = 1;  // unique among the sessions of one daemon
  std::uint64_t lineage = 1;
  std::size_t chunk_bytes = std::size_t{1} << 20;
  std::uint32_t window_chunks = 4;
  std::uint32_t open_buckets = 4;
  std::size_t eager_bytes = 0;  // from each member, in buckets that wait for no grant
  absl::Duration join_timeout = absl::Minutes(5);
  absl::Duration step_timeout = absl::Minutes(30);
  absl::Duration token_timeout = absl::Seconds(5);
  absl::Duration resume_grace = absl::Seconds(1);
  absl::Duration silence_timeout = absl::Seconds(15);

  // InvalidArgument names the field, the value and what is allowed.
  absl::Status Validate() const;

  // InvalidArgument names the first thing in which the request differs from the session.
  absl::Status CheckSame(const JoinAsk& ask) const;

  // Upper bound of what the session can make the daemon hold: contributions in the window, results
  // not yet acknowledged, and what the core keeps in order to know of them.
  std::size_t ReservedBytes() const;
  // Of that, payloads: what SessionCore::held_bytes counts.
  std::size_t PayloadBytes() const;
  // Upper bound of a step's bytes, by the manifest.
  std::size_t StepBytes() const;
  // Upper bound of the chunks of a step's buckets, all rounds together.
  std::size_t StepChunks() const;

  // Results that shared memory holds at a time, and the largest one: those of the window, or of the
  // whole model where that is less.
  std::size_t ResultBlocks() const;
  std::size_t BlockBytes() const;

  // What a member that shares memory can have on its way at most.
  std::size_t StagingBytes() const;
};

}  // namespace gradwire::server
