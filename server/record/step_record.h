// What a recording has of a step, as plain values that were checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/hooks/hook_spec.h"
#include "hooks/pieces.h"
#include "hooks/raw_contributions.h"
#include "proto/wire/frame.h"
#include "server/core/manifest.h"
#include "server/record/record_file.h"

namespace gradwire::server {

struct RecordedStep {
  std::string session;
  std::uint64_t generation = 0;
  std::uint64_t lineage = 0;
  std::int64_t step = 0;
  int world_size = 0;
  HookSpec hook;
  Manifest manifest;
  std::size_t chunk_bytes = 0;
  std::uint32_t shard = 0;
  std::uint32_t shards = 1;
  std::uint64_t chain_before = 0;  // 0: not known
};

struct RecordedBucket {
  std::uint32_t id = 0;
  std::vector<std::uint32_t> parameters;
  std::vector<wire::ChunkLayout> rounds;
  Slice slice;
};

// Refers to the record that it was read from.
struct RecordedReduction {
  wire::RoundId id;
  wire::ChunkLayout::Unit unit;
  Segment segment;     // of the unit
  ElementRange range;  // of the unit, in its round
  double weight = 1;
  std::vector<int> ranks;
  RawContributions raw;
  std::vector<std::span<const std::byte>> inputs;  // by rank's place in `ranks`

  // As Reduce takes them: one piece each.
  std::vector<Pieces> pieces() const;
};

// One result: (bucket, round, chunk), in the order of a step's digest.
struct ResultId {
  std::uint32_t bucket = 0;
  std::uint32_t round = 0;
  std::uint32_t chunk = 0;
  bool operator==(const ResultId&) const = default;
  bool operator<(const ResultId& other) const {
    return std::tie(bucket, round, chunk) < std::tie(other.bucket, other.round, other.chunk);
  }
};

struct RecordedEnd {
  struct Result {
    ResultId id;
    std::uint64_t digest = 0;
  };
  Verdict verdict = Verdict::kApply;
  std::string reason;
  std::uint64_t own_digest = 0;
  std::uint64_t digest = 0;  // of all shards; 0: another one leads
  std::uint64_t chain = 0;   // 0: not known
  std::vector<Result> results;
};

// Is given a step's parts in the order in which the file has them. What it is given is valid by
// itself: buckets are in the model, and a reduction is one of its bucket, with all its bytes.
class StepVisitor {
 public:
  virtual ~StepVisitor() = default;
  virtual void OnStep(RecordedStep step) = 0;
  virtual void OnBucket(const RecordedBucket& bucket) = 0;
  virtual void OnReduction(const RecordedReduction& reduction) = 0;
  virtual void OnEnd(const RecordedEnd& end) = 0;
};

// One record is in memory at a time. DataLoss or InvalidArgument: the record and its field, and
// what is wrong with it.
absl::Status ReadStep(RecordSource& source, StepVisitor& visitor);

}  // namespace gradwire::server
