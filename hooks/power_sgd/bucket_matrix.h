// The matrix M of one bucket in one compressed step, and the passes over it.
//
// M = gradient + residual is computed in the bucket itself, flat or scattered, or, if the bucket
// needs another dtype or padding to a square, in scratch memory. P = M Q and Q = M^T P are computed
// from it; then it becomes P Q^T. The new residual is written beside the old one, which it replaces
// in the commit. Which factor is computed and sent when is PowerSgdRun's.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "hooks/device_vector.h"
#include "hooks/power_sgd/layout.h"
#include "hooks/power_sgd/member_state.h"

namespace gradwire {

// The dtype in which M and the factors are computed.
template <class T>
constexpr DType kDType = std::is_same_v<T, double> ? DType::kFloat64 : DType::kFloat32;

template <class T>
class BucketMatrix {
 public:
  // All outlive it. Takes a workspace of the state, which its end gives back.
  BucketMatrix(const PowerSgdOptions& options, Device& device, Side side,
               const BucketLayout& layout, GradBucket& bucket, MemberState<T>& state);
  ~BucketMatrix();
  BucketMatrix(const BucketMatrix&) = delete;
  BucketMatrix& operator=(const BucketMatrix&) = delete;

  // In this order, and Load first: M is the gradient after Load, and gradient + residual after
  // AddResiduals and MakeP.
  void Load();
  void AddResiduals();
  void MakeP();
  void MakeQ();
  // Local error feedback: keeps this member's own factor. Call before results are decoded over it.
  void KeepOwn(Side side);
  // M becomes P Q^T, and M - P Q^T the next residual.
  void Finish();
  // Writes M back to a bucket that it does not lie in.
  void Store();
  // The next residuals become the residuals.
  void CommitResiduals();

  // The block of dense tensors on the wire. Decoding overwrites M and writes the next residual.
  void EncodeDense(ElementRange range, std::byte* out) const;
  void DecodeDense(ElementRange range, const std::byte* in);

  void MeasureGradient();  // after Load, before AddResiduals
  void MeasureResidual();  // after Finish
  // Waits for the device.
  BucketNorms Norms() const;

  // All factors of the bucket, row-major, as the layout places them.
  DeviceVector<T>& p() { return work_->p; }
  DeviceVector<T>& q() { return work_->q; }
  bool KeepsResidual() const { return options_.error_feedback != ErrorFeedback::kNone; }
  const std::string& NameOf(const LowRankMatrix& matrix) const;

 private:
  bool TwoRounds() const { return options_.rounds == 2; }
  void LoadPadding();
  // Writes the last step's factors to the P or the Q block, with orthonormal columns.
  void Orthonormalize(Side side);
  // work_->transposed = the Q block or, local error feedback, a block of the same layout.
  void TransposeQ(const DeviceVector<T>& block);
  void Reconstruct(const DeviceVector<T>& p, const DeviceVector<T>& q, bool keeps_residual);
  double* SquaresAt(Squares which) { return work_->squares.data() + static_cast<int>(which); }
  void ZeroSquares(Squares which);
  // Where the new residual of `matrix` goes; null: nowhere.
  T* NextResidual(const LowRankMatrix& matrix);

  const PowerSgdOptions& options_;
  Device& device_;
  const Side side_;
  const BucketLayout& layout_;
  GradBucket& bucket_;
  MemberState<T>& state_;
  const DType wire_;
  std::unique_ptr<Workspace<T>> work_;
  std::vector<T*> values_;      // M, by parameter. A square follows the first one in one piece
  bool in_place_ = false;       // M lies in the bucket's own memory, not in work_->matrix
  std::string padding_bucket_;  // batched: the bucket that the padding's residual belongs to
  bool loses_padding_ = false;  // Squares::kLost is that of a discarded padding residual
};

}  // namespace gradwire
