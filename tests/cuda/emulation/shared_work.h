// Work of an emulated stream in which other processes take part. For libraries that a test puts in
// the place of CUDA's (tests/cuda/nccl).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <mutex>
#include <string>

namespace gradwire::emulation {

// While it lives, no other thread makes a call of the runtime, or runs work.
std::unique_lock<std::recursive_mutex> LockGpu();

// The GPU that was selected when the stream was made.
int DeviceOf(const EmulatedStream* stream);

// Enqueues work that takes several calls. When it is the stream's turn, `advance` is called each
// time that somebody queries or waits for the stream, until it returns true: it is done, or given
// up. It does what it can without waiting, and may touch device memory.
void EnqueueShared(EmulatedStream* stream, std::function<bool()> advance);

// For `advance`: whether these bytes of device memory are live. If not, it reports `what` of them.
bool IsThere(const void* at, std::size_t bytes, const char* what);

// Adds to the violations.
void Report(const std::string& violation);

}  // namespace gradwire::emulation
