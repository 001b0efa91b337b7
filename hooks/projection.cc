#include "hooks/projection.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
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
    // Each block is in another page, which no processor prefetches by itself.
    constexpr std::size_t kAhead = 4 * kStride;
    if (block + kAhead + kBlock <= end) {
      const std::size_t width = ByteSize(part.dtype);
      const auto* next =
          static_cast<const std::byte*>(part.data) + (block + kAhead - first) * width;
      for (std::size_t byte = 0; byte < kBlock * width; byte += 64) __builtin_prefetch(next + byte);
    }
    cpu::Convert(part.dtype, at, DType::kFloat64, values.data(), to - from);
    const std::uint64_t signs =
        XXH3_64bits_withSeed(&block, sizeof(block), seed_) >> (from - block);
    // Four sums each, so that additions do not wait for each other; signs without a branch, which
    // would be predicted wrongly half the time.
    std::array<double, 4> plain{};
    std::array<double, 4> squares{};
    std::size_t count = to - from;
    for (std::size_t i = count; i < (count + 3) / 4 * 4; ++i) values[i] = 0;
    for (std::size_t i = 0; i < count; i += 4) {
      for (std::size_t k = 0; k < 4; ++k) {
        const std::uint64_t minus = ~(signs >> (i + k)) << 63;
        plain[k] += std::bit_cast<double>(std::bit_cast<std::uint64_t>(values[i + k]) ^ minus);
        squares[k] += values[i + k] * values[i + k];
      }
    }
    sum.value += (plain[0] + plain[1]) + (plain[2] + plain[3]);
    sum.squares += (squares[0] + squares[1]) + (squares[2] + squares[3]);
  }
  return {.value = sum.value * std::sqrt(scale_), .squares = sum.squares * scale_};
}

}  // namespace gradwire
