#include "gradwire/hooks/registry.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/sync.h"
#include "hooks/cpu/host_device.h"
#include "hooks/device_hooks.h"
#include "hooks/power_sgd/hook.h"
#include "hooks/simple_hooks.h"

namespace gradwire {
namespace {

constexpr std::size_t kMaxNameBytes = 63;
constexpr const char* kBuiltIn[] = {"no", "fp16", "bf16", "power_sgd", "batched_power_sgd", "noop"};

bool IsHookName(const std::string& name) {
  if (name.empty() || name.size() > kMaxNameBytes) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

// "fp16" and "bf16" as dtypes, for hooks and wrappers alike.
std::optional<DType> WireOf(const std::string& name) {
  if (name == "fp16") return DType::kFloat16;
  if (name == "bf16") return DType::kBFloat16;
  return std::nullopt;
}

}  // namespace

struct HookRegistry::State {
  Mutex mutex;
  std::map<std::string, HookFactory> factories GRADWIRE_GUARDED_BY(mutex);
};

HookRegistry& HookRegistry::Global() {
  static HookRegistry registry;
  return registry;
}

HookRegistry::State& HookRegistry::state() const {
  // Never destroyed: a Python hook's factory must not be released after the interpreter is gone.
  static State& state = *new State;
  return state;
}

bool HookRegistry::IsBuiltIn(const std::string& name) {
  return std::find(std::begin(kBuiltIn), std::end(kBuiltIn), name) != std::end(kBuiltIn);
}

absl::Status HookRegistry::Register(const std::string& name, HookFactory factory) {
  if (!IsHookName(name)) {
    return Coded(ErrorCode::kOwnHook,
                 absl::InvalidArgumentError(absl::StrCat("hook name: \"", name,
                                                         "\" is not allowed; allowed: 1 to ",
                                                         kMaxNameBytes, " of a-z, 0-9 and _")));
  }
  if (factory == nullptr) {
    return Coded(ErrorCode::kOwnHook, absl::InvalidArgumentError(absl::StrCat(
                                          "hook \"", name, "\": the factory is empty")));
  }
  if (IsBuiltIn(name)) {
    return Coded(ErrorCode::kOwnHook,
                 absl::AlreadyExistsError(absl::StrCat("hook \"", name, "\" is built in")));
  }
  State& shared = state();
  const MutexLock lock(shared.mutex);
  if (!shared.factories.emplace(name, std::move(factory)).second) {
    return Coded(ErrorCode::kOwnHook, absl::AlreadyExistsError(absl::StrCat(
                                          "hook \"", name, "\" is registered already")));
  }
  return absl::OkStatus();
}

std::vector<std::string> HookRegistry::Names() const {
  std::vector<std::string> names(std::begin(kBuiltIn), std::end(kBuiltIn));
  State& shared = state();
  const MutexLock lock(shared.mutex);
  for (const auto& entry : shared.factories) names.push_back(entry.first);
  return names;
}

namespace {

// The factory is copied and called without the registry's lock: it may be Python code, which takes
// the GIL, and a thread that holds the GIL may wait for that lock.
absl::StatusOr<std::unique_ptr<Hook>> MakeRegistered(const HookSpec& spec,
                                                     const HookFactory& factory,
                                                     const Device& device) {
  if (device.id().kind != DeviceKind::kCpu) {
    return Coded(ErrorCode::kUnknownHook,
                 absl::UnimplementedError(absl::StrCat(
                     "comm_hook: \"", spec.comm_hook,
                     "\" is not built in, and such hooks take buckets in the host's memory only")));
  }
  absl::StatusOr<std::unique_ptr<Hook>> made = factory(spec);
  if (made.ok() && *made == nullptr) {
    return Coded(ErrorCode::kOwnHookFailed,
                 absl::InternalError(
                     absl::StrCat("the factory of hook \"", spec.comm_hook, "\" made no hook")));
  }
  return made;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Hook>> HookRegistry::Make(const HookSpec& spec) const {
  return MakeOn(spec, MakeHostDevice());
}

absl::StatusOr<std::unique_ptr<Hook>> MakeHook(const HookSpec& spec,
                                               std::shared_ptr<Device> device) {
  return HookRegistry::Global().MakeOn(spec, std::move(device));
}

// Around `no` a wrapper is the casting hook itself, and PowerSGD casts its own payloads to keep its
// state in fp32. Only the other hooks get a Wrapper around them.
absl::StatusOr<std::unique_ptr<Hook>> HookRegistry::MakeOn(const HookSpec& spec,
                                                           std::shared_ptr<Device> device) const {
  if (absl::Status status = spec.Validate(); !status.ok()) return status;
  const std::optional<DType> wrapper = WireOf(spec.comm_wrapper);
  if (spec.comm_hook == "no") return MakeCastingHook(wrapper, std::move(device));
  std::unique_ptr<Hook> hook;
  if (spec.comm_hook == "noop") {
    hook = MakeNoopHook();
  } else if (spec.comm_hook == "power_sgd" || spec.comm_hook == "batched_power_sgd") {
    absl::StatusOr<PowerSgdOptions> options = PowerSgdOptions::FromSpec(spec);
    if (!options.ok()) return options.status();
    return MakePowerSgdHook(*options, std::move(device));  // knows its wrapper
  } else if (IsBuiltIn(spec.comm_hook)) {
    hook = MakeCastingHook(WireOf(spec.comm_hook), device);
  } else {
    HookFactory factory;
    {
      State& shared = state();
      const MutexLock lock(shared.mutex);
      // Validate has found the hook, and hooks are never unregistered.
      factory = shared.factories.at(spec.comm_hook);
    }
    absl::StatusOr<std::unique_ptr<Hook>> made = MakeRegistered(spec, factory, *device);
    if (!made.ok()) return made.status();
    hook = *std::move(made);
  }
  if (wrapper.has_value()) hook = MakeWrapper(*wrapper, std::move(hook), std::move(device));
  return hook;
}

}  // namespace gradwire
