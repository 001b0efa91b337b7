#include "hooks/shard_map.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/limits.h"
#include "hooks/power_sgd/layout.h"
#include "hooks/power_sgd/options.h"

namespace gradwire {
namespace {

absl::Status NotAllowed(const std::string& what) {
  return Coded(ErrorCode::kShards, absl::InvalidArgumentError(what));
}

// What travels of each parameter in a step that compresses.
absl::StatusOr<std::vector<std::size_t>> Weights(const HookSpec& spec,
                                                 std::span<const ParameterSpec> manifest) {
  std::vector<std::size_t> weights;
  weights.reserve(manifest.size());
  if (spec.comm_hook != "power_sgd") {
    for (const ParameterSpec& one : manifest) weights.push_back(one.numel() * ByteSize(one.dtype));
    return weights;
  }
  const absl::StatusOr<PowerSgdOptions> options = PowerSgdOptions::FromSpec(spec);
  if (!options.ok()) return options.status();
  for (std::size_t p = 0; p < manifest.size(); ++p) {
    const BucketLayout layout = MakeLayout(*options, manifest.subspan(p, 1));
    weights.push_back(layout.p_numel + layout.q_numel + layout.dense_numel);
  }
  return weights;
}

}  // namespace

std::vector<std::uint32_t> Balance(std::span<const std::size_t> weights, std::uint32_t bins) {
  std::vector<std::uint32_t> heaviest_first(weights.size());
  std::iota(heaviest_first.begin(), heaviest_first.end(), 0);
  std::stable_sort(heaviest_first.begin(), heaviest_first.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return weights[a] > weights[b]; });
  using Load = std::pair<std::size_t, std::uint32_t>;
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (std::uint32_t bin = 0; bin < bins; ++bin) loads.emplace(0, bin);
  std::vector<std::uint32_t> bin_of(weights.size());
  for (const std::uint32_t i : heaviest_first) {
    const auto [load, bin] = loads.top();
    loads.pop();
    bin_of[i] = bin;
    loads.emplace(load + weights[i], bin);
  }
  return bin_of;
}

absl::StatusOr<ShardMap> ShardMap::Make(const HookSpec& spec,
                                        std::span<const ParameterSpec> manifest,
                                        std::uint32_t shards) {
  if (shards < 1 || shards > kMaxShards) {
    return NotAllowed(absl::StrCat("shards: ", shards, "; allowed: 1 to ", kMaxShards));
  }
  if (shards == 1 || spec.OnlyCasts()) return ShardMap(shards, manifest.size(), {});
  if (spec.comm_hook != "power_sgd" && spec.comm_hook != "no" && spec.comm_hook != "fp16" &&
      spec.comm_hook != "bf16" && spec.comm_hook != "noop") {
    return NotAllowed(absl::StrCat("shards: ", shards, " with hook ", spec.ToString(),
                                   ", which needs whole buckets; allowed: 1"));
  }
  const absl::StatusOr<std::vector<std::size_t>> weights = Weights(spec, manifest);
  if (!weights.ok()) return weights.status();
  return ShardMap(shards, manifest.size(), Balance(*weights, shards));
}

std::size_t ShardMap::ParametersOf(std::uint32_t shard) const {
  if (has_slices()) return parameters_;
  return static_cast<std::size_t>(std::count(owner_.begin(), owner_.end(), shard));
}

}  // namespace gradwire
