// The contract of a communication hook. Hooks do no I/O: a hook yields contributions and consumes
// results, and owns no thread, no future and no socket. The client SDK, a leaf daemon and a test
// with four ranks in one loop drive the same object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/hooks/grad_bucket.h"
#include "gradwire/hooks/hook_spec.h"
#include "gradwire/hooks/round_plan.h"

namespace gradwire {

// A hook's state as named tensors with a description: what a checkpoint holds.
struct StateTensor {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;
};
struct HookState {
  std::map<std::string, std::string> metadata{};
  std::vector<StateTensor> tensors{};
};

// Euclidean norms of a bucket's gradient and of the residual that its reduction left behind.
struct BucketNorms {
  double gradient = 0;
  double residual = 0;
};

struct RoundContext {
  int world_size = 1;
  int rank = 0;
  std::int64_t attempt = 0;
};

// One bucket in one step. Calls come from one thread at a time, in this order:
//   Next, then Encode and Decode of every element of the round, until Next returns nullopt;
//   then Commit or Abort. Abort may come at any time and ends the run.
// Within a round, ranges come in any order and may be encoded more than once, until they have been
// decoded once: equal bucket, state and context give equal bytes, so a retry re-encodes and never
// recomputes. A range is decoded exactly once, and only after it has been encoded for the last
// time.
//
// Every call is pure, so that a wrapper, which derives from HookRun, cannot leave one out: a call
// that is added here does not compile until each wrapper forwards it. Other runs derive from
// HookRunBase.
class HookRun {
 public:
  virtual ~HookRun() = default;

  // The plan of the next round, or nullopt when the bucket holds its result.
  virtual absl::StatusOr<std::optional<RoundPlan>> Next(const RoundContext& context) = 0;

  // Writes the range's wire bytes. `out` has exactly range.numel() elements of the segment's dtype.
  virtual absl::Status Encode(ElementRange range, std::span<std::byte> out) = 0;

  // The range of the bucket itself, where Encode does no more than cast it to the segment's dtype,
  // divide by the world size, and round each time: a coordinator that can read the bucket does the
  // same. Empty: it does more. The caller leaves it as it is until the range is decoded; the
  // coordinator may have written the result there before, and then ignores what is encoded again.
  virtual std::span<const std::byte> Raw(ElementRange range) const = 0;

  // Takes the range's result where a coordinator has written it over what Raw gave, as Decode would
  // have. Instead of Decode.
  virtual absl::Status DecodeInPlace(ElementRange range) = 0;

  // Takes the range's result. `in` has exactly range.numel() elements; it may be unaligned.
  virtual absl::Status Decode(ElementRange range, std::span<const std::byte> in) = 0;

  // State that the coordinator keeps for all members (PowerSGD's factors), for a run whose hook
  // does not have it: exactly shared_bytes() bytes, after Next and before the first Encode. A hook
  // keeps what it was given also when the step is skipped.
  virtual std::size_t shared_bytes() const = 0;
  virtual absl::Status Import(std::span<const std::byte> shared) = 0;

  // Asks for norms(), before the first Encode. Costs two passes over the bucket.
  virtual void Measure() = 0;

  // Once Next has returned nullopt. None: not asked for, or the hook keeps no residual.
  virtual std::optional<BucketNorms> norms() const = 0;

  // The step was applied: what this run learned becomes the hook's state.
  virtual void Commit() = 0;

  // The step was skipped or failed: the hook's state stays what it was.
  virtual void Abort() = 0;
};

// A run that encodes into the coordinator's memory, shares no state and measures nothing, unless it
// says otherwise.
class HookRunBase : public HookRun {
 public:
  std::span<const std::byte> Raw(ElementRange /*range*/) const override { return {}; }
  absl::Status DecodeInPlace(ElementRange range) override;
  std::size_t shared_bytes() const override { return 0; }
  absl::Status Import(std::span<const std::byte> shared) override;
  void Measure() override {}
  std::optional<BucketNorms> norms() const override { return std::nullopt; }
};

// A hook with what it keeps between steps, keyed by parameter.
//
// Not thread-safe: all calls, and all calls to its runs, come from one thread at a time. Runs of
// several buckets may be open at once. A run must not outlive its hook.
//
// Every call is pure for the reason that HookRun gives. Hooks that are no wrappers derive from
// HookBase.
class Hook {
 public:
  virtual ~Hook() = default;

  // The rounds that a bucket of these parameters takes in this step. The same for every member, so
  // that the coordinator can compute sizes from the manifest instead of reading them off the wire.
  virtual absl::StatusOr<std::vector<RoundPlan>> Plan(std::span<const ParameterSpec> parameters,
                                                      std::int64_t step) const = 0;

  // Begins one bucket. `bucket` must outlive the run.
  virtual absl::StatusOr<std::unique_ptr<HookRun>> Start(GradBucket& bucket, std::int64_t step) = 0;

  // The step is over and its runs have been committed or aborted.
  virtual void EndStep(Verdict verdict) = 0;

  // What this member alone keeps between steps (PowerSGD's residuals), between two steps. Load
  // refuses a state of another kind or layout by name and then leaves the hook as it was.
  virtual HookState State() const = 0;
  virtual absl::Status LoadState(const HookState& state,
                                 std::span<const ParameterSpec> manifest) = 0;

  // The coordinator's state was replaced: the next runs are given it anew. `iteration` counts the
  // steps applied.
  virtual void Reset(std::int64_t iteration) = 0;

  // Gradients come multiplied by `scale` from now on: residuals follow. Between two steps; finite
  // and positive.
  virtual void SetLossScale(double scale) = 0;
};

// A hook that keeps nothing between steps, unless it says otherwise.
class HookBase : public Hook {
 public:
  void EndStep(Verdict /*verdict*/) override {}
  HookState State() const override { return {}; }
  absl::Status LoadState(const HookState& state, std::span<const ParameterSpec> manifest) override;
  void Reset(std::int64_t /*iteration*/) override {}
  void SetLossScale(double /*scale*/) override {}
};

}  // namespace gradwire
