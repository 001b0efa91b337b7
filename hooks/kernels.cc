#include "hooks/kernels.h"

#include "hooks/cpu/kernels.h"
#include "hooks/power_sgd/orthonormalize.h"

namespace gradwire {
namespace {

template <class T>
constexpr LowRankKernels<T> kCpuLowRank = {
    .add_and_multiply = &cpu::AddAndMultiply<T>,
    .transpose_multiply = &cpu::TransposeMultiply<T>,
    .reconstruct_and_subtract = &cpu::ReconstructAndSubtract<T>,
    .add = &cpu::Add<T>,
};

constexpr Kernels kCpu = {
    .convert = &cpu::Convert,
    .convert_streaming = &cpu::ConvertStreaming,
    .convert_and_divide = &cpu::ConvertAndDivide,
    .sum = &cpu::Sum,
    .sum_quotients = &cpu::SumQuotients,
    .orthonormalize = &Orthonormalize,
    .floats = kCpuLowRank<float>,
    .doubles = kCpuLowRank<double>,
};

}  // namespace

// A switch without `default`: the compiler reports a memory kind that has no kernels.
const Kernels& KernelsFor(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kHost:
      break;
  }
  return kCpu;
}

}  // namespace gradwire
