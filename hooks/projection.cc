#include "hooks/projection.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "hooks/cpu/kernels.h"

namespace gradwire {
namespace {

constexpr std::size_t kBlock = 64;  // the signs of one come from one number
constexpr std::size_t kStride = 16 * kBlock;

// How many of the first `numel` elements are read.
std::size_t ReadOf(std::size_t numel) {
  return numel / kStride * kBlock + std::min(numel % kStride, kBlock);
}

}  // namespace

bool Projection::is_finite() const { return std::isfinite(value) && std::isfinite(squares); }

Projection& Projection::operator+=(const Projection& other) {
  value += other.value;
  squares += other.squares;
  return *this;
}

Projector::Projector(const std::string& name, std::size_t numel)
    : numel_(numel),
      seed_(XXH3_64bits(name.data(), name.size())),
      scale_(numel == 0 ? 0 : static_cast<double>(numel) / static_cast<double>(ReadOf(numel))) {}

Projection Projector::Of(const TensorView& part, std::size_t first) const {
  const std::size_t end = std::min(numel_, first + part.numel);
  Projection sum;
  std::array<double, kBlock> values{};
  for (std::size_t block = first / kStride * kStride; block < end; block += kStride) {
    const std::size_t from = std::max(block, first);
    const std::size_t to = std::min(block + kBlock, end);
    if (from >= to) continue;
    const auto* at =
        static_cast<const std::byte*>(part.data) + (from - first) * ByteSize(part.dtype);
    cpu::Convert(part.dtype, at, DType::kFloat64, values.data(), to - from);
    const std::uint64_t signs =
        XXH3_64bits_withSeed(&block, sizeof(block), seed_) >> (from - block);
    for (std::size_t i = 0; i < to - from; ++i) {
      sum.value += (signs >> i & 1) != 0 ? values[i] : -values[i];
      sum.squares += values[i] * values[i];
    }
  }
  return {.value = sum.value * std::sqrt(scale_), .squares = sum.squares * scale_};
}

}  // namespace gradwire
