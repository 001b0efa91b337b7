#include "hooks/non_finite.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "hooks/reduce.h"
#include "tests/hooks/reference.h"

namespace gradwire {
namespace {

using Bytes = std::vector<std::byte>;
using Piece = std::span<const std::byte>;

constexpr std::size_t kNumel = 9000;  // more than a block of the sink
constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};

// Three contributions: the first is finite, the others have `spoiled` values each that are not.
struct Spoiled {
  std::vector<Bytes> contributions;
  NonFiniteSources expected;
};

Spoiled Spoil(DType dtype, std::size_t spoiled, unsigned seed) {
  std::mt19937 random(seed);
  Spoiled all;
  for (std::size_t k = 0; k < 3; ++k) {
    auto patterns = reference::ModeratePatterns(dtype, kNumel, seed + k);
    for (std::size_t i = 0; k > 0 && i < spoiled; ++i) {
      const std::uint64_t nan = reference::CanonicalNan(dtype);
      // Without its lowest set bit, the quiet one, it is an infinity.
      const std::uint64_t infinity = nan & (nan - 1);
      patterns[random() % kNumel] = random() % 2 == 0 ? nan : infinity;
    }
    NonFinite found{.contribution = k, .element = kNumel};
    for (std::size_t i = kNumel; i-- > 0;) {
      if (reference::IsFinite(dtype, patterns[i])) continue;
      found.element = i;
      ++(reference::IsNan(dtype, patterns[i]) ? found.nans : found.infinities);
    }
    if (found.element < kNumel) all.expected.push_back(found);
    all.contributions.push_back(reference::Pack(dtype, patterns));
  }
  return all;
}

std::vector<Piece> Cut(const Bytes& bytes, std::size_t most) {
  std::vector<Piece> pieces;
  for (std::size_t at = 0; at < bytes.size(); at += most) {
    pieces.push_back(Piece(bytes).subspan(at, std::min(most, bytes.size() - at)));
  }
  return pieces;
}

class NonFiniteTest : public testing::TestWithParam<DType> {};

TEST_P(NonFiniteTest, ReductionNamesWhoseValuesTheyAre) {
  for (const std::size_t spoiled : std::initializer_list<std::size_t>{1, 7, 3000}) {
    for (const std::size_t piece : std::initializer_list<std::size_t>{5, 4096, 1 << 20}) {
      const Spoiled given = Spoil(GetParam(), spoiled, static_cast<unsigned>(spoiled));
      std::vector<std::vector<Piece>> cut;
      for (const Bytes& one : given.contributions) cut.push_back(Cut(one, piece));
      const std::vector<Pieces> contributions(cut.begin(), cut.end());
      Bytes out(kNumel * ByteSize(GetParam()));
      const ReduceOutcome outcome = Reduce(GetParam(), ReduceOp::kMean, kNumel, contributions, out);
      EXPECT_FALSE(outcome.finite);
      EXPECT_EQ(outcome.sources, given.expected);
      EXPECT_EQ(FindNonFinite(GetParam(), kNumel, contributions), given.expected);
    }
  }
}

// As a daemon does in shared memory: the results replace what they were computed from.
TEST_P(NonFiniteTest, ResultsThatOverwriteContributionsHideNothing) {
  const Spoiled given = Spoil(GetParam(), 20, 1);
  std::vector<Bytes> memory = given.contributions;
  std::vector<std::vector<Piece>> whole;
  for (const Bytes& one : memory) whole.push_back({Piece(one)});
  const std::vector<Pieces> contributions(whole.begin(), whole.end());
  Bytes out(kSinkBytes);
  const auto overwrite = [&](std::size_t begin, std::span<const std::byte> results) {
    for (Bytes& one : memory) {
      std::memcpy(one.data() + begin * ByteSize(GetParam()), results.data(), results.size());
    }
  };
  const ReduceOutcome outcome =
      ReduceInto(GetParam(), ReduceOp::kSum, kNumel, contributions, out, {}, 0, overwrite);
  EXPECT_EQ(outcome.sources, given.expected);
}

INSTANTIATE_TEST_SUITE_P(DTypes, NonFiniteTest, testing::ValuesIn(kDTypes));

std::vector<Piece> BytesOf(const std::vector<float>& values) {
  return {std::as_bytes(std::span(values))};
}

TEST(NonFinite, SumThatIsTooLargeIsNobodys) {
  const std::vector<float> large(10, std::numeric_limits<float>::max());
  const std::vector<std::vector<Piece>> pieces = {BytesOf(large), BytesOf(large)};
  const std::vector<Pieces> contributions(pieces.begin(), pieces.end());
  Bytes out(40);
  const ReduceOutcome outcome = Reduce(DType::kFloat32, ReduceOp::kSum, 10, contributions, out);
  EXPECT_FALSE(outcome.finite);
  EXPECT_EQ(outcome.sources, NonFiniteSources());
}

TEST(NonFinite, RawGradientBeyondTheWireTypeIsInfinite) {
  std::vector<float> fits(2000, 60000);
  std::vector<float> large = fits;
  large[1234] = 1e6F;
  const std::vector<std::vector<Piece>> pieces = {BytesOf(fits), BytesOf(large)};
  const std::vector<Pieces> contributions(pieces.begin(), pieces.end());
  const RawContributions raw{.dtype = DType::kFloat32, .divisor = 2, .is_raw = {true, true}};
  Bytes out(4000);
  const NonFiniteSources expected = {{.contribution = 1, .element = 1234, .infinities = 1}};
  EXPECT_EQ(Reduce(DType::kFloat16, ReduceOp::kSum, 2000, contributions, out, raw).sources,
            expected);
  EXPECT_EQ(FindNonFinite(DType::kFloat16, 2000, contributions, raw), expected);
}

TEST(NonFinite, OrthonormalizedSumNamesThemToo) {
  std::vector<float> fine(12, 1);
  std::vector<float> spoiled = fine;
  spoiled[9] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::vector<Piece>> pieces = {BytesOf(spoiled), BytesOf(fine)};
  const std::vector<Pieces> contributions(pieces.begin(), pieces.end());
  const Segment segment{.dtype = DType::kFloat32,
                        .numel = 12,
                        .op = ReduceOp::kOrthonormalizedSum,
                        .matrices = {{.rows = 3, .cols = 2}, {.rows = 6, .cols = 1}}};
  Bytes out(48);
  const ReduceOutcome outcome = ReduceOrthonormalized(segment, contributions, out);
  EXPECT_FALSE(outcome.finite);
  EXPECT_EQ(outcome.sources, (NonFiniteSources{{.element = 9, .nans = 1}}));
}

}  // namespace
}  // namespace gradwire
