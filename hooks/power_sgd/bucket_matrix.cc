#include "hooks/power_sgd/bucket_matrix.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "hooks/cpu/low_rank.h"
#include "hooks/power_sgd/column_order.h"

namespace gradwire {
namespace {

constexpr std::size_t kBlock = 1024;  // elements converted at a time

// Sums in fp64, since squares of float gradients exceed float's range from 1.8e19 on. Eight
// independent sums let the compiler vectorize without reordering additions (no -ffast-math).
template <class T>
double SumOfSquares(std::span<const T> values) {
  std::array<double, 8> lanes{};
  std::size_t i = 0;
  for (; i + lanes.size() <= values.size(); i += lanes.size()) {
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      const auto value = static_cast<double>(values[i + lane]);
      lanes[lane] += value * value;
    }
  }
  double sum = std::accumulate(lanes.begin(), lanes.end(), 0.0);
  for (; i < values.size(); ++i) {
    sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  return sum;
}

cpu::LowRankShape Shape(const LowRankMatrix& matrix) {
  return {.rows = matrix.shape.rows, .cols = matrix.shape.cols, .rank = matrix.rank};
}

}  // namespace

template <class T>
BucketMatrix<T>::BucketMatrix(const PowerSgdOptions& options, const Kernels& kernels, Side side,
                              const BucketLayout& layout, GradBucket& bucket, MemberState<T>& state)
    : options_(options),
      kernels_(kernels),
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
  const TensorView buffer = bucket_.buffer();
  const bool in_place = buffer.dtype == kDType<T> && layout_.padded_numel == buffer.numel;
  if (in_place) {
    values_ = static_cast<T*>(buffer.data);
  } else {
    work_->matrix.resize(layout_.padded_numel);
    values_ = work_->matrix.data();
    kernels_.convert(buffer.dtype, static_cast<const std::byte*>(buffer.data), kDType<T>,
                     reinterpret_cast<std::byte*>(values_), buffer.numel);
    std::fill(work_->matrix.begin() + static_cast<std::ptrdiff_t>(buffer.numel),
              work_->matrix.end(), T{0});
  }
  if (options_.batched && KeepsResidual()) LoadPadding();
  work_->p.resize(layout_.p_numel);
  work_->q.resize(layout_.q_numel);
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
    std::copy(padding.residual.begin(), padding.residual.end(), values_ + layout_.numel);
    return;
  }
  for (const T value : padding.residual) {
    lost_ += static_cast<double>(value) * static_cast<double>(value);
  }
}

// Adds the residuals that MakeP does not add in its pass over M: those of dense tensors, of a
// batched square, and of a one-round step that sends Q and has no such pass.
template <class T>
void BucketMatrix<T>::AddResiduals() {
  if (!KeepsResidual()) return;
  const auto add = [&](std::size_t parameter, std::size_t offset) {
    const std::vector<T>& residual =
        state_.parameter(bucket_.parameters()[parameter].name).residual;
    if (!residual.empty())
      kernels_.low_rank<T>().add(residual.size(), values_ + offset, residual.data());
  };
  if (options_.batched) {
    std::size_t offset = 0;
    for (std::size_t p = 0; p < bucket_.parameters().size(); ++p) {
      add(p, offset);
      offset += bucket_.parameters()[p].numel();
    }
    return;
  }
  for (const DenseTensor& dense : layout_.dense) add(dense.parameter, dense.offset);
  if (TwoRounds() || side_ == Side::kP) return;
  for (const LowRankMatrix& matrix : layout_.matrices) add(matrix.parameter, matrix.offset);
}

template <class T>
void BucketMatrix<T>::Store() {
  const TensorView buffer = bucket_.buffer();
  if (values_ == buffer.data) return;
  kernels_.convert(kDType<T>, reinterpret_cast<const std::byte*>(values_), buffer.dtype,
                   static_cast<std::byte*>(buffer.data), buffer.numel);
}

// ---- Factors

// Orthonormalizes the last step's factor, as torch does for a warm start. Its columns are as large
// as the gradient and may be nearly parallel. With one round, P Q^T is a projection of M only
// because the factor that the step does not send is orthonormal.
template <class T>
void BucketMatrix<T>::Orthonormal(const std::vector<T>& factor, MatrixShape shape, T* out) {
  std::vector<double>& precise = work_->precise;
  precise.resize(shape.numel());
  VisitByColumn(shape, [&](std::size_t i, std::size_t at) { precise[at] = factor[i]; });
  kernels_.orthonormalize(shape, options_.batched ? 0 : options_.orthogonalization_epsilon,
                          precise);
  VisitByColumn(shape,
                [&](std::size_t i, std::size_t at) { out[i] = static_cast<T>(precise[at]); });
}

