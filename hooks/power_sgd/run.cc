#include "hooks/power_sgd/run.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "hooks/device_status.h"

namespace gradwire {

template <class T>
PowerSgdRun<T>::PowerSgdRun(const PowerSgdOptions& options, Device& device, Side side,
                            GradBucket& bucket, MemberState<T>& state)
    : options_(options),
      device_(device),
      side_(side),
      bucket_(bucket),
      state_(state),
      layout_(MakeLayout(options, bucket.parameters())),
      wire_(options.wire.value_or(bucket.buffer().dtype)),
      plans_(PlanRounds(options, layout_, wire_, side)),
      matrix_(options, device, side, layout_, bucket, state) {}

// A round ends when all its elements are decoded: round 2 computes Q from the P of round 1, so a
// gap would use this member's own P in part, and the members' results would differ.
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
  if (absl::Status status = StatusOf(device_); !status.ok()) return status;
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
  const FactorState<T>& factor = state_.factor(matrix_.NameOf(matrix));
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
  const auto take = [&](std::size_t numel, DeviceVector<T>& factor) {
    factor.Upload(from, numel);
    from += numel * sizeof(T);
  };
  for (const LowRankMatrix& matrix : layout_.matrices) {
    FactorState<T>& factor = state_.factor(matrix_.NameOf(matrix));
    if (options_.batched) MakeRoomFor(factor);
    take(matrix.q_numel(), factor.q);
    if (!TwoRounds()) take(matrix.p_numel(), factor.p);
  }
  return StatusOf(device_);
}

template <class T>
void PowerSgdRun<T>::MakeRoomFor(FactorState<T>& factor) {
  std::vector<std::string> parameters;
  for (const ParameterSpec& p : bucket_.parameters()) parameters.push_back(p.name);
  if (factor.parameters == parameters) return;
  if (factor.earlier != nullptr && factor.earlier->parameters == parameters) {
    FactorState<T> kept = std::move(*factor.earlier);
    factor = std::move(kept);
    return;
  }
  if (factor.kept) {
    auto earlier = std::make_unique<FactorState<T>>(std::move(factor));
    factor = FactorState<T>(device_);
    factor.earlier = std::move(earlier);
  }
  factor.parameters = std::move(parameters);
}

// ---- Contributions

// Computes this round's contribution, once: a retry encodes the same factors again.
template <class T>
void PowerSgdRun<T>::Prepare() {
  prepared_ = true;
  if (round_ == 1) {
    matrix_.MakeQ();
    return matrix_.KeepOwn(Side::kQ);
  }
  matrix_.Load();
  if (measures_) matrix_.MeasureGradient();
  matrix_.AddResiduals();
  if (TwoRounds() || side_ == Side::kP) {
    matrix_.MakeP();
  } else {
    matrix_.MakeQ();
  }
  // With two rounds P comes back as the same matrix for all; only Q differs between members.
  if (!TwoRounds()) matrix_.KeepOwn(side_);
}

template <class T>
absl::Status PowerSgdRun<T>::Encode(ElementRange range, std::span<std::byte> out) {
  if (absl::Status status = Check(range, out.size()); !status.ok()) return status;
  if (!prepared_) {
    for (const LowRankMatrix& matrix : layout_.matrices) {
      if (round_ > 0 || HasFactors(matrix)) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "the coordinator has sent no factor of parameter \"", matrix_.NameOf(matrix), "\""));
    }
    Prepare();
  }
  const Block block = BlockOf(range.segment);
  if (block == Block::kDense) {
    matrix_.EncodeDense(range, out.data());
  } else {
    const T* from = (block == Block::kP ? matrix_.p() : matrix_.q()).data() + range.begin;
    device_.Convert(kDType<T>, from, wire_, out.data(), range.numel());
  }
  return StatusOf(device_);
}

// ---- Results

template <class T>
absl::Status PowerSgdRun<T>::Decode(ElementRange range, std::span<const std::byte> in) {
  if (absl::Status status = Check(range, in.size()); !status.ok()) return status;
  if (!prepared_) return absl::FailedPreconditionError("nothing of this round was encoded");
  decoded_ += range.numel();
  const Block block = BlockOf(range.segment);
  if (block == Block::kDense) {
    matrix_.DecodeDense(range, in.data());
    return StatusOf(device_);
  }
  T* to = (block == Block::kP ? matrix_.p() : matrix_.q()).data() + range.begin;
  device_.Convert(wire_, in.data(), kDType<T>, to, range.numel());
  return StatusOf(device_);
}

template <class T>
void PowerSgdRun<T>::Finish() {
  matrix_.Finish();
  if (measures_ && matrix_.KeepsResidual()) matrix_.MeasureResidual();
  matrix_.Store();
}

template <class T>
std::optional<BucketNorms> PowerSgdRun<T>::norms() const {
  if (!finished_ || plans_.empty() || !measures_ || !matrix_.KeepsResidual()) return std::nullopt;
  return matrix_.Norms();
}

template <class T>
std::vector<TensorView> PowerSgdRun<T>::residuals() const {
  if (!finished_ || plans_.empty() || !matrix_.KeepsResidual()) return {};
  std::vector<TensorView> views;
  for (const ParameterSpec& parameter : bucket_.parameters()) {
    DeviceVector<T>& next = state_.parameter(parameter.name).next;
    views.push_back({.dtype = kDType<T>,
                     .data = next.data(),
                     .numel = next.size(),
                     .device = bucket_.buffer().device});
  }
  return views;
}

// Only here does state change, so a step that is repeated or skipped computes the same again.
template <class T>
void PowerSgdRun<T>::Commit() {
  ended_ = true;
  if (plans_.empty()) return;
  matrix_.CommitResiduals();
  const bool is_p = options_.rounds == 1 && side_ == Side::kP;
  for (const LowRankMatrix& matrix : layout_.matrices) {
    FactorState<T>& factor = state_.factor(matrix_.NameOf(matrix));
    const T* begin =
        is_p ? matrix_.p().data() + matrix.p_offset : matrix_.q().data() + matrix.q_offset;
    const std::size_t numel = is_p ? matrix.p_numel() : matrix.q_numel();
    (is_p ? factor.p : factor.q).Assign(begin, numel);
    if (options_.batched && !factor.kept) state_.KeepOnly(matrix_.NameOf(matrix));
    factor.kept = true;
    factor.earlier.reset();
  }
}

template class PowerSgdRun<float>;
template class PowerSgdRun<double>;

}  // namespace gradwire
