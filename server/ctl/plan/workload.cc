#include "server/ctl/plan/workload.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "hooks/power_sgd/layout.h"
#include "hooks/power_sgd/options.h"
#include "hooks/shard_map.h"

namespace gradwire::ctl {
namespace {

double BytesOf(const std::vector<ParameterSpec>& parameters) {
  double bytes = 0;
  for (const ParameterSpec& one : parameters) {
    bytes += static_cast<double>(one.numel() * ByteSize(one.dtype));
  }
  return bytes;
}

bool IsLowRank(const HookSpec& spec) { return absl::EndsWith(spec.comm_hook, "power_sgd"); }

bool Casts(const HookSpec& spec) {
  return spec.comm_wrapper != "no" || spec.comm_hook == "fp16" || spec.comm_hook == "bf16";
}

// Each matrix is multiplied for P, for Q, and to reconstruct it: 2 operations for each of its
// elements and columns of the factor.
absl::StatusOr<double> LowRankSeconds(const HookSpec& spec,
                                      const std::vector<ParameterSpec>& parameters) {
  const auto options = PowerSgdOptions::FromSpec(spec);
  if (!options.ok()) return options.status();
  double operations = 0;
  for (const LowRankMatrix& matrix : MakeLayout(*options, parameters).matrices) {
    operations += 6 * static_cast<double>(matrix.shape.numel() * matrix.rank);
  }
  return BytesOf(parameters) * kLowRankSecondsPerByte + operations / kLowRankFlopsPerSecond;
}

absl::StatusOr<double> HookSeconds(const HookSpec& spec,
                                   const std::vector<ParameterSpec>& parameters) {
  double seconds = Casts(spec) ? 2 * BytesOf(parameters) * kCastSecondsPerByte : 0;
  if (!IsLowRank(spec)) return seconds;
  const auto low_rank = LowRankSeconds(spec, parameters);
  if (!low_rank.ok()) return low_rank.status();
  return seconds + *low_rank;
}

}  // namespace

Buckets BucketsOf(const std::vector<ParameterSpec>& parameters) {
  Buckets buckets{.count = 0, .largest_share = 0};
  double largest = 0;
  double open = 0;
  double limit = kFirstBucketBytes;
  const auto close = [&] {
    if (open == 0) return;
    ++buckets.count;
    largest = std::max(largest, open);
    open = 0;
    limit = kBucketBytes;
  };
  for (std::size_t left = parameters.size(); left > 0; --left) {
    const ParameterSpec& one = parameters[left - 1];
    open += static_cast<double>(one.numel() * ByteSize(one.dtype));
    if (open >= limit) close();
  }
  close();
  if (buckets.count == 0) return {};
  buckets.largest_share = largest / BytesOf(parameters);
  return buckets;
}

absl::StatusOr<Workload> Workload::Make(const HookSpec& spec,
                                        std::vector<ParameterSpec> parameters) {
  Workload workload(spec, std::move(parameters));
  auto rounds = PlannedRounds(spec, workload.parameters_);
  if (!rounds.ok()) return rounds.status();
  const auto seconds = HookSeconds(spec, workload.parameters_);
  if (!seconds.ok()) return seconds.status();
  workload.cost_ = {.rounds = *std::move(rounds), .compute_seconds = *seconds};
  workload.gradient_bytes_ = BytesOf(workload.parameters_);
  workload.buckets_ = BucketsOf(workload.parameters_);
  workload.computes_first_ = IsLowRank(spec);
  return workload;
}

absl::StatusOr<Workload> Workload::OfElements(const HookSpec& spec, std::uint64_t elements) {
  if (!spec.OnlyCasts() && spec.comm_hook != "noop") {
    return Coded(ErrorCode::kCtlUsage,
                 absl::InvalidArgumentError(absl::StrCat(
                     "hook is \"", spec.ToString(),
                     "\", whose bytes depend on shapes; allowed with a number of parameters are "
                     "no, fp16, bf16 and noop, and with a model's name or shapes every hook")));
  }
  auto workload = Make(
      spec,
      {{.name = "0", .shape = {static_cast<std::int64_t>(elements)}, .dtype = DType::kFloat32}});
  if (!workload.ok()) return workload.status();
  const double count = std::ceil(workload->gradient_bytes_ / kBucketBytes);
  workload->buckets_ = {.count = static_cast<std::size_t>(count), .largest_share = 1 / count};
  return workload;
}

absl::StatusOr<double> Workload::BusiestShardBytes(std::uint32_t shards) const {
  const auto map = ShardMap::Make(spec_, parameters_, shards);
  if (!map.ok()) return map.status();
  const auto all = static_cast<double>(cost_.bytes());
  if (map->has_slices()) return all / shards;
  double most = 0;
  for (std::uint32_t shard = 0; shard < shards; ++shard) {
    std::vector<ParameterSpec> own;
    for (std::uint32_t i = 0; i < parameters_.size(); ++i) {
      if (map->Owns(shard, i)) own.push_back(parameters_[i]);
    }
    if (own.empty()) continue;
    const auto rounds = PlannedRounds(spec_, own);
    if (!rounds.ok()) return rounds.status();
    most = std::max(most, static_cast<double>(StepCost{.rounds = *rounds}.bytes()));
  }
  return most;
}

}  // namespace gradwire::ctl
