#include "hooks/power_sgd/torch_random.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <locale>
#include <numbers>
#include <sstream>
#include <system_error>

#include "absl/status/status.h"
#include "base/error_code.h"

namespace gradwire {
namespace {

// torch's hook calls numpy's randint(1'000'000'000) for each seed. numpy's legacy generator masks a
// word to the 30 bits that hold the bound and rejects values above it.
constexpr std::uint32_t kSeeds = 1'000'000'000;
constexpr std::uint32_t kMask = (1U << 30) - 1;
constexpr std::size_t kBlock = 16;
constexpr std::size_t kMaxText = std::mt19937::state_size * 11 + 8;

constexpr auto kTwoPi = static_cast<float>(2.0 * std::numbers::pi);

// The logarithm, sine and cosine of PyTorch's vectorised normal_fill (Cephes' polynomials as in
// avx_mathfun, products and sums fused as its compilers fuse them), one lane of them: equal seeds
// give equal bits, which no C library's functions would.
float CephesLog(float x) {
  constexpr float kCoefficients[] = {-1.1514610310E-1F, 1.1676998740E-1F,  -1.2420140846E-1F,
                                     1.4249322787E-1F,  -1.6668057665E-1F, 2.0000714765E-1F,
                                     -2.4999993993E-1F, 3.3333331174E-1F};
  constexpr float kLog2Low = -2.12194440e-4F;
  constexpr float kLog2High = 0.693359375F;
  const auto bits = std::bit_cast<std::uint32_t>(x);
  auto exponent = static_cast<float>(static_cast<int>(bits >> 23) - 126);
  x = std::bit_cast<float>((bits & ~0x7F800000U) | 0x3F000000U);
  if (x < std::numbers::sqrt2_v<float> / 2) {
    x = (x - 1.0F) + x;
    exponent -= 1.0F;
  } else {
    x -= 1.0F;
  }
  const float square = x * x;
  float y = 7.0376836292E-2F;
  for (const float c : kCoefficients) y = std::fma(y, x, c);
  y *= x;
  y = std::fma(y, square, exponent * kLog2Low);
  y = std::fma(-square, 0.5F, y);
  return std::fma(exponent, kLog2High, x + y);
}

struct SineCosine {
  float sine;
  float cosine;
};

// For x >= 0. Subtracts a multiple of pi / 4 in three parts (Cody and Waite), so that the reduced
// argument keeps float's precision; the octant selects the polynomial and the signs.
SineCosine CephesSineCosine(float x) {
  const int octant = (static_cast<int>(x * 1.27323954473516F) + 1) & ~1;
  const auto y = static_cast<float>(octant);
  x = std::fma(y, -0.78515625F, x);
  x = std::fma(y, -2.4187564849853515625e-4F, x);
  x = std::fma(y, -3.77489497744594108e-8F, x);
  const float z = x * x;
  float even = std::fma(2.443315711809948E-5F, z, -1.388731625493765E-3F);
  even = std::fma(even, z, 4.166664568298827E-2F) * z;
  even = std::fma(even, z, -(z * 0.5F)) + 1.0F;
  float odd = std::fma(-1.9515295891E-4F, z, 8.3321608736E-3F);
  odd = std::fma(odd, z, -1.6666654611E-1F) * z;
  odd = std::fma(odd, x, x);
  const bool straight = (octant & 2) == 0;
  const float sine = straight ? odd : even;
  const float cosine = straight ? even : odd;
  return {.sine = (octant & 4) != 0 ? -sine : sine,
          .cosine = ((octant - 2) & 4) == 0 ? -cosine : cosine};
}

// Accepts the text that operator<< writes: 624 words and the number of words already used.
// operator>> alone would accept an index out of range, and a state of zeros repeats zero forever.
bool IsState(const std::string& text) {
  if (text.size() > kMaxText) return false;
  std::size_t count = 0;
  bool any_bit = false;
  std::uint32_t value = 0;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc() || (*at == '0' && next - at > 1)) return false;
    const bool is_word = count < std::mt19937::state_size;
    any_bit = any_bit || (is_word && value != 0);
    ++count;
    at = next;
    if (at == end) break;
    if (!is_word || *at != ' ') return false;
    ++at;
  }
  return count == std::mt19937::state_size + 1 && value <= std::mt19937::state_size && any_bit;
}

}  // namespace

NumpyRandomState::NumpyRandomState(std::uint32_t seed) : words_(seed) {}

std::uint32_t NumpyRandomState::NextSeed() {
  while (true) {
    const auto word = static_cast<std::uint32_t>(words_()) & kMask;
    if (word < kSeeds) return word;
  }
}

std::string NumpyRandomState::ToString() const {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text << words_;
  return text.str();
}

absl::StatusOr<NumpyRandomState> NumpyRandomState::Parse(const std::string& text) {
  if (!IsState(text)) {
    return Coded(ErrorCode::kStateFile,
                 absl::InvalidArgumentError("state: generator is no Mersenne Twister's state"));
  }
  NumpyRandomState state(0);
  std::istringstream in(text);
  in.imbue(std::locale::classic());
  in >> state.words_;
  return state;
}

TorchGenerator::TorchGenerator(std::uint32_t seed) : words_(seed) {}

std::uint64_t TorchGenerator::Next64() {
  const auto high = static_cast<std::uint64_t>(words_());
  return high << 32 | static_cast<std::uint64_t>(words_());
}

// torch's uniform float in [0, 1): the low 24 bits, which is float's precision.
float TorchGenerator::NextUniform() {
  return static_cast<float>(words_() & ((1U << 24) - 1)) * 0x1p-24F;
}

// torch's normal_ on CPUs. Below 16 elements it uses Box-Muller in double and caches the second
// value of each pair across calls. From 16 on it fills the buffer with uniforms and transforms
// blocks of 16; a remainder is covered by drawing the last 16 elements again.
void TorchGenerator::Normal(std::span<float> out) {
  if (out.size() < kBlock) {
    for (float& value : out) {
      if (has_cached_) {
        value = static_cast<float>(cached_);
        has_cached_ = false;
        continue;
      }
      constexpr std::uint64_t kMask53 = (std::uint64_t{1} << 53) - 1;
      const double u1 = static_cast<double>(Next64() & kMask53) * 0x1p-53;
      const double u2 = static_cast<double>(Next64() & kMask53) * 0x1p-53;
      const double radius = std::sqrt(-2.0 * std::log1p(-u2));
      const double angle = 2.0 * std::numbers::pi * u1;
      cached_ = radius * std::sin(angle);
      has_cached_ = true;
      value = static_cast<float>(radius * std::cos(angle));
    }
    return;
  }
  const auto transform = [](std::span<float> block) {
    for (std::size_t j = 0; j < kBlock / 2; ++j) {
      const float u1 = 1.0F - block[j];
      const float radius = std::sqrt(-2.0F * CephesLog(u1));
      const SineCosine angle = CephesSineCosine(kTwoPi * block[j + kBlock / 2]);
      block[j] = radius * angle.cosine;
      block[j + kBlock / 2] = radius * angle.sine;
    }
  };
  for (float& value : out) value = NextUniform();
  for (std::size_t i = 0; i + kBlock <= out.size(); i += kBlock) transform(out.subspan(i, kBlock));
  if (out.size() % kBlock == 0) return;
  const std::span<float> last = out.last(kBlock);
  for (float& value : last) value = NextUniform();
  transform(last);
}

}  // namespace gradwire
