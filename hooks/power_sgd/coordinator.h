// PowerSGD's state on the coordinator: the factors of every parameter, the generator that the first
// ones are drawn from, and the iteration.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "hooks/coordinator_hook.h"
#include "hooks/power_sgd/bucket_shapes.h"
#include "hooks/power_sgd/draw.h"
#include "hooks/power_sgd/factors.h"
#include "hooks/power_sgd/hook.h"
#include "hooks/power_sgd/options.h"
#include "hooks/power_sgd/session_state.h"
#include "hooks/power_sgd/torch_random.h"

namespace gradwire {

class PowerSgdCoordinator final : public CoordinatorHook {
 public:
  PowerSgdCoordinator(const PowerSgdOptions& options, SharedManifest manifest);

  absl::StatusOr<std::vector<RoundPlan>> Plan(BucketPositions bucket) override;
  absl::Status SetDrawPlan(const DrawBuckets& buckets) override;
  void FixDrawPlan() override;
  bool AwaitsDrawPlan(BucketPositions bucket) const override;
  std::uint64_t SharedVersion(BucketPositions bucket) override;
  std::shared_ptr<SharedStateWork> SharedState(BucketPositions bucket) override;
  bool Observes(std::uint32_t round, const Segment& segment) const override;
  void Observe(BucketPositions bucket, std::uint32_t round, const ElementRange& range,
               std::span<const std::byte> bytes) override;
  std::optional<std::uint32_t> ParameterAt(BucketPositions bucket, std::uint32_t round,
                                           std::size_t segment, std::size_t element) const override;
  void EndStep(Verdict verdict) override;
  std::int64_t iteration() const override { return state_.iteration; }
  bool HasState() const override { return true; }
  std::size_t StateBytes() const override { return state_bytes_; }
  std::size_t ExportBytes() const override;
  std::int64_t log_interval() const override {
    return IsPlain() ? 0 : options_.compression_stats_logging_frequency;
  }
  std::shared_ptr<const HookSnapshot> Snapshot() const override;
  absl::StatusOr<std::shared_ptr<HookImport>> ReadState(const HookState& state) const override;
  void Install(HookImport& import) override;
  HookState OwnState() const override;
  std::uint64_t OwnVersion() const override;
  absl::StatusOr<std::shared_ptr<HookImport>> ReadCopy(HookState copy,
                                                       const OwnsParameter& owns) const override;
  std::shared_ptr<HookChore> TakeChore() override;

 private:
  class Chore;

  // The results of this step for one bucket, as they arrive.
  struct Observed {
    std::shared_ptr<const FactorLayout> layout;
    std::shared_ptr<FactorArray> values;  // the P or Q block
    std::size_t numel = 0;                // elements that have arrived
  };

  bool IsPlain() const { return state_.iteration < options_.start_powerSGD_iter; }
  bool SendsP() const {
    return options_.rounds == 1 && SideAt(options_, state_.iteration) == Side::kP;
  }
  void TakeSeeds();
  std::uint64_t BatchedVersion(const BucketShape& shape);
  std::uint32_t SeedOf(const BucketShape& shape) const;
  FactorBlockRef BlockFrom(const Observed& observed) const;
  void Keep();
  void Undo();
  Chore& OpenChore();

  const std::shared_ptr<const PowerSgdSession> session_;
  const PowerSgdOptions& options_;              // the session's
  const std::vector<ParameterSpec>& manifest_;  // the session's
  const std::size_t state_bytes_;
  std::uint64_t state_version_ = 0;
  BucketShapes shapes_;

  // The state in the open step, and the factors after the last step. They differ by the factors
  // that the open step has drawn.
  PowerSgdState state_;
  FactorTableRef committed_;
  std::optional<NumpyRandomState> generator_before_;  // none: no seed was taken in this step
  // Set by the first draw and not reset by a skipped step: whether a plan arrives before or after
  // the end of that step depends on timing, so accepting one then would not be deterministic.
  bool plan_is_fixed_ = false;
  bool from_file_ = false;  // the state was installed
  std::uint64_t own_version_ = 0;

  std::unordered_map<std::uint32_t, Observed> observed_;  // by first parameter
  std::shared_ptr<Chore> chore_;
};

}  // namespace gradwire