// The kernels read Q by columns of M, so they want each of the `rank` columns contiguous.
template <class T>
void BucketMatrix<T>::Transpose(const LowRankMatrix& matrix, const std::vector<T>& block) {
  work_->transposed.resize(std::max(work_->transposed.size(), matrix.q_numel()));
  const T* from = block.data() + matrix.q_offset;
  T* to = work_->transposed.data();
  for (std::size_t k = 0; k < matrix.rank; ++k) {
    for (std::size_t j = 0; j < matrix.shape.cols; ++j) {
      to[k * matrix.shape.cols + j] = from[j * matrix.rank + k];
    }
  }
}

// P = (M + residual) Q, in one pass over M that also writes the sum back.
template <class T>
void BucketMatrix<T>::MakeP() {
  for (const LowRankMatrix& matrix : layout_.matrices) {
    Orthonormal(state_.factor(NameOf(matrix)).q, {matrix.shape.cols, matrix.rank},
                work_->q.data() + matrix.q_offset);
    Transpose(matrix, work_->q);
    const T* residual = nullptr;
    if (KeepsResidual() && !options_.batched) {
      const std::vector<T>& kept = state_.parameter(NameOf(matrix)).residual;
      if (!kept.empty()) residual = kept.data();
    }
    kernels_.low_rank<T>().add_and_multiply(Shape(matrix), values_ + matrix.offset, residual,
                                            work_->transposed.data(),
                                            work_->p.data() + matrix.p_offset);
  }
}

// Q = M^T P, for an orthonormal P: with two rounds the coordinator's, with one the last step's.
template <class T>
void BucketMatrix<T>::MakeQ() {
  for (const LowRankMatrix& matrix : layout_.matrices) {
    if (!TwoRounds()) {
      Orthonormal(state_.factor(NameOf(matrix)).p, {matrix.shape.rows, matrix.rank},
                  work_->p.data() + matrix.p_offset);
    }
    work_->transposed.resize(std::max(work_->transposed.size(), matrix.q_numel()));
    kernels_.low_rank<T>().transpose_multiply(Shape(matrix), values_ + matrix.offset,
                                              work_->p.data() + matrix.p_offset,
                                              work_->transposed.data());
    // Back to row-major, as factors are kept and sent.
    T* q = work_->q.data() + matrix.q_offset;
    for (std::size_t k = 0; k < matrix.rank; ++k) {
      for (std::size_t j = 0; j < matrix.shape.cols; ++j) {
        q[j * matrix.rank + k] = work_->transposed[k * matrix.shape.cols + j];
      }
    }
  }
}

// For the local residual: this member's factor, rounded to the wire dtype as the coordinator reads
// it, so that the rounding error is part of the residual.
template <class T>
void BucketMatrix<T>::KeepOwn(Side side) {
  if (options_.error_feedback != ErrorFeedback::kLocal) return;
  const std::vector<T>& factor = side == Side::kP ? work_->p : work_->q;
  work_->own = factor;
  if (wire_ == kDType<T>) return;
  std::array<std::byte, kBlock * sizeof(double)> encoded;
  for (std::size_t i = 0; i < factor.size(); i += kBlock) {
    const std::size_t count = std::min(factor.size() - i, kBlock);
    auto* values = reinterpret_cast<std::byte*>(work_->own.data() + i);
    kernels_.convert(kDType<T>, values, wire_, encoded.data(), count);
    kernels_.convert(wire_, encoded.data(), kDType<T>, values, count);
  }
}

// ---- Dense tensors

template <class T>
void BucketMatrix<T>::EncodeDense(ElementRange range, std::byte* out) const {
  for (const DenseTensor& dense : layout_.dense) {
    const std::size_t begin = std::max(range.begin, dense.dense_offset);
    const std::size_t end = std::min(range.end, dense.dense_offset + dense.numel);
    if (begin >= end) continue;
    const T* from = values_ + dense.offset + (begin - dense.dense_offset);
    kernels_.convert(kDType<T>, reinterpret_cast<const std::byte*>(from), wire_,
                     out + (begin - range.begin) * ByteSize(wire_), end - begin);
  }
}

