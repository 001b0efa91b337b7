// One bucket in one compressed step.
//
// The protocol of the step: with two rounds P is sent with the uncompressed tensors and comes back
// orthonormal, then Q is sent and comes back as the mean; with one round P and Q alternate between
// steps. The arithmetic is in BucketMatrix. Residuals change only in the commit, factors also in
// Import.
#pragma once

#include <optional>
#include <vector>

#include "hooks/device.h"
#include "hooks/power_sgd/bucket_matrix.h"
#include "hooks/power_sgd/layout.h"
#include "hooks/power_sgd/member_state.h"

namespace gradwire {

template <class T>
class PowerSgdRun : public HookRunBase {
 public:
  // All outlive the run.
  PowerSgdRun(const PowerSgdOptions& options, Device& device, Side side, GradBucket& bucket,
              MemberState<T>& state);

  absl::StatusOr<std::optional<RoundPlan>> Next(const RoundContext& context) override;
  absl::Status Encode(ElementRange range, std::span<std::byte> out) override;
  absl::Status Decode(ElementRange range, std::span<const std::byte> in) override;
  std::size_t shared_bytes() const override;
  absl::Status Import(std::span<const std::byte> shared) override;
  void Measure() override { measures_ = true; }
  std::optional<BucketNorms> norms() const override;
  std::vector<TensorView> residuals() const override;
  void Commit() override;
  void Abort() override { ended_ = true; }

 private:
  enum class Block : std::uint8_t { kDense, kP, kQ };

  absl::Status Check(const ElementRange& range, std::size_t bytes) const;
  Block BlockOf(std::size_t segment) const;
  bool TwoRounds() const { return options_.rounds == 2; }

  bool HasFactors(const LowRankMatrix& matrix) const;
  // Before an import of a bucket that may have other parameters than the factors that are kept.
  void MakeRoomFor(FactorState<T>& factor);
  void Prepare();
  void Finish();

  const PowerSgdOptions& options_;
  Device& device_;
  const Side side_;
  GradBucket& bucket_;
  MemberState<T>& state_;
  const BucketLayout layout_;
  const DType wire_;
  const std::vector<RoundPlan> plans_;
  BucketMatrix<T> matrix_;
  std::size_t round_ = 0;
  std::size_t decoded_ = 0;  // elements of this round
  bool begun_ = false;       // Next was called
  bool prepared_ = false;    // this round's contribution is computed
  bool finished_ = false;
  bool ended_ = false;
  bool measures_ = false;
};

}  // namespace gradwire
