// The CUDA library of another version of Gradwire.
#include "hooks/cuda/device.h"

const char* gradwire_cuda_interface() { return "gradwire-cuda-0"; }
bool gradwire_cuda_available(char* /*text*/, std::uint64_t /*size*/) { return true; }
int gradwire_cuda_count() { return 1; }
gradwire::DeviceEvent* gradwire_cuda_record(int /*ordinal*/, void* /*stream*/) { return nullptr; }
gradwire::Device* gradwire_cuda_open(int /*ordinal*/, std::int64_t /*wait_ms*/) { return nullptr; }
