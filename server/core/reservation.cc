// What a session can make the daemon hold at most.
#include <algorithm>

#include "gradwire/hooks/registry.h"
#include "proto/wire/memory_layout.h"
#include "server/core/bucket_table.h"
#include "server/core/group_flow.h"
#include "server/core/session_options.h"
#include "server/core/state_versions.h"
#include "server/core/wait_log.h"

namespace gradwire::server {
namespace {

// A built-in hook's bucket: tensors as they are, P and Q.
constexpr std::size_t kSegmentsPerBucket = 4;
constexpr std::size_t kBuiltInRounds = 2;
// A hook's own matrices are packed into chunks, of which each two together are more than one full.
constexpr std::size_t kChunksPerFull = 2;
// A step that is over is kept until every member has its results, beside the one that is open.
constexpr std::size_t kSteps = 2;
// What malloc and the tree of buckets add to an object.
constexpr std::size_t kPerObject = 64;

// A parameter's part of its bucket's plan, which the bucket and each round's layout have.
std::size_t PlanBytes(std::size_t rounds) {
  constexpr std::size_t kMatrix = 2 * sizeof(MatrixShape) + sizeof(wire::ChunkLayout::Unit) +
                                  sizeof(ElementRange) + 2 * sizeof(std::size_t);
  return rounds *
         (2 * (sizeof(RoundPlan) + kSegmentsPerBucket * sizeof(Segment)) + kMatrix + kPerObject);
}

std::size_t ManifestBytes(const Manifest& manifest) {
  std::size_t bytes = 0;
  for (const ParameterSpec& parameter : manifest) {
    bytes += sizeof parameter + parameter.name.size() +
             parameter.shape.size() * sizeof(std::int64_t) + kPerObject;
  }
  return bytes;
}

// A draw plan that came, and the one that the hook has.
std::size_t DrawPlanBytes(std::size_t parameters) {
  return 2 * parameters * (sizeof(std::vector<std::uint32_t>) + sizeof(std::uint32_t) + kPerObject);
}

// Every parameter may be a bucket of its own.
std::size_t BookkeepingBytes(const SessionOptions& options) {
  const std::size_t parameters = options.manifest.size();
  const auto members = static_cast<std::size_t>(options.world_size);
  const std::size_t rounds =
      HookRegistry::IsBuiltIn(options.spec.comm_hook) ? kBuiltInRounds : kMaxRounds;
  const std::size_t bucket = Bucket::BytesFor(1, members) + PlanBytes(rounds) + kPerObject +
                             rounds * (Round::BytesFor(0, members) + kPerObject);
  // Contributions are told from repeated ones until their step is over.
  const std::size_t chunks = Round::BytesFor(options.StepChunks(), members) +
                             Round::BytesFor((kSteps - 1) * options.StepChunks(), 0);
  return ManifestBytes(options.manifest) + DrawPlanBytes(parameters) +
         StateVersions::BytesFor(parameters, members) +
         parameters * (2 * sizeof(std::uint32_t) + kSteps * bucket +
                       GroupFlow::BytesForBucket(members) + kPerObject) +
         chunks + WaitLog::BytesFor(members);
}

// The mean of each bucket, which becomes the root's result; and the leaf's client may keep it.
std::size_t UpstreamBytes(const SessionOptions& options) {
  return options.leaf.is_leaf() ? 2 * options.manifest.GradientBytes() : 0;
}

}  // namespace

std::size_t SessionOptions::StepBytes() const {
  const std::size_t extra = HookRegistry::IsBuiltIn(spec.comm_hook) ? 0 : kExtraRoundBytes;
  return kMaxBytesPerGradientByte * manifest.GradientBytes() + open_buckets * extra;
}

std::size_t SessionOptions::StepChunks() const {
  const std::size_t full = StepBytes() / chunk_bytes + 1;
  if (HookRegistry::IsBuiltIn(spec.comm_hook)) {
    return kBuiltInRounds * kChunksPerFull * full + kSegmentsPerBucket * manifest.size();
  }
  return kMaxRounds * (full + manifest.size() + kExtraSegments);
}

std::size_t SessionOptions::PayloadBytes() const {
  const std::size_t window = std::size_t{window_chunks} * open_buckets * chunk_bytes;
  const std::size_t held = std::min(window, StepBytes() + chunk_bytes);
  const auto members = static_cast<std::size_t>(MembersHere());
  // A window from each member, and one of results; a broadcast holds a window of its own. Chunks of
  // an uncompressed gradient bound what a window can hold at all.
  const std::size_t results = std::max(held, ResultBlocks() * wire::BlockStride(BlockBytes()));
  // A leaf's window is of 1024 chunks, more than any root lets its client be behind; and it has a
  // chunk that is not whole.
  const std::size_t broadcast =
      (std::size_t{window_chunks} + (leaf.is_leaf() ? 1 : 0)) * chunk_bytes;
  // Each member's eager contributions, and their results.
  const std::size_t eager = 2 * members * std::min(eager_bytes, StepBytes());
  return held * members + results + broadcast + eager + UpstreamBytes(*this);
}

std::size_t SessionOptions::ReservedBytes() const {
  return PayloadBytes() + BookkeepingBytes(*this);
}

// Each open bucket ends in a chunk of its own.
std::size_t SessionOptions::ResultBlocks() const {
  return std::min(std::size_t{window_chunks} * open_buckets,
                  StepBytes() / chunk_bytes + open_buckets);
}

std::size_t SessionOptions::BlockBytes() const { return std::min(chunk_bytes, StepBytes()); }

std::size_t SessionOptions::StagingBytes() const {
  return ResultBlocks() * wire::BlockStride(chunk_bytes);
}

}  // namespace gradwire::server
