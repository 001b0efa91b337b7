#include "hooks/power_sgd/hook.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/error_code.h"
#include "hooks/device_status.h"
#include "hooks/power_sgd/member_state.h"
#include "hooks/power_sgd/run.h"
#include "hooks/simple_hooks.h"

namespace gradwire {
namespace {

constexpr const char* kFormat = "gradwire.member_state.1";
constexpr const char* kPrefix = "residual/";
constexpr const char* kPaddingPrefix = "padding/";

template <class T>
void ExportTensor(Device& device, const std::string& name, DType dtype,
                  const DeviceVector<T>& values, HookState& out) {
  if (values.empty()) return;
  StateTensor tensor{.name = name,
                     .dtype = dtype,
                     .shape = {static_cast<std::int64_t>(values.size())},
                     .data = std::vector<std::byte>(values.bytes())};
  device.Download(tensor.data.data(), values.data(), values.bytes());
  out.tensors.push_back(std::move(tensor));
}

template <class T>
void ExportResiduals(Device& device, const MemberState<T>& state, DType dtype, HookState& out) {
  for (const auto& [name, kept] : state.parameters()) {
    ExportTensor(device, kPrefix + name, dtype, kept.residual, out);
  }
  for (const auto& [name, kept] : state.paddings()) {
    ExportTensor(device, kPaddingPrefix + name, dtype, kept.residual, out);
    if (!kept.residual.empty()) out.metadata["bucket/" + name] = kept.bucket;
  }
}

// In the order of names, so that all members' copies are the same bytes.
template <class T>
void ExportFactors(Device& device, const MemberState<T>& state, DType dtype, HookState& out) {
  std::map<std::string, const FactorState<T>*> kept;
  for (const auto& [name, factor] : state.factors()) {
    const FactorState<T>* const last = factor.kept ? &factor : factor.earlier.get();
    if (last != nullptr) kept[name] = last;
  }
  for (const auto& [name, factor] : kept) {
    ExportTensor(device, "q/" + name, dtype, factor->q, out);
    ExportTensor(device, "p/" + name, dtype, factor->p, out);
    if (factor->parameters.empty()) continue;
    out.metadata["bucket/" + name] = absl::StrJoin(factor->parameters, "\n");
  }
}

// Residuals are in units of the scaled loss: if the loss scale doubles, gradients and residuals
// must double together.
template <class T>
void Scale(Device& device, double factor, MemberState<T>& state) {
  const auto scale = [&](DeviceVector<T>& residual) {
    device.low_rank<T>().Scale(residual.size(), residual.data(), factor);
  };
  for (auto& [name, kept] : state.parameters()) scale(kept.residual);
  for (auto& [name, kept] : state.paddings()) scale(kept.residual);
}

template <class T>
bool AllFinite(const std::vector<std::byte>& data) {
  std::vector<T> values(data.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), data.data(), values.size() * sizeof(T));
  return std::all_of(values.begin(), values.end(), [](T value) { return std::isfinite(value); });
}

bool IsFinite(const StateTensor& tensor) {
  return tensor.dtype == DType::kFloat64 ? AllFinite<double>(tensor.data)
                                         : AllFinite<float>(tensor.data);
}

using ParametersByName = std::unordered_map<std::string_view, const ParameterSpec*>;

bool IsPadding(const StateTensor& tensor) { return tensor.name.starts_with(kPaddingPrefix); }

// The parameter that a state tensor belongs to, or why it belongs to none.
absl::StatusOr<const ParameterSpec*> OwnerOf(const StateTensor& tensor,
                                             const ParametersByName& parameters) {
  const std::string_view prefix = IsPadding(tensor) ? kPaddingPrefix : kPrefix;
  const auto found = tensor.name.starts_with(prefix)
                         ? parameters.find(std::string_view(tensor.name).substr(prefix.size()))
                         : parameters.end();
  if (found == parameters.end()) {
    return Coded(ErrorCode::kStateDiffers, absl::InvalidArgumentError(absl::StrCat(
                                               "state: tensor \"", tensor.name,
                                               "\" belongs to no parameter of this session")));
  }
  const ParameterSpec& parameter = *found->second;
  const DType dtype = parameter.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  // The size of the padding follows from the bucket, which is not known yet. LoadPadding drops
  // padding that does not fit.
  const bool fits = IsPadding(tensor) ? tensor.data.size() % ByteSize(dtype) == 0
                                      : tensor.data.size() == parameter.numel() * ByteSize(dtype);
  if (tensor.dtype != dtype || !fits) {
    return Coded(ErrorCode::kStateDiffers,
                 absl::InvalidArgumentError(
                     absl::StrCat("state: tensor \"", tensor.name, "\" has ", tensor.data.size(),
                                  " bytes of ", Name(tensor.dtype), "; the parameter takes ",
                                  parameter.numel() * ByteSize(dtype), " of ", Name(dtype))));
  }
  if (!IsFinite(tensor)) {
    return Coded(ErrorCode::kStateFile,
                 absl::InvalidArgumentError(absl::StrCat("state: tensor \"", tensor.name,
                                                         "\" has values that are not finite")));
  }
  return &parameter;
}

template <class T>
void Take(const StateTensor& tensor, const ParameterSpec& parameter, const HookState& from,
          MemberState<T>& state) {
  const bool is_padding = IsPadding(tensor);
  DeviceVector<T>& residual = is_padding ? state.padding(parameter.name).residual
                                         : state.parameter(parameter.name).residual;
  residual.Upload(tensor.data.data(), tensor.data.size() / sizeof(T));
  const auto bucket = from.metadata.find("bucket/" + parameter.name);
  if (is_padding && bucket != from.metadata.end()) {
    state.padding(parameter.name).bucket = bucket->second;
  }
}

class PowerSgdHook : public HookBase {
 public:
  PowerSgdHook(const PowerSgdOptions& options, std::shared_ptr<Device> device)
      : options_(options),
        device_(std::move(device)),
        plain_(MakeCastingHook(options.wire, device_)),
        floats_(*device_),
        doubles_(*device_) {}

