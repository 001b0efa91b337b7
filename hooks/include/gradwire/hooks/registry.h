// Names to hooks: the built-in ones and the user's own.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/hooks/hook.h"

namespace gradwire {

// Makes a hook from the options of its spec; refuses options it does not know by name.
using HookFactory = std::function<absl::StatusOr<std::unique_ptr<Hook>>(const HookSpec&)>;

// Thread-safe. One per process, since HookSpec::Validate consults it.
class HookRegistry {
 public:
  static HookRegistry& Global();

  // Names are [a-z0-9_]{1,63}. AlreadyExists for a name that is taken, built-in or not.
  absl::Status Register(const std::string& name, HookFactory factory);

  // Built-in names first, then registered ones in alphabetical order.
  std::vector<std::string> Names() const;

  // Whether the daemon can plan this hook itself ("no", "fp16", "bf16", "noop"). A user's own hook
  // is planned by the members, which announce its segments.
  static bool IsBuiltIn(const std::string& name);

  // The whole pipeline, wrapper included. fp16 and bf16 around "no" give the casting hooks, with
  // which they agree bit for bit.
  absl::StatusOr<std::unique_ptr<Hook>> Make(const HookSpec& spec) const;

 private:
  HookRegistry() = default;
  struct State;
  State& state() const;
};

}  // namespace gradwire
