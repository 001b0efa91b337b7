#include "client/core/leaf_weight.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "base/mutants.h"
#include "hooks/cpu/kernels.h"

namespace gradwire::client {

double LeafWeight(int ranks, std::uint32_t groups, int members) {
  if (IsActive(Mutant::kLeafWeightForgotten)) return 1;
  return static_cast<double>(ranks) * groups / members;
}

void Weigh(const TensorView& gradients, double weight) {
  constexpr std::size_t kBlock = 1024;
  std::array<double, kBlock> wide;
  auto* at = static_cast<std::byte*>(gradients.data);
  for (std::size_t left = gradients.numel; left > 0;) {
    const std::size_t numel = std::min(left, kBlock);
    cpu::Convert(gradients.dtype, at, DType::kFloat64, wide.data(), numel);
    for (std::size_t i = 0; i < numel; ++i) wide[i] *= weight;
    cpu::Convert(DType::kFloat64, wide.data(), gradients.dtype, at, numel);
    at += numel * ByteSize(gradients.dtype);
    left -= numel;
  }
}

}  // namespace gradwire::client
