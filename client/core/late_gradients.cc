#include "client/core/late_gradients.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/error_code.h"
#include "base/mutants.h"
#include "hooks/cpu/kernels.h"
#include "hooks/residuals.h"

namespace gradwire::client {
namespace {

constexpr int kMostSkips = 4;

// No hook has this format, so that a client which knows residuals only refuses the file.
constexpr const char* kFormat = "gradwire.late_gradients.1";
constexpr const char* kFormatKey = "format";
constexpr const char* kScaleKey = "loss_scale";

DType KeptType(DType dtype) { return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32; }

std::vector<std::byte> Convert(const TensorView& view, DType to) {
  std::vector<std::byte> values(view.numel * ByteSize(to));
  cpu::Convert(view.dtype, view.data, to, values.data(), view.numel);
  return values;
}

// into += values. False: the sum is not finite.
bool Add(DType dtype, std::vector<std::byte>& into, const std::vector<std::byte>& values) {
  const void* const terms[] = {into.data(), values.data()};
  return cpu::Sum(dtype, terms, 2, 1, into.data(), into.size() / ByteSize(dtype));
}

void Multiply(DType dtype, std::vector<std::byte>& values, double factor) {
  const auto multiply = [&]<class T>(T /*type*/) {
    auto* const begin = reinterpret_cast<T*>(values.data());
    for (T& value : std::span(begin, values.size() / sizeof(T))) {
      value = static_cast<T>(static_cast<double>(value) * factor);
    }
  };
  dtype == DType::kFloat64 ? multiply(double{}) : multiply(float{});
}

absl::Status DoNotFit(const std::string& name, const char* why) {
  return Coded(ErrorCode::kStateDiffers, absl::InvalidArgumentError(absl::StrCat(
                                             "late gradients: tensor \"", name, "\" ", why)));
}

}  // namespace

void LateGradients::Enter(std::span<const std::uint32_t> positions, const GradBucket& bucket) {
  if (kept_.empty()) return;
  const std::vector<TensorView> gradients = bucket.gradients();
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const auto kept = kept_.find(positions[i]);
    if (kept == kept_.end() || !entered_.insert(positions[i]).second) continue;
    const DType type = kept->second.dtype;
    std::vector<std::byte> sum = Convert(gradients[i], type);
    // A gradient that is not finite stays so, and skips the step.
    static_cast<void>(Add(type, sum, kept->second.values));
    cpu::Convert(type, sum.data(), gradients[i].dtype, gradients[i].data, gradients[i].numel);
  }
}

void LateGradients::Miss(std::span<const std::uint32_t> positions, const GradBucket& bucket) {
  if (IsActive(Mutant::kMissedForgotten)) return;
  const std::vector<TensorView> gradients = bucket.gradients();
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const DType type = KeptType(gradients[i].dtype);
    Sum sum{.dtype = type, .values = Convert(gradients[i], type)};
    const auto kept = kept_.find(positions[i]);
    const std::vector<std::byte> none(sum.values.size());
    const bool finite = Add(type, sum.values, kept == kept_.end() ? none : kept->second.values);
    if (finite) missed_[positions[i]] = std::move(sum);
  }
}

void LateGradients::Conclude(Verdict verdict, bool dropped) {
  if (verdict == Verdict::kApply) {
    for (const std::uint32_t position : entered_) kept_.erase(position);
    for (auto& [position, sum] : missed_) kept_[position] = std::move(sum);
  } else if (!dropped) {
    for (const std::uint32_t position : entered_) ++kept_[position].skips;
    std::erase_if(kept_, [](const auto& one) { return one.second.skips == kMostSkips; });
  }
  entered_.clear();
  missed_.clear();
  for (auto& [position, sum] : std::exchange(coming_, {})) {
    if (const auto kept = kept_.find(position); kept != kept_.end()) {
      // One that overflows skips steps, and is given up after a few.
      static_cast<void>(Add(sum.dtype, sum.values, kept->second.values));
    }
    kept_[position] = std::move(sum);
  }
}

void LateGradients::Keep(std::span<const std::uint32_t> positions, const GradBucket& bucket) {
  Sums others = std::exchange(missed_, {});
  Miss(positions, bucket);
  for (auto& [position, sum] : missed_) kept_[position] = std::move(sum);
  missed_ = std::move(others);
}

void LateGradients::SetLossScale(double scale) {
  const double factor = scale / std::exchange(scale_, scale);
  if (factor == 1) return;
  for (auto& [position, sum] : kept_) Multiply(sum.dtype, sum.values, factor);
}

HookState LateGradients::State(std::span<const ParameterSpec> manifest) const {
  HookState state{
      .metadata = {{kFormatKey, kFormat}, {kScaleKey, absl::StrFormat("%.17g", scale_)}}};
  for (const auto& [position, sum] : kept_) {
    state.tensors.push_back({.name = manifest[position].name,
                             .dtype = sum.dtype,
                             .shape = manifest[position].shape,
                             .data = sum.values});
  }
  return state;
}

bool LateGradients::IsLate(const HookState& state) {
  const auto format = state.metadata.find(kFormatKey);
  return format != state.metadata.end() && format->second == kFormat;
}

absl::Status LateGradients::Take(const HookState& state, std::span<const ParameterSpec> manifest) {
  const absl::StatusOr<double> scale = LossScaleOf(state);
  if (!scale.ok()) return scale.status();
  Sums sums;
  for (const StateTensor& tensor : state.tensors) {
    const auto spec = std::ranges::find(manifest, tensor.name, &ParameterSpec::name);
    if (spec == manifest.end()) return DoNotFit(tensor.name, "is of no parameter");
    if (tensor.dtype != KeptType(spec->dtype) || tensor.shape != spec->shape) {
      return DoNotFit(tensor.name, "has another dtype or shape than the parameter");
    }
    Sum sum{.dtype = tensor.dtype, .values = tensor.data};
    Multiply(sum.dtype, sum.values, scale_ / *scale);
    const auto position = static_cast<std::uint32_t>(spec - manifest.begin());
    const Sums& own = IsInStep(position) ? coming_ : kept_;
    const auto found = own.find(position);
    const std::vector<std::byte> none(sum.values.size());
    if (!Add(sum.dtype, sum.values, found == own.end() ? none : found->second.values)) {
      return DoNotFit(tensor.name, "has values that are not finite");
    }
    sums[position] = std::move(sum);
  }
  for (auto& [position, sum] : sums) {
    Sum& own = (IsInStep(position) ? coming_ : kept_)[position];
    own = {.dtype = sum.dtype, .values = std::move(sum.values), .skips = own.skips};
  }
  return absl::OkStatus();
}

// What was kept before the step is gone with its end, or replaced.
bool LateGradients::IsInStep(std::uint32_t position) const {
  return entered_.contains(position) || missed_.contains(position);
}

}  // namespace gradwire::client
