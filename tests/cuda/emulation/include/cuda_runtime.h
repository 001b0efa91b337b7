// The part of CUDA that Gradwire's sources use, without a GPU: the language for g++ and clang, and
// the runtime's functions under their own names. hooks/cuda/*.cu compile with this folder in place
// of the toolkit's headers.
//
// Kernels run as they would on a GPU, one block after the other, each of its threads a fiber on the
// calling thread. Streams run as late as CUDA allows: nothing happens before somebody waits for it.
// tests/cuda/emulation/emulation.h steers it and says what it found.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

// ---- The language

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
// Blocks run one after the other, so one array serves the threads of all.
#define __shared__ static

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct uint3 {
  unsigned x, y, z;
};
extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;

struct EmulatedStream;

namespace gradwire::emulation {
// Of the running thread: waits until all threads of its block are here. Returns whether `value` is
// not 0 for one of them.
bool BlockBarrier(bool value);
// Exchanges 8 bytes between the lanes of a warp: returns those of lane `from`.
std::uint64_t Shuffle(unsigned mask, std::uint64_t value, unsigned from);
// Enqueues `thread`, which is called once for each thread of the grid.
int Launch(dim3 grid, dim3 block, EmulatedStream* stream, std::function<void()> thread);
}  // namespace gradwire::emulation

inline void __syncthreads() { gradwire::emulation::BlockBarrier(false); }
inline int __syncthreads_or(int value) { return gradwire::emulation::BlockBarrier(value != 0); }

inline float __shfl_xor_sync(unsigned mask, float value, unsigned other) {
  const auto bits = gradwire::emulation::Shuffle(mask, std::bit_cast<std::uint32_t>(value),
                                                 threadIdx.x % 32 ^ other);
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
}
inline double __shfl_xor_sync(unsigned mask, double value, unsigned other) {
  return std::bit_cast<double>(gradwire::emulation::Shuffle(
      mask, std::bit_cast<std::uint64_t>(value), threadIdx.x % 32 ^ other));
}

inline unsigned atomicOr(unsigned* at, unsigned value) { return std::exchange(*at, *at | value); }

inline float __fadd_rn(float a, float b) { return a + b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline double __dsqrt_rn(double v) { return std::sqrt(v); }
inline unsigned __float_as_uint(float v) { return std::bit_cast<unsigned>(v); }
inline float __uint_as_float(unsigned v) { return std::bit_cast<float>(v); }
inline long long __double_as_longlong(double v) { return std::bit_cast<long long>(v); }
inline double __longlong_as_double(long long v) { return std::bit_cast<double>(v); }
// Like the GPU's, one NaN for all.
inline float __double2float_rn(double v) {
  return v == v ? static_cast<float>(v) : __uint_as_float(0x7FFFFFFFU);
}

// ---- The runtime. Values are those of the toolkit.

enum cudaError_t : int {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchFailure = 719,
};
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();

struct cudaDeviceProp {
  char name[256];
  std::size_t totalGlobalMem;
  int multiProcessorCount;
};
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total);
cudaError_t cudaDeviceSynchronize();

using cudaStream_t = EmulatedStream*;
using cudaEvent_t = struct EmulatedEvent*;
using cudaMemPool_t = struct EmulatedPool*;
inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaEventDisableTiming = 2;
inline constexpr unsigned cudaHostAllocDefault = 0;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);

enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
};
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream);
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* memory);

enum cudaMemAllocationType { cudaMemAllocationTypePinned = 1 };
enum cudaMemLocationType { cudaMemLocationTypeDevice = 1 };
enum cudaMemPoolAttr { cudaMemPoolAttrReleaseThreshold = 4 };
struct cudaMemPoolProps {
  cudaMemAllocationType allocType;
  struct {
    cudaMemLocationType type;
    int id;
  } location;
};
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties);
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value);
cudaError_t cudaMallocFromPoolAsync(void** memory, std::size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream);
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream);

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  std::size_t dynamicSmemBytes;
  cudaStream_t stream;
};
// The arguments are copied at the call, as the runtime does.
template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...),
                               A&&... arguments) {
  return static_cast<cudaError_t>(gradwire::emulation::Launch(
      config->gridDim, config->blockDim, config->stream,
      [kernel, ... copies = static_cast<P>(std::forward<A>(arguments))] { kernel(copies...); }));
}
