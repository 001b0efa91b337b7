// PowerSGD's state on the coordinator: the factors of every parameter, the generator that the first
// ones are drawn from, and the iteration.
#pragma once

#include <memory>
#include <span>

#include "hooks/coordinator_hook.h"
#include "hooks/power_sgd/options.h"

namespace gradwire {

std::unique_ptr<CoordinatorHook> MakePowerSgdCoordinator(const PowerSgdOptions& options,
                                                         std::span<const ParameterSpec> manifest);

}  // namespace gradwire
