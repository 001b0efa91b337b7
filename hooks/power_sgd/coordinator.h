// PowerSGD's state on the coordinator: the factors of every parameter, the generator that the first
// ones are drawn from, and the iteration.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "hooks/coordinator_hook.h"
#include "hooks/power_sgd/hook.h"
#include "hooks/power_sgd/layout.h"
#include "hooks/power_sgd/options.h"
#include "hooks/power_sgd/torch_random.h"

namespace gradwire {

class PowerSgdCoordinator : public CoordinatorHook {
 public:
  PowerSgdCoordinator(const PowerSgdOptions& options, std::span<const ParameterSpec> manifest);

  absl::StatusOr<std::vector<RoundPlan>> Plan(std::span<const ParameterSpec> bucket) const override;
  std::int64_t log_interval() const override {
    return IsPlain() ? 0 : options_.compression_stats_logging_frequency;
  }

  std::uint64_t SharedEpoch(std::span<const ParameterSpec> bucket) override;
  std::vector<std::byte> SharedState(std::span<const ParameterSpec> bucket) override;
  bool Observes(std::uint32_t round, const Segment& segment) const override;
  void Observe(std::span<const ParameterSpec> bucket, std::uint32_t /*round*/,
               const ElementRange& range, std::span<const std::byte> bytes) override;
  void EndStep(Verdict verdict) override;
  std::int64_t iteration() const override { return iteration_; }

  std::size_t StateBytes() const override;
  std::vector<ParameterReport> Report() const override;
  absl::StatusOr<HookState> Export() const override;
  absl::Status Import(const HookState& state) override;

 private:
  // fp32 factors for all gradients but fp64 ones. Kept as fp64, which holds both exactly.
  struct Factors {
    std::vector<double> q;
    std::vector<double> p;  // with one round per step only
    std::int64_t version = 0;
    std::uint64_t epoch = 0;
    std::vector<std::string> parameters;  // batched: the bucket
  };

  struct Observed {
    std::vector<ParameterSpec> parameters;
    std::vector<double> values;  // the P or Q block
  };

  bool IsPlain() const { return iteration_ < options_.start_powerSGD_iter; }
  bool SendsP() const { return options_.rounds == 1 && SideAt(options_, iteration_) == Side::kP; }

  // The buckets that these parameters were in are no more.
  void ForgetOverlapping(std::span<const ParameterSpec> bucket);

  // As if the step had not been: the next one draws the same.
  void UndoDraws();

  // torch's draw for one bucket: matrix by matrix, or same shapes at once.
  void Draw(std::span<const ParameterSpec> bucket, std::uint32_t seed);

  // What members compute with has the precision of their factors.
  void Keep(const Observed& observed);

  static DType StateDType(DType gradient);
  static void Append(const std::vector<double>& values, DType dtype, std::vector<std::byte>& out);

  absl::Status CheckImport(const HookState& state) const;
  absl::Status ImportBucket(const std::string& name, const std::string& text, Factors& own) const;
  absl::Status ImportTensor(const StateTensor& tensor,
                            std::unordered_map<std::string, Factors>& factors) const;

  const PowerSgdOptions options_;
  const std::vector<ParameterSpec> manifest_;
  const std::unique_ptr<Hook> plain_;
  std::unordered_map<std::string, std::size_t> position_;
  NumpyRandomState generator_;
  std::optional<std::uint32_t> seed_;  // of the factors drawn; none: nothing drawn
  std::uint64_t epoch_ = 0;
  std::int64_t iteration_ = 0;
  std::unordered_map<std::string, Factors> factors_;    // batched: by the bucket's first parameter
  std::unordered_map<std::string, Observed> observed_;  // in this step, likewise

  // What this step's draws took the place of: the generator, if they began with a seed, and a
  // bucket's factors (no parameters: there were none).
  std::optional<NumpyRandomState> generator_before_;
  std::unordered_map<std::string, Factors> replaced_;
};

}  // namespace gradwire
