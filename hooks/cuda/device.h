// A GPU as a device. What the library that is loaded at run time exports.
#pragma once

#include <cstdint>

#include "hooks/device.h"

// Changes with every change of hooks/device.h: a library of another version is refused.
#define GRADWIRE_CUDA_INTERFACE "gradwire-cuda-2"

#pragma GCC visibility push(default)
extern "C" {
// The interface that the library was built with.
const char* gradwire_cuda_interface();

// Whether a GPU can be used here. Returns false, and why and what to do, in `text`, which has room
// for `size` bytes.
bool gradwire_cuda_available(char* text, std::uint64_t size);

// GPUs that this process sees; 0 if there is an obstacle.
int gradwire_cuda_count();

// A device on GPU `ordinal`, which the caller deletes; each of its waits ends after `wait_ms`. Its
// error() is set if it cannot be used.
gradwire::Device* gradwire_cuda_open(int ordinal, std::int64_t wait_ms);

// What `stream` (a cudaStream_t) of GPU `ordinal` has been given so far. The caller deletes it. May
// be called on any thread.
gradwire::DeviceEvent* gradwire_cuda_record(int ordinal, void* stream);
}
#pragma GCC visibility pop
