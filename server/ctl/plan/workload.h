// What a model's step sends and computes with a hook, for predictions that measure nothing. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/hooks/grad_bucket.h"
#include "gradwire/hooks/hook_spec.h"
#include "server/ctl/doctor/cost.h"

namespace gradwire::ctl {

// Processor seconds of hooks on one core, as tests/bench/net's rows show them: four members on two
// cores, which share the memory. One member alone takes about half of it.
inline constexpr double kCastSecondsPerByte = 0.05e-9;     // of float32, one direction
inline constexpr double kLowRankSecondsPerByte = 0.17e-9;  // residual, copies, reconstruction
inline constexpr double kLowRankFlopsPerSecond = 31e9;     // products of a matrix and a thin one
// Of torch's DistributedDataParallel, which fills its buckets in the reverse order of parameters.
inline constexpr double kFirstBucketBytes = 1 << 20;
inline constexpr double kBucketBytes = 25 << 20;

// How DistributedDataParallel divides a model's gradients.
struct Buckets {
  std::size_t count = 1;
  double largest_share = 1;  // of the model's bytes
};

Buckets BucketsOf(const std::vector<ParameterSpec>& parameters);

// Immutable.
class Workload {
 public:
  // Of float32 parameters with known shapes, once the hook compresses. InvalidArgument as the
  // hook's factory has it.
  static absl::StatusOr<Workload> Make(const HookSpec& spec, std::vector<ParameterSpec> parameters);

  // Of so many float32 elements in unknown shapes. InvalidArgument also for hooks that work on
  // shapes.
  static absl::StatusOr<Workload> OfElements(const HookSpec& spec, std::uint64_t elements);

  // What one member sends in a step, and receives.
  const StepCost& cost() const { return cost_; }
  double gradient_bytes() const { return gradient_bytes_; }
  const Buckets& buckets() const { return buckets_; }
  // Contributions of a bucket need all its gradients first, so that no part of it is under way
  // meanwhile.
  bool computes_first() const { return computes_first_; }

  // Each matrix is one shard's, where there are several; else each shard has a slice of everything.
  bool divides_by_matrix() const { return !spec_.OnlyCasts() && spec_.comm_hook != "noop"; }

  // What a member sends to the shard that gets most. InvalidArgument as ShardMap::Make has it.
  absl::StatusOr<double> BusiestShardBytes(std::uint32_t shards) const;

 private:
  Workload(HookSpec spec, std::vector<ParameterSpec> parameters)
      : spec_(std::move(spec)), parameters_(std::move(parameters)) {}

  HookSpec spec_;
  std::vector<ParameterSpec> parameters_;
  StepCost cost_;
  double gradient_bytes_ = 0;
  Buckets buckets_;
  bool computes_first_ = false;
};

}  // namespace gradwire::ctl
