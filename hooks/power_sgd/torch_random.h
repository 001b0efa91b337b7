// The random numbers with which PyTorch's PowerSGDState initializes the first Q.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace gradwire {

// numpy.random.RandomState(seed), as far as PowerSGD uses it.
class NumpyRandomState {
 public:
  explicit NumpyRandomState(std::uint32_t seed);

  // randint(10**9): 32-bit words masked to 30 bits, those from 10^9 on rejected.
  std::uint32_t NextSeed();

  // A text that Parse reads back; InvalidArgument for anything else.
  std::string ToString() const;
  static absl::StatusOr<NumpyRandomState> Parse(const std::string& text);

  bool operator==(const NumpyRandomState&) const = default;

 private:
  std::mt19937 words_;
};

// torch.manual_seed(seed) on a CPU generator, followed by torch.randn calls in fp32.
class TorchGenerator {
 public:
  explicit TorchGenerator(std::uint32_t seed);

  // One torch.randn of out.size() elements, bit for bit as PyTorch computes it on processors with
  // AVX2.
  void Normal(std::span<float> out);

 private:
  std::uint64_t Next64();
  float NextUniform();

  std::mt19937 words_;
  bool has_cached_ = false;
  double cached_ = 0;  // the sine partner of the last draw below 16 elements
};

}  // namespace gradwire