  // The plain plan also validates the parameters, so it is made even if the step compresses.
  absl::StatusOr<std::vector<RoundPlan>> Plan(std::span<const ParameterSpec> parameters,
                                              std::int64_t step) const override {
    absl::StatusOr<std::vector<RoundPlan>> plain = plain_->Plan(parameters, step);
    if (!plain.ok() || IsPlain()) return plain;
    return PlanRounds(options_, MakeLayout(options_, parameters),
                      options_.wire.value_or(parameters.front().dtype),
                      SideAt(options_, iteration_));
  }

  absl::StatusOr<std::unique_ptr<HookRun>> Start(GradBucket& bucket, std::int64_t step) override {
    if (IsPlain()) return plain_->Start(bucket, step);
    const Side side = SideAt(options_, iteration_);
    if (bucket.buffer().dtype == DType::kFloat64) {
      return std::make_unique<PowerSgdRun<double>>(options_, *device_, side, bucket, doubles_);
    }
    return std::make_unique<PowerSgdRun<float>>(options_, *device_, side, bucket, floats_);
  }

  void EndStep(Verdict verdict) override {
    if (verdict == Verdict::kApply) ++iteration_;
  }

  HookState State() const override {
    HookState state{.metadata = {{"format", kFormat},
                                 {"iteration", absl::StrCat(iteration_)},
                                 {"loss_scale", absl::StrFormat("%.17g", scale_)},
                                 {"padding_lost", absl::StrCat(floats_.lost() + doubles_.lost())}},
                    .tensors = {}};
    ExportResiduals(*device_, floats_, DType::kFloat32, state);
    ExportResiduals(*device_, doubles_, DType::kFloat64, state);
    return state;
  }

