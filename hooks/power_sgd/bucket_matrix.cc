#include "hooks/power_sgd/bucket_matrix.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gradwire {
namespace {

LowRankShape Shape(const LowRankMatrix& matrix) {
  return {.rows = matrix.shape.rows, .cols = matrix.shape.cols, .rank = matrix.rank};
}

}  // namespace

template <class T>
BucketMatrix<T>::BucketMatrix(const PowerSgdOptions& options, Device& device, Side side,
                              const BucketLayout& layout, GradBucket& bucket, MemberState<T>& state)
    : options_(options),
      device_(device),
      side_(side),
      layout_(layout),
      bucket_(bucket),
      state_(state),
      wire_(options.wire.value_or(bucket.buffer().dtype)),
      work_(state.TakeWorkspace()) {}

// The next step reuses the memory, which otherwise would be allocated and page-faulted each time.
template <class T>
BucketMatrix<T>::~BucketMatrix() {
  state_.GiveWorkspace(std::move(work_));
}

template <class T>
const std::string& BucketMatrix<T>::NameOf(const LowRankMatrix& matrix) const {
  return bucket_.parameters()[matrix.parameter].name;
}

// ---- M

// M is built in the bucket itself if the dtype and the size allow it; this saves a copy of the
// gradients. A casting wrapper or a padded square needs memory of its own.
template <class T>
void BucketMatrix<T>::Load() {
  in_place_ = bucket_.buffer().dtype == kDType<T> && layout_.padded_numel == layout_.numel &&
              (bucket_.is_flat() || !options_.batched);
  if (!in_place_) {
    work_->matrix.Resize(layout_.padded_numel);
    T* to = work_->matrix.data();
    for (const TensorView& run : bucket_.runs()) {
      device_.Convert(run.dtype, run.data, kDType<T>, to, run.numel);
      to += run.numel;
    }
    device_.Zero(to, (layout_.padded_numel - layout_.numel) * sizeof(T));
  }
  std::size_t offset = 0;
  for (const TensorView& gradient : bucket_.gradients()) {
    values_.push_back(in_place_ ? static_cast<T*>(gradient.data) : work_->matrix.data() + offset);
    offset += gradient.numel;
  }
  if (options_.batched && KeepsResidual()) LoadPadding();
  work_->p.Resize(layout_.p_numel);
  work_->q.Resize(layout_.q_numel);
}

// A square has up to 2 * sqrt(numel) elements beyond the bucket, which have a residual too. It is
// meaningless for another list of parameters, and its energy is then counted as lost.
template <class T>
void BucketMatrix<T>::LoadPadding() {
  for (const ParameterSpec& parameter : bucket_.parameters()) {
    absl::StrAppend(&padding_bucket_, parameter.name, "\n");
  }
  const PaddingState<T>& padding = state_.padding(bucket_.parameters().front().name);
  if (padding.bucket == padding_bucket_ &&
      padding.residual.size() == layout_.padded_numel - layout_.numel) {
    device_.Copy(values_.front() + layout_.numel, padding.residual.data(),
                 padding.residual.bytes());
    return;
  }
  if (padding.residual.empty()) return;
  ZeroSquares(Squares::kLost);
  device_.low_rank<T>().AddSquares(padding.residual.size(), padding.residual.data(),
                                   SquaresAt(Squares::kLost));
  loses_padding_ = true;
}

// Adds the residuals that MakeP does not add in its pass over M: those of dense tensors, of a
// batched square, and of a one-round step that sends Q and has no such pass.
template <class T>
void BucketMatrix<T>::AddResiduals() {
  if (!KeepsResidual()) return;
  const auto add = [&](std::size_t parameter) {
    const DeviceVector<T>& residual =
        state_.parameter(bucket_.parameters()[parameter].name).residual;
    if (!residual.empty()) {
      device_.low_rank<T>().Add(residual.size(), values_[parameter], residual.data());
    }
  };
  if (options_.batched) {
    for (std::size_t p = 0; p < bucket_.parameters().size(); ++p) add(p);
    return;
  }
  for (const DenseTensor& dense : layout_.dense) add(dense.parameter);
  if (TwoRounds() || side_ == Side::kP) return;
  for (const LowRankMatrix& matrix : layout_.matrices) add(matrix.parameter);
}

template <class T>
void BucketMatrix<T>::Store() {
  if (in_place_) return;
  const T* from = work_->matrix.data();
  for (const TensorView& run : bucket_.runs()) {
    device_.Convert(kDType<T>, from, run.dtype, run.data, run.numel);
    from += run.numel;
  }
}

// ---- Factors

