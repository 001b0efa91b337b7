// The host's memory and processor as a device: every function has done its work when it returns.
#pragma once

#include <memory>

#include "hooks/device.h"

namespace gradwire {

std::shared_ptr<Device> MakeHostDevice();

}  // namespace gradwire
