#include "server/session/cpu_reducer.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <thread>
#include <utility>

#include "server/rpc/clock.h"
#include "server/session/reduced_chunk.h"

namespace gradwire::server {
namespace {

// Chunks in one part. Results of a part are released together, so members receive a large bucket
// while the rest of it is being reduced.
constexpr std::size_t kSumsAtOnce = 32;

std::size_t BytesOf(std::span<const ReduceEffect> reductions) {
  std::size_t bytes = 0;
  for (const ReduceEffect& sum : reductions) bytes += sum.segment.bytes() * sum.inputs.size();
  return bytes;
}

}  // namespace

std::size_t CpuReducer::ThreadCount() {
  constexpr unsigned kMost = 8;
  // One less, because the thread that calls Run computes too.
  return std::clamp(std::thread::hardware_concurrency(), 1U, kMost) - 1;
}

void CpuReducer::Reduce(std::vector<ReduceEffect> batch, std::shared_ptr<SessionMemory> memory,
                        Answer answer) {
  for (std::span<ReduceEffect> rest = batch; !rest.empty();) {
    const std::span<ReduceEffect> part = rest.first(std::min(rest.size(), kSumsAtOnce));
    rest = rest.subspan(part.size());
    answer(Compute(part, *memory));
  }
}

// Yields leadership once for the whole part, so that another thread polls while this one sums.
std::vector<Reducer::Done> CpuReducer::Compute(std::span<ReduceEffect> reductions,
                                               SessionMemory& memory) {
  if (BytesOf(reductions) > kQuickSums) before_long_work_();
  std::vector<Done> done(reductions.size());
  threads_.Run(reductions.size(), [&](std::size_t i) {
    const absl::Time before = MonotonicNow();
    ReducedChunk::Outcome sum = ReducedChunk::Compute(reductions[i], memory);
    done[i] = {.id = reductions[i].id,
               .chunk = reductions[i].chunk,
               .result = sum.chunk,
               .outcome = std::move(sum.reduced),
               .spent = MonotonicNow() - before};
    // Frees the members' buffers before gRPC needs memory for the results.
    reductions[i].inputs.clear();
  });
  return done;
}

}  // namespace gradwire::server