// Orthonormalizes the last step's factors, as torch does for a warm start. Their columns are as
// large as the gradient and may be nearly parallel. With one round, P Q^T is a projection of M only
// because the factor that the step does not send is orthonormal.
template <class T>
void BucketMatrix<T>::Orthonormalize(Side side) {
  std::vector<FactorOperands<T>> factors;
  factors.reserve(layout_.matrices.size());
  for (const LowRankMatrix& matrix : layout_.matrices) {
    const FactorState<T>& kept = state_.factor(NameOf(matrix));
    if (side == Side::kP) {
      factors.push_back({.shape = {matrix.shape.rows, matrix.rank},
                         .from = kept.p.data(),
                         .to = work_->p.data() + matrix.p_offset});
    } else {
      factors.push_back({.shape = {matrix.shape.cols, matrix.rank},
                         .from = kept.q.data(),
                         .to = work_->q.data() + matrix.q_offset});
    }
  }
  device_.low_rank<T>().Orthonormalize(options_.batched ? 0 : options_.orthogonalization_epsilon,
                                       factors);
}

// The kernels read Q by columns of M, so they want each of the `rank` columns contiguous.
template <class T>
void BucketMatrix<T>::TransposeQ(const DeviceVector<T>& block) {
  work_->transposed.Resize(layout_.q_numel);
  std::vector<FactorOperands<T>> factors;
  factors.reserve(layout_.matrices.size());
  for (const LowRankMatrix& matrix : layout_.matrices) {
    factors.push_back({.shape = {matrix.shape.cols, matrix.rank},
                       .from = block.data() + matrix.q_offset,
                       .to = work_->transposed.data() + matrix.q_offset});
  }
  device_.low_rank<T>().Transpose(factors);
}

// P = (M + residual) Q, in one pass over M that also writes the sum back.
template <class T>
void BucketMatrix<T>::MakeP() {
  Orthonormalize(Side::kQ);
  TransposeQ(work_->q);
  std::vector<ProductOperands<T>> products;
  products.reserve(layout_.matrices.size());
  for (const LowRankMatrix& matrix : layout_.matrices) {
    const T* residual = nullptr;
    if (KeepsResidual() && !options_.batched) {
      const DeviceVector<T>& kept = state_.parameter(NameOf(matrix)).residual;
      if (!kept.empty()) residual = kept.data();
    }
    products.push_back({.shape = Shape(matrix),
                        .matrix = values_[matrix.parameter],
                        .residual = residual,
                        .q = work_->transposed.data() + matrix.q_offset,
                        .p = work_->p.data() + matrix.p_offset});
  }
  device_.low_rank<T>().AddAndMultiply(products);
}

// Q = M^T P, for an orthonormal P: with two rounds the coordinator's, with one the last step's.
template <class T>
void BucketMatrix<T>::MakeQ() {
  if (!TwoRounds()) Orthonormalize(Side::kP);
  work_->transposed.Resize(layout_.q_numel);
  std::vector<TransposedOperands<T>> products;
  std::vector<FactorOperands<T>> back;
  products.reserve(layout_.matrices.size());
  back.reserve(layout_.matrices.size());
  for (const LowRankMatrix& matrix : layout_.matrices) {
    T* transposed = work_->transposed.data() + matrix.q_offset;
    products.push_back({.shape = Shape(matrix),
                        .matrix = values_[matrix.parameter],
                        .p = work_->p.data() + matrix.p_offset,
                        .q = transposed});
    // To row-major, as factors are kept and sent.
    back.push_back({.shape = {matrix.rank, matrix.shape.cols},
                    .from = transposed,
                    .to = work_->q.data() + matrix.q_offset});
  }
  device_.low_rank<T>().TransposeMultiply(products);
  device_.low_rank<T>().Transpose(back);
}

// For the local residual: this member's factor, rounded to the wire dtype as the coordinator reads
// it, so that the rounding error is part of the residual.
template <class T>
void BucketMatrix<T>::KeepOwn(Side side) {
  if (options_.error_feedback != ErrorFeedback::kLocal) return;
  const DeviceVector<T>& factor = side == Side::kP ? work_->p : work_->q;
  work_->own.Assign(factor.data(), factor.size());
  device_.low_rank<T>().RoundTo(wire_, work_->own.size(), work_->own.data());
}

// ---- Dense tensors

template <class T>
void BucketMatrix<T>::EncodeDense(ElementRange range, std::byte* out) const {
  for (const DenseTensor& dense : layout_.dense) {
    const std::size_t begin = std::max(range.begin, dense.dense_offset);
    const std::size_t end = std::min(range.end, dense.dense_offset + dense.numel);
    if (begin >= end) continue;
    device_.Convert(kDType<T>, values_[dense.parameter] + (begin - dense.dense_offset), wire_,
                    out + (begin - range.begin) * ByteSize(wire_), end - begin);
  }
}

