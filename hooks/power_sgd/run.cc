#include "hooks/power_sgd/run.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "hooks/cpu/low_rank.h"
#include "hooks/power_sgd/column_order.h"

namespace gradwire {
namespace {

template <class T>
constexpr DType kDType = std::is_same_v<T, double> ? DType::kFloat64 : DType::kFloat32;

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
PowerSgdRun<T>::PowerSgdRun(const PowerSgdOptions& options, const Kernels& kernels, Side side,
                            GradBucket& bucket, MemberState<T>& state)
    : options_(options),
      kernels_(kernels),
      side_(side),
      bucket_(bucket),
      state_(state),
      layout_(MakeLayout(options, bucket.parameters())),
      wire_(options.wire.value_or(bucket.buffer().dtype)),
      plans_(PlanRounds(options, layout_, wire_, side)),
      work_(state.TakeWorkspace()) {}

// The next run reuses the memory, which otherwise would be allocated and page-faulted in each step.
template <class T>
PowerSgdRun<T>::~PowerSgdRun() {
  state_.GiveWorkspace(std::move(work_));
}

template <class T>
const std::string& PowerSgdRun<T>::NameOf(const LowRankMatrix& matrix) const {
  return bucket_.parameters()[matrix.parameter].name;
}

template <class T>
absl::StatusOr<std::optional<RoundPlan>> PowerSgdRun<T>::Next(const RoundContext& /*context*/) {
  if (ended_) return absl::FailedPreconditionError("the run has ended");
  if (begun_ && !finished_) {
    const RoundPlan& plan = plans_[round_];
    std::size_t numel = 0;
    for (const Segment& segment : plan.segments) numel += segment.numel;
    if (decoded_ < numel) {
      return absl::FailedPreconditionError(absl::StrCat("the round is not over: ", decoded_, " of ",
                                                        numel, " elements are decoded"));
    }
    ++round_;
    prepared_ = false;
    decoded_ = 0;
  }
  begun_ = true;
  if (round_ < plans_.size()) return std::optional<RoundPlan>(plans_[round_]);
  if (!finished_ && !plans_.empty()) Finish();
  finished_ = true;
  return std::optional<RoundPlan>();
}

template <class T>
typename PowerSgdRun<T>::Block PowerSgdRun<T>::BlockOf(std::size_t segment) const {
  if (round_ == 1) return Block::kQ;
  if (segment == 0 && layout_.dense_numel > 0) return Block::kDense;
  return TwoRounds() || side_ == Side::kP ? Block::kP : Block::kQ;
}

template <class T>
absl::Status PowerSgdRun<T>::Check(const ElementRange& range, std::size_t bytes) const {
  if (!begun_ || finished_ || ended_) return absl::FailedPreconditionError("no round is open");
  const std::vector<Segment>& segments = plans_[round_].segments;
  if (range.segment >= segments.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "segment: ", range.segment, " is not in the round; allowed: 0 to ", segments.size() - 1));
  }
  const Segment& segment = segments[range.segment];
  if (range.begin > range.end || range.end > segment.numel ||
      bytes != range.numel() * ByteSize(segment.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "range: [", range.begin, ", ", range.end, ") with ", bytes,
        " bytes does not fit the segment's ", segment.numel, " elements of ", Name(segment.dtype)));
  }
  return absl::OkStatus();
}

// ---- Shared state

// A factor that is not here is empty. Batched factors fit only the list of parameters that they
// were computed from.
template <class T>
bool PowerSgdRun<T>::HasFactors(const LowRankMatrix& matrix) const {
  const FactorState<T>& factor = state_.factor(NameOf(matrix));
  if (factor.q.size() != matrix.q_numel()) return false;
  if (!TwoRounds() && factor.p.size() != matrix.p_numel()) return false;
  if (!options_.batched) return true;
  const std::vector<ParameterSpec>& here = bucket_.parameters();
  return std::equal(here.begin(), here.end(), factor.parameters.begin(), factor.parameters.end(),
                    [](const ParameterSpec& p, const std::string& name) { return p.name == name; });
}

