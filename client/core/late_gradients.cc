#include "client/core/late_gradients.h"

#include <utility>

#include "base/mutants.h"
#include "hooks/cpu/kernels.h"

namespace gradwire::client {
namespace {

constexpr int kMostSkips = 4;

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
  const auto multiply = [factor]<class T>(std::vector<std::byte>& values, T /*type*/) {
    auto* const begin = reinterpret_cast<T*>(values.data());
    for (T& value : std::span(begin, values.size() / sizeof(T))) {
      value = static_cast<T>(static_cast<double>(value) * factor);
    }
  };
  for (auto& [position, sum] : kept_) {
    if (sum.dtype == DType::kFloat64) {
      multiply(sum.values, double{});
    } else {
      multiply(sum.values, float{});
    }
  }
}

}  // namespace gradwire::client