// Dense tensors have a residual too: what the result leaves out (aggregate), or this member's own
// rounding error on the wire (local). The old gradient is needed for it, so both are computed block
// by block before it is overwritten.
template <class T>
void BucketMatrix<T>::DecodeDense(ElementRange range, const std::byte* in) {
  const bool is_local = options_.error_feedback == ErrorFeedback::kLocal;
  std::array<T, kBlock> result;
  std::array<T, kBlock> own;
  std::array<std::byte, kBlock * sizeof(double)> encoded;
  for (const DenseTensor& dense : layout_.dense) {
    std::size_t begin = std::max(range.begin, dense.dense_offset);
    const std::size_t end = std::min(range.end, dense.dense_offset + dense.numel);
    if (begin >= end) continue;
    ParameterState<T>& kept = state_.parameter(bucket_.parameters()[dense.parameter].name);
    if (KeepsResidual()) kept.next.resize(dense.numel);
    while (begin < end) {
      const std::size_t count = std::min(end - begin, kBlock);
      const std::size_t at = begin - dense.dense_offset;
      T* value = values_ + dense.offset + at;
      kernels_.convert(wire_, in + (begin - range.begin) * ByteSize(wire_), kDType<T>,
                       reinterpret_cast<std::byte*>(result.data()), count);
      if (is_local) {  // what the wire's dtype could not say
        kernels_.convert(kDType<T>, reinterpret_cast<const std::byte*>(value), wire_,
                         encoded.data(), count);
        kernels_.convert(wire_, encoded.data(), kDType<T>, reinterpret_cast<std::byte*>(own.data()),
                         count);
      }
      for (std::size_t i = 0; i < count; ++i) {
        if (KeepsResidual()) kept.next[at + i] = value[i] - (is_local ? own[i] : result[i]);
        value[i] = result[i];
      }
      begin += count;
    }
  }
}

// ---- Result and residuals

template <class T>
T* BucketMatrix<T>::NextResidual(const LowRankMatrix& matrix) {
  if (!KeepsResidual()) return nullptr;
  std::vector<T>& next = options_.batched ? work_->residual : state_.parameter(NameOf(matrix)).next;
  next.resize(matrix.shape.numel());
  return next.data();
}

template <class T>
void BucketMatrix<T>::FinishMatrix(const LowRankMatrix& matrix) {
  const cpu::LowRankShape shape = Shape(matrix);
  T* m = values_ + matrix.offset;
  T* residual = NextResidual(matrix);
  const T* p = work_->p.data() + matrix.p_offset;
  if (options_.error_feedback == ErrorFeedback::kLocal) {
    // The first pass uses this member's own factor and computes M - P Q^T, the residual. It also
    // overwrites M, so a second pass writes the averaged result.
    const bool own_is_p = !TwoRounds() && side_ == Side::kP;
    Transpose(matrix, own_is_p ? work_->q : work_->own);
    kernels_.low_rank<T>().reconstruct_and_subtract(
        shape, m, own_is_p ? work_->own.data() + matrix.p_offset : p, work_->transposed.data(),
        residual);
    residual = nullptr;
  }
  Transpose(matrix, work_->q);
  kernels_.low_rank<T>().reconstruct_and_subtract(shape, m, p, work_->transposed.data(), residual);
}

template <class T>
void BucketMatrix<T>::Finish() {
  for (const LowRankMatrix& matrix : layout_.matrices) FinishMatrix(matrix);
  if (options_.batched && KeepsResidual()) {
    // The square spans the bucket and its padding. Residuals are kept for each parameter, so that
    // they outlive a new list of buckets.
    auto from = work_->residual.begin();
    for (const ParameterSpec& parameter : bucket_.parameters()) {
      const auto end = from + static_cast<std::ptrdiff_t>(parameter.numel());
      state_.parameter(parameter.name).next.assign(from, end);
      from = end;
    }
    state_.padding(bucket_.parameters().front().name).next.assign(from, work_->residual.end());
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
  state_.lost += lost_;
}

// ---- Norms

template <class T>
double BucketMatrix<T>::SquaresOfGradient() const {
  return SumOfSquares(std::span<const T>(values_, bucket_.buffer().numel));
}

template <class T>
double BucketMatrix<T>::SquaresOfResidual() const {
  double squares = 0;
  for (const ParameterSpec& parameter : bucket_.parameters()) {
    squares += SumOfSquares(std::span<const T>(state_.parameter(parameter.name).next));
  }
  return squares;
}

template class BucketMatrix<float>;
template class BucketMatrix<double>;

}  // namespace gradwire
