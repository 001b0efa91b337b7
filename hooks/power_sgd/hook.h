// PowerSGD on a member. The arithmetic is that of torch's powerSGD_hook and batched_powerSGD_hook;
// hooks/README.md lists the differences.
#pragma once

#include <memory>

#include "hooks/power_sgd/layout.h"

namespace gradwire {

class Device;

// Its buckets, and its state, lie in `device`'s memory.
std::unique_ptr<Hook> MakePowerSgdHook(const PowerSgdOptions& options,
                                       std::shared_ptr<Device> device);

// Which factor travels in an iteration when `rounds` is 1.
Side SideAt(const PowerSgdOptions& options, std::int64_t iteration);

}  // namespace gradwire
