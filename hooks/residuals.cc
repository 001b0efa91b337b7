#include "hooks/residuals.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/error_code.h"

namespace gradwire {
namespace {

constexpr const char* kFormat = "format";
constexpr const char* kLossScale = "loss_scale";
constexpr const char* kBucket = "bucket/";

std::string Text(const HookState& state, const std::string& key) {
  const auto found = state.metadata.find(key);
  return found == state.metadata.end() ? "" : found->second;
}

// own += factor * more, or = where `own` is new. Data may be unaligned. False: a sum is not finite.
template <class T>
bool Add(double factor, const StateTensor& more, bool is_new, StateTensor& own) {
  bool finite = true;
  for (std::size_t at = 0; at + sizeof(T) <= more.data.size(); at += sizeof(T)) {
    T sum = 0;
    T value = 0;
    if (!is_new) std::memcpy(&sum, own.data.data() + at, sizeof(T));
    std::memcpy(&value, more.data.data() + at, sizeof(T));
    sum = static_cast<T>(sum + factor * value);
    finite = finite && std::isfinite(sum);
    std::memcpy(own.data.data() + at, &sum, sizeof(T));
  }
  return finite;
}

// `places`: of own's tensors, by name.
absl::Status AddTensor(double factor, const StateTensor& more,
                       std::unordered_map<std::string, std::size_t>& places, HookState& own) {
  const auto differs = [&](const std::string& what) {
    return Coded(ErrorCode::kStateDiffers, absl::InvalidArgumentError(absl::StrCat(
                                               "residuals: tensor \"", more.name, "\" ", what)));
  };
  if (more.dtype != DType::kFloat32 && more.dtype != DType::kFloat64) {
    return differs(absl::StrCat("is of ", Name(more.dtype), "; allowed: float32, float64"));
  }
  const auto [place, is_new] = places.emplace(more.name, own.tensors.size());
  if (is_new) own.tensors.push_back(more);
  StateTensor& sum = own.tensors[place->second];
  if (sum.dtype != more.dtype || sum.data.size() != more.data.size()) {
    return differs(absl::StrCat("has ", more.data.size(), " bytes of ", Name(more.dtype), "; ",
                                sum.data.size(), " of ", Name(sum.dtype), " are here"));
  }
  const bool finite = more.dtype == DType::kFloat64 ? Add<double>(factor, more, is_new, sum)
                                                    : Add<float>(factor, more, is_new, sum);
  return finite ? absl::OkStatus() : differs("has values that are not finite");
}

}  // namespace

// A state without a scale is that of a hook that knows none.
absl::StatusOr<double> LossScaleOf(const HookState& state) {
  const std::string text = Text(state, kLossScale);
  double scale = 1;
  if (text.empty() || (absl::SimpleAtod(text, &scale) && std::isfinite(scale) && scale > 0)) {
    return scale;
  }
  return Coded(ErrorCode::kStateFile, absl::InvalidArgumentError(absl::StrCat(
                                          "residuals: loss_scale \"", text.substr(0, 100),
                                          "\" is not allowed; allowed: above 0")));
}

absl::StatusOr<HookState> AddResiduals(HookState own, const HookState& more) {
  if (own.metadata.empty()) {
    return Coded(ErrorCode::kStateDiffers,
                 absl::FailedPreconditionError("residuals: this member's hook keeps none"));
  }
  if (Text(own, kFormat) != Text(more, kFormat)) {
    return Coded(ErrorCode::kStateDiffers,
                 absl::InvalidArgumentError(
                     absl::StrCat("residuals: format \"", Text(more, kFormat).substr(0, 100),
                                  "\"; allowed: \"", Text(own, kFormat), "\"")));
  }
  const absl::StatusOr<double> to = LossScaleOf(own);
  if (!to.ok()) return to.status();
  const absl::StatusOr<double> from = LossScaleOf(more);
  if (!from.ok()) return from.status();
  for (const auto& [key, value] : more.metadata) {
    if (!absl::StartsWith(key, kBucket)) continue;
    if (own.metadata.emplace(key, value).first->second == value) continue;
    return Coded(ErrorCode::kStateDiffers,
                 absl::InvalidArgumentError(absl::StrCat(
                     "residuals: the bucket of parameter \"", key.substr(std::strlen(kBucket)),
                     "\" has other parameters here, so that its padding is another")));
  }
  std::unordered_map<std::string, std::size_t> places;
  for (std::size_t i = 0; i < own.tensors.size(); ++i) places.emplace(own.tensors[i].name, i);
  for (const StateTensor& tensor : more.tensors) {
    if (absl::Status added = AddTensor(*to / *from, tensor, places, own); !added.ok()) {
      return added;
    }
  }
  return own;
}

absl::Status TakeOver(const HookState& more, std::span<const ParameterSpec> manifest, Hook& hook) {
  const absl::StatusOr<HookState> sum = AddResiduals(hook.State(), more);
  return sum.ok() ? hook.LoadState(*sum, manifest) : sum.status();
}

absl::Status GiveAway(std::span<const ParameterSpec> manifest, Hook& hook) {
  HookState none = hook.State();
  none.tensors.clear();
  std::erase_if(none.metadata,
                [](const auto& one) { return absl::StartsWith(one.first, kBucket); });
  return hook.LoadState(none, manifest);
}

}  // namespace gradwire