  // Without warm start no factor outlives its step.
  HookState Copy() const override {
    HookState copy{.metadata = {{"iteration", absl::StrCat(iteration_)}}, .tensors = {}};
    if (!options_.warm_start) return copy;
    ExportFactors(*device_, floats_, DType::kFloat32, copy);
    ExportFactors(*device_, doubles_, DType::kFloat64, copy);
    return copy;
  }

  absl::Status LoadState(const HookState& state, std::span<const ParameterSpec> manifest) override {
    const auto text = [&](const char* key) {
      const auto found = state.metadata.find(key);
      return found == state.metadata.end() ? std::string() : found->second;
    };
    if (text("format") != kFormat) {
      return Coded(ErrorCode::kStateFile, absl::InvalidArgumentError(absl::StrCat(
                                              "state: format \"", text("format"),
                                              "\" is not known; allowed: \"", kFormat, "\"")));
    }
    double scale = 0;
    if (!absl::SimpleAtod(text("loss_scale"), &scale) || !std::isfinite(scale) || scale <= 0) {
      return Coded(ErrorCode::kStateFile, absl::InvalidArgumentError(absl::StrCat(
                                              "state: loss_scale \"", text("loss_scale"),
                                              "\" is not allowed; allowed: above 0")));
    }
    ParametersByName parameters;
    for (const ParameterSpec& parameter : manifest) parameters.emplace(parameter.name, &parameter);
    std::vector<const ParameterSpec*> owners;
    for (const StateTensor& tensor : state.tensors) {
      const auto owner = OwnerOf(tensor, parameters);
      if (!owner.ok()) return owner.status();
      owners.push_back(*owner);
    }
    // Everything is checked, so nothing below can fail, short of the device itself: a refused
    // state changes nothing.
    floats_.ForgetResiduals();
    doubles_.ForgetResiduals();
    for (std::size_t i = 0; i < owners.size(); ++i) {
      const StateTensor& tensor = state.tensors[i];
      const ParameterSpec& parameter = *owners[i];
      if (tensor.dtype == DType::kFloat64) {
        Take(tensor, parameter, state, doubles_);
      } else {
        Take(tensor, parameter, state, floats_);
      }
    }
    // The residuals have the saved loss scale; this converts them to the present one.
    const double current = std::exchange(scale_, scale);
    SetLossScale(current);
    return StatusOf(*device_);
  }

  // The coordinator's iteration is authoritative. Without factors, HasFactors fails until the
  // coordinator has sent them.
  void Reset(std::int64_t iteration) override {
    iteration_ = iteration;
    floats_.ForgetFactors();
    doubles_.ForgetFactors();
  }

  void Forget(std::span<const std::string> parameters) override {
    for (const std::string& name : parameters) {
      floats_.ForgetFactors(name);
      doubles_.ForgetFactors(name);
    }
  }

  void SetLossScale(double scale) override {
    const double factor = scale / std::exchange(scale_, scale);
    if (factor == 1) return;
    Scale(*device_, factor, floats_);
    Scale(*device_, factor, doubles_);
  }

 private:
  bool IsPlain() const { return iteration_ < options_.start_powerSGD_iter; }

  const PowerSgdOptions options_;
  const std::shared_ptr<Device> device_;
  const std::unique_ptr<Hook> plain_;  // until start_powerSGD_iter
  std::int64_t iteration_ = 0;         // steps applied
  double scale_ = 1;                   // of the gradients, and so of the residuals
  MemberState<float> floats_;          // float16 and bfloat16 gradients are kept in float32
  MemberState<double> doubles_;
};

}  // namespace

// P and Q alternate, beginning with P in the first compressed step.
Side SideAt(const PowerSgdOptions& options, std::int64_t iteration) {
  return (iteration - options.start_powerSGD_iter) % 2 == 0 ? Side::kP : Side::kQ;
}

std::unique_ptr<Hook> MakePowerSgdHook(const PowerSgdOptions& options,
                                       std::shared_ptr<Device> device) {
  return std::make_unique<PowerSgdHook>(options, std::move(device));
}

}  // namespace gradwire
