// The hooks of a spec on a device.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "gradwire/hooks/hook.h"
#include "gradwire/hooks/hook_spec.h"
#include "hooks/device.h"

namespace gradwire {

// HookRegistry::Make for buckets in `device`'s memory. What Encode is given to write and Decode to
// read is memory that the device reaches; their work is complete when the device's is. A registered
// hook reads its bucket itself, so for another device than the host this returns Unimplemented.
absl::StatusOr<std::unique_ptr<Hook>> MakeHook(const HookSpec& spec,
                                               std::shared_ptr<Device> device);

}  // namespace gradwire
