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
#include "gradwire/hooks/slice.h"

namespace gradwire {

// A hook's state as named tensors with metadata, as a checkpoint stores it.
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
  // Of each segment: the elements that are encoded and decoded. Others have the rest of the bucket.
  // Only hooks that cast get less than the whole.
  Slice slice{};
};

// One bucket in one step. Calls come from one thread at a time, in this order:
//   Next, then Encode and Decode of every element of the round that is in the context's slice,
//   until Next returns nullopt;
//   then Commit or Abort. Abort may come at any time and ends the run.
// Within a round, ranges come in any order. A range may be encoded several times: equal bucket,
// state and context give equal bytes, so a retry re-encodes and never recomputes. A range is
// decoded exactly once, after it has been encoded for the last time.
//
// Every function is pure virtual, so that a wrapper, which derives from HookRun, does not compile
// until it forwards each of them. Other runs derive from HookRunBase.
class HookRun {
 public:
  virtual ~HookRun() = default;

  // Returns the plan of the next round, or nullopt when the bucket holds its result.
  virtual absl::StatusOr<std::optional<RoundPlan>> Next(const RoundContext& context) = 0;

  // Writes the range's wire bytes. `out` has exactly range.numel() elements of the segment's dtype.
  virtual absl::Status Encode(ElementRange range, std::span<std::byte> out) = 0;

  // Returns the range of the bucket itself if Encode only casts it to the segment's dtype and
  // divides it by the world size, with a rounding after each: a coordinator that can read the
  // bucket then does so itself. Returns an empty span if Encode does more. The caller does not
  // change the range until it is decoded. The coordinator may write the result there earlier; it
  // then ignores a range that is encoded again.
  virtual std::span<const std::byte> Raw(ElementRange range) const = 0;

  // Replaces Decode if the coordinator has written the range's result over the range that Raw
  // returned.
  virtual absl::Status DecodeInPlace(ElementRange range) = 0;

  // Consumes the range's result. `in` has exactly range.numel() elements and may be unaligned.
  virtual absl::Status Decode(ElementRange range, std::span<const std::byte> in) = 0;

  // Imports the state that the coordinator keeps for all members (PowerSGD's factors) if the hook
  // does not have it: exactly shared_bytes() bytes, after Next and before the first Encode. The
  // hook keeps imported state even if the step is skipped.
  virtual std::size_t shared_bytes() const = 0;
  virtual absl::Status Import(std::span<const std::byte> shared) = 0;

  // Requests norms(). Call it before the first Encode. Costs two passes over the bucket.
  virtual void Measure() = 0;

  // Valid once Next has returned nullopt. nullopt: not requested, or the hook keeps no residual.
  virtual std::optional<BucketNorms> norms() const = 0;

  // The residuals that Commit would leave, one for each parameter of the bucket, and on its device;
  // without data where the hook keeps none. Empty: it keeps none at all, or leaves those that it
  // has as they are. Valid once Next has returned nullopt, until Commit or Abort.
  virtual std::vector<TensorView> residuals() const = 0;

  // The step was applied: the run's new state becomes the hook's state.
  virtual void Commit() = 0;

  // The step was skipped or failed: the hook's state does not change.
  virtual void Abort() = 0;
};

// Defaults for a run that has no raw range, shares no state and measures nothing.
class HookRunBase : public HookRun {
 public:
  std::span<const std::byte> Raw(ElementRange /*range*/) const override { return {}; }
  absl::Status DecodeInPlace(ElementRange range) override;
  std::size_t shared_bytes() const override { return 0; }
  absl::Status Import(std::span<const std::byte> shared) override;
  void Measure() override {}
  std::optional<BucketNorms> norms() const override { return std::nullopt; }
  std::vector<TensorView> residuals() const override { return {}; }
};

// A hook with its state between steps, keyed by parameter.
//
// Not thread-safe: all calls, and all calls to its runs, come from one thread at a time. Runs of
// several buckets may be open at once. A run must not outlive its hook.
//
// Every function is pure virtual for the same reason as in HookRun. Hooks that are not wrappers
// derive from HookBase.
class Hook {
 public:
  virtual ~Hook() = default;

  // Returns the rounds that a bucket of these parameters takes in this step. They are the same for
  // every member, so that the coordinator can compute sizes from the manifest instead of trusting
  // sizes from the wire.
  virtual absl::StatusOr<std::vector<RoundPlan>> Plan(std::span<const ParameterSpec> parameters,
                                                      std::int64_t step) const = 0;

  // Begins one bucket. `bucket` must outlive the run.
  virtual absl::StatusOr<std::unique_ptr<HookRun>> Start(GradBucket& bucket, std::int64_t step) = 0;

  // The step is over and its runs have been committed or aborted.
  virtual void EndStep(Verdict verdict) = 0;

  // State returns this member's own state (PowerSGD's residuals), between two steps. LoadState
  // refuses a state of another kind or layout with the reason and then does not change the hook.
  virtual HookState State() const = 0;
  virtual absl::Status LoadState(const HookState& state,
                                 std::span<const ParameterSpec> manifest) = 0;

  // This member's copy of the state that all share (PowerSGD's factors), as steps that were applied
  // have left it: the same bytes on every member, between two steps. A coordinator that has lost
  // its own takes it back from there.
  virtual HookState Copy() const = 0;

  // The coordinator's state was replaced: the next runs import it again. `iteration` is the number
  // of applied steps.
  virtual void Reset(std::int64_t iteration) = 0;

  // Buckets of these parameters are not this member's any more, or not for a while: it forgets its
  // copy of the state that all share of them, which others keep up to date. Its own state stays.
  // Between two steps. Names that the hook does not know are ignored.
  virtual void Forget(std::span<const std::string> parameters) = 0;

  // From now on the caller multiplies gradients by `scale`; the hook scales its residuals
  // accordingly. Called between two steps; `scale` is finite and positive.
  virtual void SetLossScale(double scale) = 0;
};

// Defaults for a hook that keeps no state between steps.
class HookBase : public Hook {
 public:
  void EndStep(Verdict /*verdict*/) override {}
  HookState State() const override { return {}; }
  HookState Copy() const override { return {}; }
  absl::Status LoadState(const HookState& state, std::span<const ParameterSpec> manifest) override;
  void Reset(std::int64_t /*iteration*/) override {}
  void Forget(std::span<const std::string> /*parameters*/) override {}
  void SetLossScale(double /*scale*/) override {}
};

}  // namespace gradwire
