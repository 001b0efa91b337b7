// Work of the hook that nobody waits for: handed to the owner, one piece at a time.
#pragma once

#include "hooks/coordinator_hook.h"
#include "server/core/effects.h"

namespace gradwire::server {

// Not thread-safe. `hook` outlives it; null: it has no chores.
class Chores {
 public:
  explicit Chores(CoordinatorHook* hook) : hook_(hook) {}

  // Asks the owner to run the hook's next chore, unless one is under way: so that chores cannot
  // pile up.
  void Begin(Effects& effects);
  // The answer to the ChoreEffect.
  void OnDone(Effects& effects);

 private:
  CoordinatorHook* const hook_;
  bool under_way_ = false;
};

}  // namespace gradwire::server
