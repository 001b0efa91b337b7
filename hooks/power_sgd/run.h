// One bucket in one compressed step.
//
// M = gradient + residual is computed in the bucket itself or, if the bucket needs another dtype or
// padding to a square, in scratch memory. P = M Q is sent with the uncompressed tensors and comes
// back orthonormal; Q = M^T P is sent and comes back as the mean; then M becomes P Q^T. The new
// residual is written beside the old one, which it replaces in the commit.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hooks/kernels.h"
#include "hooks/power_sgd/layout.h"
#include "hooks/power_sgd/member_state.h"

namespace gradwire {

template <class T>
class PowerSgdRun : public HookRunBase {
 public:
  // All outlive the run.
  PowerSgdRun(const PowerSgdOptions& options, const Kernels& kernels, Side side, GradBucket& bucket,
              MemberState<T>& state);
  ~PowerSgdRun() override;

  absl::StatusOr<std::optional<RoundPlan>> Next(const RoundContext& context) override;
  absl::Status Encode(ElementRange range, std::span<std::byte> out) override;
  absl::Status Decode(ElementRange range, std::span<const std::byte> in) override;
  std::size_t shared_bytes() const override;
  absl::Status Import(std::span<const std::byte> shared) override;
  void Measure() override { measures_ = true; }
  std::optional<BucketNorms> norms() const override { return norms_; }
  void Commit() override;
  void Abort() override { ended_ = true; }

 private:
  enum class Block : std::uint8_t { kDense, kP, kQ };

  absl::Status Check(const ElementRange& range, std::size_t bytes) const;
  Block BlockOf(std::size_t segment) const;
  bool TwoRounds() const { return options_.rounds == 2; }

  void Prepare();
  void KeepOwn(const std::vector<T>& factor);
  void LoadBucket();
  void LoadPadding();
  void AddResiduals();
  void Orthonormal(const std::vector<T>& factor, MatrixShape shape, T* out);
  void MakeP();
  void MakeQ();
  void Finish();
  void MeasureResidual();
  void FinishMatrix(const LowRankMatrix& matrix);
  void StoreBucket();
  void EncodeDense(ElementRange range, std::byte* out) const;
  void DecodeDense(ElementRange range, const std::byte* in);

  bool KeepsResidual() const { return options_.error_feedback != ErrorFeedback::kNone; }
  const std::string& NameOf(const LowRankMatrix& matrix) const;
  bool HasFactors(const LowRankMatrix& matrix) const;
  // Where the new residual of `matrix` goes; null: nowhere.
  T* NextResidual(const LowRankMatrix& matrix);
  void Transpose(const LowRankMatrix& matrix, const std::vector<T>& block);

  const PowerSgdOptions& options_;
  const Kernels& kernels_;
  const Side side_;
  GradBucket& bucket_;
  MemberState<T>& state_;
  const BucketLayout layout_;
  const DType wire_;
  const std::vector<RoundPlan> plans_;
  std::unique_ptr<Workspace<T>> work_;
  T* matrix_ = nullptr;         // M: the bucket's own memory, or work_->matrix
  std::string padding_bucket_;  // batched: the bucket that the padding's residual belongs to
  double lost_ = 0;             // sum of squares of a discarded padding residual
  std::size_t round_ = 0;
  std::size_t decoded_ = 0;  // elements of this round
  bool begun_ = false;       // Next was called
  bool prepared_ = false;    // this round's contribution is computed
  bool finished_ = false;
  bool ended_ = false;
  bool measures_ = false;
  double gradient_squares_ = 0;
  std::optional<BucketNorms> norms_;
};

}  // namespace gradwire
