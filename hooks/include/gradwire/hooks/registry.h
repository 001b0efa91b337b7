// Maps names to hooks: built-in and custom ones.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/hooks/hook.h"

namespace gradwire {

class Device;  // where buckets lie; not part of the public interface

// Makes a hook from its spec. Refuses unknown options and names them.
using HookFactory = std::function<absl::StatusOr<std::unique_ptr<Hook>>(const HookSpec&)>;

// Thread-safe. There is one per process, because HookSpec::Validate consults it.
class HookRegistry {
 public:
  static HookRegistry& Global();

  // Names match [a-z0-9_]{1,63}. Returns AlreadyExists if the name is taken, built-in or not.
  absl::Status Register(const std::string& name, HookFactory factory);

  // Built-in names first, then registered ones in alphabetical order.
  std::vector<std::string> Names() const;

  // Whether the daemon can plan this hook itself ("no", "fp16", "bf16", "noop"). The members plan
  // a custom hook and announce its segments.
  static bool IsBuiltIn(const std::string& name);

  // Makes the whole pipeline, including the wrapper. fp16 and bf16 around "no" give the casting
  // hooks, which compute the same bits.
  absl::StatusOr<std::unique_ptr<Hook>> Make(const HookSpec& spec) const;

 private:
  friend absl::StatusOr<std::unique_ptr<Hook>> MakeHook(const HookSpec& spec,
                                                        std::shared_ptr<Device> device);
  HookRegistry() = default;
  absl::StatusOr<std::unique_ptr<Hook>> MakeOn(const HookSpec& spec,
                                               std::shared_ptr<Device> device) const;
  struct State;
  State& state() const;
};

}  // namespace gradwire