template <class T>
std::size_t PowerSgdRun<T>::shared_bytes() const {
  return (layout_.q_numel + (TwoRounds() ? 0 : layout_.p_numel)) * sizeof(T);
}

// Sets factors before the commit, as the coordinator's are authoritative: a step that fails does
// not undo them, and the coordinator sends them again if they change.
template <class T>
absl::Status PowerSgdRun<T>::Import(std::span<const std::byte> shared) {
  if (shared.size() != shared_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shared state: ", shared.size(), " bytes given; the bucket takes ", shared_bytes()));
  }
  if (prepared_ || round_ > 0) {
    return absl::FailedPreconditionError("shared state came after the first bytes were encoded");
  }
  const std::byte* from = shared.data();
  const auto take = [&](std::size_t numel, std::vector<T>& factor) {
    factor.resize(numel);
    std::memcpy(factor.data(), from, numel * sizeof(T));
    from += numel * sizeof(T);
  };
  for (const LowRankMatrix& matrix : layout_.matrices) {
    FactorState<T>& factor = state_.factor(NameOf(matrix));
    take(matrix.q_numel(), factor.q);
    if (!TwoRounds()) take(matrix.p_numel(), factor.p);
    factor.parameters.clear();
    if (!options_.batched) continue;
    for (const ParameterSpec& p : bucket_.parameters()) factor.parameters.push_back(p.name);
  }
  return absl::OkStatus();
}

// ---- Contributions

// M is built in the bucket itself if the dtype and the size allow it; this saves a copy of the
// gradients. A casting wrapper or a padded square needs memory of its own.
template <class T>
void PowerSgdRun<T>::LoadBucket() {
  const TensorView buffer = bucket_.buffer();
  const bool in_place = buffer.dtype == kDType<T> && layout_.padded_numel == buffer.numel;
  if (in_place) {
    matrix_ = static_cast<T*>(buffer.data);
  } else {
    work_->matrix.resize(layout_.padded_numel);
    matrix_ = work_->matrix.data();
    kernels_.convert(buffer.dtype, static_cast<const std::byte*>(buffer.data), kDType<T>,
                     reinterpret_cast<std::byte*>(matrix_), buffer.numel);
    std::fill(work_->matrix.begin() + static_cast<std::ptrdiff_t>(buffer.numel),
              work_->matrix.end(), T{0});
  }
  if (options_.batched && KeepsResidual()) LoadPadding();
}

// A square has up to 2 * sqrt(numel) elements beyond the bucket, which have a residual too. It is
// meaningless for another list of parameters, and its energy is then counted as lost.
template <class T>
void PowerSgdRun<T>::LoadPadding() {
  for (const ParameterSpec& parameter : bucket_.parameters()) {
    absl::StrAppend(&padding_bucket_, parameter.name, "\n");
  }
  const PaddingState<T>& padding = state_.padding(bucket_.parameters().front().name);
  if (padding.bucket == padding_bucket_ &&
      padding.residual.size() == layout_.padded_numel - layout_.numel) {
    std::copy(padding.residual.begin(), padding.residual.end(), matrix_ + layout_.numel);
    return;
  }
  for (const T value : padding.residual) {
    lost_ += static_cast<double>(value) * static_cast<double>(value);
  }
}