// Dense tensors have a residual too: what the result leaves out (aggregate), or this member's own
// rounding error on the wire (local).
template <class T>
void BucketMatrix<T>::DecodeDense(ElementRange range, const std::byte* in) {
  for (const DenseTensor& dense : layout_.dense) {
    const std::size_t begin = std::max(range.begin, dense.dense_offset);
    const std::size_t end = std::min(range.end, dense.dense_offset + dense.numel);
    if (begin >= end) continue;
    const std::size_t at = begin - dense.dense_offset;
    ResidualOf of = ResidualOf::kNothing;
    T* residual = nullptr;
    if (KeepsResidual()) {
      DeviceVector<T>& next = state_.parameter(bucket_.parameters()[dense.parameter].name).next;
      next.Resize(dense.numel);
      residual = next.data() + at;
      of = options_.error_feedback == ErrorFeedback::kLocal ? ResidualOf::kWire
                                                            : ResidualOf::kResult;
    }
    device_.low_rank<T>().TakeResults(wire_, in + (begin - range.begin) * ByteSize(wire_),
                                      end - begin, values_[dense.parameter] + at, of, residual);
  }
}

// ---- Result and residuals

template <class T>
T* BucketMatrix<T>::NextResidual(const LowRankMatrix& matrix) {
  if (!KeepsResidual()) return nullptr;
  DeviceVector<T>& next =
      options_.batched ? work_->residual : state_.parameter(NameOf(matrix)).next;
  next.Resize(matrix.shape.numel());
  return next.data();
}

// M becomes P Q^T.
template <class T>
void BucketMatrix<T>::Reconstruct(const DeviceVector<T>& p, const DeviceVector<T>& q,
                                  bool keeps_residual) {
  TransposeQ(q);
  std::vector<ReconstructOperands<T>> products;
  products.reserve(layout_.matrices.size());
  for (const LowRankMatrix& matrix : layout_.matrices) {
    products.push_back({.shape = Shape(matrix),
                        .matrix = values_[matrix.parameter],
                        .p = p.data() + matrix.p_offset,
                        .q = work_->transposed.data() + matrix.q_offset,
                        .residual = keeps_residual ? NextResidual(matrix) : nullptr});
  }
  device_.low_rank<T>().ReconstructAndSubtract(products);
}

template <class T>
void BucketMatrix<T>::Finish() {
  const bool is_local = options_.error_feedback == ErrorFeedback::kLocal;
  if (is_local) {
    // The first pass uses this member's own factor and computes M - P Q^T, the residual. It also
    // overwrites M, so a second pass writes the averaged result.
    const bool own_is_p = !TwoRounds() && side_ == Side::kP;
    Reconstruct(own_is_p ? work_->own : work_->p, own_is_p ? work_->q : work_->own, true);
  }
  Reconstruct(work_->p, work_->q, !is_local);
  if (options_.batched && KeepsResidual()) {
    // The square spans the bucket and its padding. Residuals are kept for each parameter, so that
    // they outlive a new list of buckets.
    const T* from = work_->residual.data();
    for (const ParameterSpec& parameter : bucket_.parameters()) {
      state_.parameter(parameter.name).next.Assign(from, parameter.numel());
      from += parameter.numel();
    }
    state_.padding(bucket_.parameters().front().name)
        .next.Assign(from, layout_.padded_numel - layout_.numel);
  }
}

// A swap leaves the old residual's memory for the next step.
template <class T>
void BucketMatrix<T>::CommitResiduals() {
  if (!KeepsResidual()) return;
  for (const ParameterSpec& parameter : bucket_.parameters()) {
    ParameterState<T>& kept = state_.parameter(parameter.name);
    std::swap(kept.residual, kept.next);
  }
  if (!options_.batched) return;
  PaddingState<T>& padding = state_.padding(bucket_.parameters().front().name);
  std::swap(padding.residual, padding.next);
  padding.bucket = padding_bucket_;
  if (loses_padding_) state_.AddLost(SquaresAt(Squares::kLost));
}

// ---- Norms

template <class T>
void BucketMatrix<T>::ZeroSquares(Squares which) {
  work_->squares.Resize(kSquares);
  device_.Zero(SquaresAt(which), sizeof(double));
}

template <class T>
void BucketMatrix<T>::MeasureGradient() {
  ZeroSquares(Squares::kGradient);
  const auto add = [this](std::size_t numel, const T* values) {
    device_.low_rank<T>().AddSquares(numel, values, SquaresAt(Squares::kGradient));
  };
  if (!in_place_) return add(layout_.numel, values_.front());
  for (const TensorView& run : bucket_.runs()) add(run.numel, static_cast<const T*>(run.data));
}

template <class T>
void BucketMatrix<T>::MeasureResidual() {
  ZeroSquares(Squares::kResidual);
  for (const ParameterSpec& parameter : bucket_.parameters()) {
    const DeviceVector<T>& next = state_.parameter(parameter.name).next;
    device_.low_rank<T>().AddSquares(next.size(), next.data(), SquaresAt(Squares::kResidual));
  }
}

template <class T>
BucketNorms BucketMatrix<T>::Norms() const {
  std::array<double, kSquares> squares{};
  device_.Download(squares.data(), work_->squares.data(), sizeof(squares));
  return {.gradient = std::sqrt(squares[static_cast<std::size_t>(Squares::kGradient)]),
          .residual = std::sqrt(squares[static_cast<std::size_t>(Squares::kResidual)])};
}

template class BucketMatrix<float>;
template class BucketMatrix<double>;

}  // namespace gradwire
