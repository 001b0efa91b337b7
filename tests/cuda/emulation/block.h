// The threads of a grid. For the emulated runtime.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <string>

#include "tests/cuda/emulation/emulation.h"

namespace gradwire::emulation {

// Calls `thread` for every thread, block after block. Returns what is wrong, if something is; the
// threads that wait then are abandoned.
std::string RunGrid(dim3 grid, dim3 block, Order order, const std::function<void()>& thread);

}  // namespace gradwire::emulation