// Adds the residuals that MakeP does not add in its pass over M: those of dense tensors, of a
// batched square, and of a one-round step that sends Q and has no such pass.
template <class T>
void PowerSgdRun<T>::AddResiduals() {
  if (!KeepsResidual()) return;
  const auto add = [&](std::size_t parameter, std::size_t offset) {
    const std::vector<T>& residual =
        state_.parameter(bucket_.parameters()[parameter].name).residual;
    if (!residual.empty())
      kernels_.low_rank<T>().add(residual.size(), matrix_ + offset, residual.data());
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

// Orthonormalizes the last step's factor, as torch does for a warm start. Its columns are as large
// as the gradient and may be nearly parallel. With one round, P Q^T is a projection of M only
// because the factor that the step does not send is orthonormal.
template <class T>
void PowerSgdRun<T>::Orthonormal(const std::vector<T>& factor, MatrixShape shape, T* out) {
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
void PowerSgdRun<T>::Transpose(const LowRankMatrix& matrix, const std::vector<T>& block) {
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
void PowerSgdRun<T>::MakeP() {
  for (const LowRankMatrix& matrix : layout_.matrices) {
    Orthonormal(state_.factor(NameOf(matrix)).q, {matrix.shape.cols, matrix.rank},
                work_->q.data() + matrix.q_offset);
    Transpose(matrix, work_->q);
    const T* residual = nullptr;
    if (KeepsResidual() && !options_.batched) {
      const std::vector<T>& kept = state_.parameter(NameOf(matrix)).residual;
      if (!kept.empty()) residual = kept.data();
    }
    kernels_.low_rank<T>().add_and_multiply(Shape(matrix), matrix_ + matrix.offset, residual,
                                            work_->transposed.data(),
                                            work_->p.data() + matrix.p_offset);
  }
}

// Q = M^T P, for an orthonormal P: with two rounds the coordinator's, with one the last step's.
template <class T>
void PowerSgdRun<T>::MakeQ() {
  for (const LowRankMatrix& matrix : layout_.matrices) {
    if (!TwoRounds()) {
      Orthonormal(state_.factor(NameOf(matrix)).p, {matrix.shape.rows, matrix.rank},
                  work_->p.data() + matrix.p_offset);
    }
    work_->transposed.resize(std::max(work_->transposed.size(), matrix.q_numel()));
    kernels_.low_rank<T>().transpose_multiply(Shape(matrix), matrix_ + matrix.offset,
                                              work_->p.data() + matrix.p_offset,
                                              work_->transposed.data());
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
void PowerSgdRun<T>::KeepOwn(const std::vector<T>& factor) {
  if (options_.error_feedback != ErrorFeedback::kLocal) return;
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

// Computes this round's contribution, once: a retry encodes the same factors again.
template <class T>
void PowerSgdRun<T>::Prepare() {
  prepared_ = true;
  if (round_ == 1) {
    MakeQ();
    return KeepOwn(work_->q);
  }
  LoadBucket();
  if (measures_) {
    gradient_squares_ = SumOfSquares(std::span<const T>(matrix_, bucket_.buffer().numel));
  }
  AddResiduals();
  work_->p.resize(layout_.p_numel);
  work_->q.resize(layout_.q_numel);
  if (TwoRounds() || side_ == Side::kP) {
    MakeP();
  } else {
    MakeQ();
  }
  if (!TwoRounds()) KeepOwn(side_ == Side::kP ? work_->p : work_->q);
}

template <class T>
absl::Status PowerSgdRun<T>::Encode(ElementRange range, std::span<std::byte> out) {
  if (absl::Status status = Check(range, out.size()); !status.ok()) return status;
  if (!prepared_) {
    for (const LowRankMatrix& matrix : layout_.matrices) {
      if (round_ > 0 || HasFactors(matrix)) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("the coordinator has sent no factor of parameter \"", NameOf(matrix), "\""));
    }
    Prepare();
  }
  const Block block = BlockOf(range.segment);
  if (block == Block::kDense) {
    EncodeDense(range, out.data());
  } else {
    const T* from = (block == Block::kP ? work_->p : work_->q).data() + range.begin;
    kernels_.convert(kDType<T>, reinterpret_cast<const std::byte*>(from), wire_, out.data(),
                     range.numel());
  }
  return absl::OkStatus();
}

template <class T>
void PowerSgdRun<T>::EncodeDense(ElementRange range, std::byte* out) const {
  for (const DenseTensor& dense : layout_.dense) {
    const std::size_t begin = std::max(range.begin, dense.dense_offset);
    const std::size_t end = std::min(range.end, dense.dense_offset + dense.numel);
    if (begin >= end) continue;
    const T* from = matrix_ + dense.offset + (begin - dense.dense_offset);
    kernels_.convert(kDType<T>, reinterpret_cast<const std::byte*>(from), wire_,
                     out + (begin - range.begin) * ByteSize(wire_), end - begin);
  }
}

// ---- Results

template <class T>
absl::Status PowerSgdRun<T>::Decode(ElementRange range, std::span<const std::byte> in) {
  if (absl::Status status = Check(range, in.size()); !status.ok()) return status;
  if (!prepared_) return absl::FailedPreconditionError("nothing of this round was encoded");
  decoded_ += range.numel();
  const Block block = BlockOf(range.segment);
  if (block == Block::kDense) {
    DecodeDense(range, in.data());
    return absl::OkStatus();
  }
  T* to = (block == Block::kP ? work_->p : work_->q).data() + range.begin;
  kernels_.convert(wire_, in.data(), kDType<T>, reinterpret_cast<std::byte*>(to), range.numel());
  return absl::OkStatus();
}

// Dense tensors have a residual too: what the result leaves out (aggregate), or this member's own
// rounding error on the wire (local). The old gradient is needed for it, so both are computed block
// by block before it is overwritten.
template <class T>
void PowerSgdRun<T>::DecodeDense(ElementRange range, const std::byte* in) {
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
      T* value = matrix_ + dense.offset + at;
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

template <class T>
T* PowerSgdRun<T>::NextResidual(const LowRankMatrix& matrix) {
  if (!KeepsResidual()) return nullptr;
  std::vector<T>& next = options_.batched ? work_->residual : state_.parameter(NameOf(matrix)).next;
  next.resize(matrix.shape.numel());
  return next.data();
}

template <class T>
void PowerSgdRun<T>::FinishMatrix(const LowRankMatrix& matrix) {
  const cpu::LowRankShape shape = Shape(matrix);
  T* m = matrix_ + matrix.offset;
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
void PowerSgdRun<T>::Finish() {
  for (const LowRankMatrix& matrix : layout_.matrices) FinishMatrix(matrix);
  if (options_.batched && KeepsResidual()) {
    auto from = work_->residual.begin();
    for (const ParameterSpec& parameter : bucket_.parameters()) {
      const auto end = from + static_cast<std::ptrdiff_t>(parameter.numel());
      state_.parameter(parameter.name).next.assign(from, end);
      from = end;
    }
    state_.padding(bucket_.parameters().front().name).next.assign(from, work_->residual.end());
  }
  if (measures_ && KeepsResidual()) MeasureResidual();
  StoreBucket();
}

template <class T>
void PowerSgdRun<T>::MeasureResidual() {
  double squares = 0;
  for (const ParameterSpec& parameter : bucket_.parameters()) {
    squares += SumOfSquares(std::span<const T>(state_.parameter(parameter.name).next));
  }
  norms_ = {.gradient = std::sqrt(gradient_squares_), .residual = std::sqrt(squares)};
}

template <class T>
void PowerSgdRun<T>::StoreBucket() {
  const TensorView buffer = bucket_.buffer();
  if (matrix_ == buffer.data) return;
  kernels_.convert(kDType<T>, reinterpret_cast<const std::byte*>(matrix_), buffer.dtype,
                   static_cast<std::byte*>(buffer.data), buffer.numel);
}

// Only here does state change, so a step that is repeated or skipped computes the same again. A
// swap leaves the old residual's memory for the next step.
template <class T>
void PowerSgdRun<T>::Commit() {
  ended_ = true;
  if (plans_.empty()) return;
  if (KeepsResidual()) {
    for (const ParameterSpec& parameter : bucket_.parameters()) {
      ParameterState<T>& kept = state_.parameter(parameter.name);
      std::swap(kept.residual, kept.next);
    }
    if (options_.batched) {
      PaddingState<T>& padding = state_.padding(bucket_.parameters().front().name);
      std::swap(padding.residual, padding.next);
      padding.bucket = padding_bucket_;
      state_.lost += lost_;
    }
  }
  const bool is_p = options_.rounds == 1 && side_ == Side::kP;
  for (const LowRankMatrix& matrix : layout_.matrices) {
    FactorState<T>& factor = state_.factor(NameOf(matrix));
    const T* begin = is_p ? work_->p.data() + matrix.p_offset : work_->q.data() + matrix.q_offset;
    const std::size_t numel = is_p ? matrix.p_numel() : matrix.q_numel();
    (is_p ? factor.p : factor.q).assign(begin, begin + numel);
  }
}

template class PowerSgdRun<float>;
template class PowerSgdRun<double>;

}  // namespace gradwire
