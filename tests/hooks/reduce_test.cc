#include "hooks/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "hooks/cpu/kernels.h"
#include "hooks/power_sgd/orthonormalize.h"
#include "tests/hooks/reference.h"

namespace gradwire {
namespace {

using Bytes = std::vector<std::byte>;
using Piece = std::span<const std::byte>;

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};

std::vector<Bytes> Contributions(DType dtype, std::size_t count, std::size_t numel) {
  std::vector<Bytes> all;
  for (std::size_t k = 0; k < count; ++k) {
    all.push_back(reference::Pack(dtype, reference::ModeratePatterns(dtype, numel, 100 + k)));
  }
  return all;
}

// Cuts `bytes` after each of the given offsets.
std::vector<Piece> Cut(const Bytes& bytes, const std::vector<std::size_t>& offsets) {
  std::vector<Piece> pieces;
  std::size_t begin = 0;
  for (const std::size_t offset : offsets) {
    pieces.push_back(Piece(bytes).subspan(begin, offset - begin));
    begin = offset;
  }
  pieces.push_back(Piece(bytes).subspan(begin));
  return pieces;
}

Bytes ReducePieces(DType dtype, ReduceOp op, std::size_t numel,
                   const std::vector<std::vector<Piece>>& cut, bool expect_finite = true) {
  std::vector<Pieces> contributions(cut.begin(), cut.end());
  Bytes out(numel * ByteSize(dtype) + 1, std::byte{0x5A});
  const ReduceOutcome outcome =
      Reduce(dtype, op, numel, contributions, std::span(out).first(out.size() - 1));
  EXPECT_EQ(outcome.finite, expect_finite);
  EXPECT_EQ(out.back(), std::byte{0x5A});
  out.pop_back();
  return out;
}

Bytes ReduceWhole(DType dtype, ReduceOp op, std::size_t numel, const std::vector<Bytes>& inputs) {
  std::vector<std::vector<Piece>> whole;
  for (const Bytes& input : inputs) whole.push_back({Piece(input)});
  return ReducePieces(dtype, op, numel, whole);
}

Bytes Expected(DType dtype, ReduceOp op, std::size_t numel, const std::vector<Bytes>& inputs) {
  std::vector<std::vector<std::uint64_t>> patterns;
  for (const Bytes& input : inputs) {
    patterns.push_back(reference::Unpack(dtype, input.data(), numel));
  }
  std::vector<std::uint64_t> results;
  const auto count = static_cast<double>(inputs.size());
  for (std::size_t i = 0; i < numel; ++i) {
    double wide = 0;
    float narrow = 0;
    for (const auto& source : patterns) {
      const long double value = reference::Decode(dtype, source[i]);
      wide += static_cast<double>(value);
      narrow += static_cast<float>(value);
    }
    if (op == ReduceOp::kMean) {
      wide /= count;
      narrow /= static_cast<float>(count);
    }
    results.push_back(reference::Encode(dtype, ByteSize(dtype) == 2 ? narrow : wide));
  }
  return reference::Pack(dtype, results);
}

TEST(Reduce, SumsAndAveragesInRankOrder) {
  for (const DType dtype : kDTypes) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
      for (std::size_t count = 1; count <= 9; ++count) {
        const std::vector<Bytes> inputs = Contributions(dtype, count, 3001);
        EXPECT_EQ(ReduceWhole(dtype, op, 3001, inputs), Expected(dtype, op, 3001, inputs))
            << Name(dtype) << " of " << count;
      }
    }
  }
}

TEST(Reduce, EverySplitGivesTheSameBytes) {
  for (const DType dtype : kDTypes) {
    constexpr std::size_t kNumel = 300;
    const std::vector<Bytes> inputs = Contributions(dtype, 3, kNumel);
    const Bytes expected = ReduceWhole(dtype, ReduceOp::kMean, kNumel, inputs);
    const std::size_t bytes = inputs[0].size();
    for (std::size_t at = 0; at <= bytes; ++at) {
      const std::vector<std::vector<Piece>> cut = {Cut(inputs[0], {at}), Cut(inputs[1], {}),
                                                   Cut(inputs[2], {bytes - at, bytes - at})};
      ASSERT_EQ(ReducePieces(dtype, ReduceOp::kMean, kNumel, cut), expected)
          << Name(dtype) << " split at " << at;
    }
  }
}

TEST(Reduce, RandomPiecesGiveTheSameBytes) {
  reference::Random random(11);
  for (const DType dtype : kDTypes) {
    for (std::size_t round = 0; round < 60; ++round) {
      const std::size_t count = 1 + random.Below(9);
      const std::size_t numel = 1 + random.Below(6000);
      const std::size_t longest = std::size_t{1} << random.Below(15);
      const std::vector<Bytes> inputs = Contributions(dtype, count, numel);
      std::vector<std::vector<Piece>> cut;
      for (const Bytes& input : inputs) {
        std::vector<std::size_t> offsets;
        for (std::size_t at = random.Below(longest + 1); at < input.size();
             at += random.Below(longest + 1)) {
          offsets.push_back(at);
        }
        cut.push_back(Cut(input, offsets));
      }
      ASSERT_EQ(ReducePieces(dtype, ReduceOp::kSum, numel, cut),
                ReduceWhole(dtype, ReduceOp::kSum, numel, inputs))
          << Name(dtype) << " numel " << numel << " pieces up to " << longest;
    }
  }
}

TEST(Reduce, PiecesOfOneByte) {
  const std::vector<Bytes> inputs = Contributions(DType::kFloat64, 2, 77);
  std::vector<std::size_t> offsets;
  for (std::size_t i = 1; i < inputs[0].size(); ++i) offsets.push_back(i);
  EXPECT_EQ(ReducePieces(DType::kFloat64, ReduceOp::kSum, 77,
                         {Cut(inputs[0], offsets), Cut(inputs[1], {})}),
            ReduceWhole(DType::kFloat64, ReduceOp::kSum, 77, inputs));
}

TEST(Reduce, ChunksGiveTheBytesOfTheWhole) {
  constexpr std::size_t kNumel = 5000;
  for (const DType dtype : kDTypes) {
    const std::vector<Bytes> inputs = Contributions(dtype, 4, kNumel);
    const Bytes expected = ReduceWhole(dtype, ReduceOp::kSum, kNumel, inputs);
    const std::size_t width = ByteSize(dtype);
    for (const std::size_t chunk : {1U, 7U, 64U, 4096U}) {
      Bytes joined;
      for (std::size_t begin = 0; begin < kNumel; begin += chunk) {
        const std::size_t numel = std::min<std::size_t>(chunk, kNumel - begin);
        std::vector<std::vector<Piece>> cut;
        for (const Bytes& input : inputs) {
          cut.push_back({Piece(input).subspan(begin * width, numel * width)});
        }
        const Bytes part = ReducePieces(dtype, ReduceOp::kSum, numel, cut);
        joined.insert(joined.end(), part.begin(), part.end());
      }
      EXPECT_EQ(joined, expected) << Name(dtype) << " in chunks of " << chunk;
    }
  }
}

TEST(Reduce, TakesMoreContributionsThanFitTheStack) {
  for (const std::size_t count : {63U, 64U, 65U, 200U}) {
    const std::vector<Bytes> inputs = Contributions(DType::kFloat32, count, 500);
    std::vector<std::vector<Piece>> cut;
    for (std::size_t k = 0; k < count; ++k) cut.push_back(Cut(inputs[k], {k + 1, 5 * k + 3}));
    EXPECT_EQ(ReducePieces(DType::kFloat32, ReduceOp::kSum, 500, cut),
              Expected(DType::kFloat32, ReduceOp::kSum, 500, inputs));
  }
}

TEST(Reduce, NoElements) {
  EXPECT_TRUE(ReducePieces(DType::kFloat32, ReduceOp::kMean, 0, {{}, {Piece()}}).empty());
}

TEST(Reduce, ReportsNonFiniteResultsWhereverTheyAre) {
  constexpr std::size_t kNumel = 1500;
  for (const DType dtype : kDTypes) {
    const std::uint64_t infinity = reference::FormatOf(dtype).exponent_mask();
    for (const std::size_t at : {std::size_t{0}, std::size_t{700}, kNumel - 1}) {
      std::vector<Bytes> inputs = Contributions(dtype, 2, kNumel);
      for (Bytes& input : inputs) {
        std::memcpy(input.data() + at * ByteSize(dtype), &infinity, ByteSize(dtype));
      }
      ReducePieces(dtype, ReduceOp::kSum, kNumel,
                   {Cut(inputs[0], {2801}), Cut(inputs[1], {1, 2000})}, false);
    }
  }
}

// Fused where all are raw: the same bits, subnormal quotients and the rest among them.
TEST(Reduce, DividesAndAddsInOnePass) {
  constexpr std::size_t kNumel = 4099;
  for (const double divisor : {1.0, 2.0, 3.0, 4.0, 7.0, 64.0}) {
    std::vector<Bytes> gradients;
    std::vector<Bytes> encoded;
    for (std::size_t k = 0; k < 3; ++k) {
      auto patterns = reference::ModeratePatterns(DType::kFloat32, kNumel, 40 + k);
      for (std::size_t i = 0; i < kNumel; i += 3) patterns[i] = i * 2654435761U % 0x01000000U;
      gradients.push_back(reference::Pack(DType::kFloat32, patterns));
      encoded.emplace_back(gradients.back().size());
      cpu::ConvertAndDivide(DType::kFloat32, gradients.back().data(), DType::kFloat32,
                            encoded.back().data(), kNumel, divisor);
    }
    const Bytes want = ReduceWhole(DType::kFloat32, ReduceOp::kSum, kNumel, encoded);
    const std::vector<std::vector<Piece>> cut = {
        Cut(gradients[0], {}), Cut(gradients[1], {5, 9001}), Cut(gradients[2], {2})};
    const std::vector<Pieces> contributions(cut.begin(), cut.end());
    Bytes out(want.size());
    const RawContributions raw{
        .dtype = DType::kFloat32, .divisor = divisor, .is_raw = {true, true, true}};
    EXPECT_TRUE(Reduce(DType::kFloat32, ReduceOp::kSum, kNumel, contributions, out, raw).finite);
    EXPECT_EQ(out, want) << divisor;
  }
}

// A raw contribution counts for what ConvertAndDivide makes of it, wherever it is cut.
TEST(Reduce, CastsAndDividesWhatIsRaw) {
  constexpr std::size_t kNumel = 5000;  // more than are cast at once
  for (const DType from : kDTypes) {
    for (const DType to : kDTypes) {
      const std::vector<Bytes> gradients = Contributions(from, 3, kNumel);
      std::vector<Bytes> encoded;
      for (const Bytes& gradient : gradients) {
        encoded.emplace_back(kNumel * ByteSize(to));
        cpu::ConvertAndDivide(from, gradient.data(), to, encoded.back().data(), kNumel, 3);
      }
      const Bytes want = ReduceWhole(to, ReduceOp::kSum, kNumel, encoded);
      const std::vector<std::vector<Piece>> cut = {
          Cut(gradients[0], {}), {Piece(encoded[1])}, Cut(gradients[2], {1, 777, 778, 3001})};
      const std::vector<Pieces> contributions(cut.begin(), cut.end());
      Bytes out(want.size());
      const RawContributions raw{.dtype = from, .divisor = 3, .is_raw = {true, false, true}};
      EXPECT_TRUE(Reduce(to, ReduceOp::kSum, kNumel, contributions, out, raw).finite);
      EXPECT_EQ(out, want) << Name(from) << " to " << Name(to);
    }
  }
}

TEST(Reduce, MeanOfLargeFloatsDoesNotOverflow) {
  const float largest = std::numeric_limits<float>::max();
  Bytes input(4);
  std::memcpy(input.data(), &largest, 4);
  const Bytes out = ReduceWhole(DType::kFloat32, ReduceOp::kMean, 1, {input, input, input});
  EXPECT_EQ(out, input);
}

// Against a sum in rank order over whole matrices, whose columns are then made orthonormal: three
// matrices of different sizes, in pieces that are cut inside of elements.
TEST(ReduceOrthonormalized, SumsUnroundedAndCutsNothingOff) {
  const std::vector<MatrixShape> shapes = {{700, 3}, {1, 1}, {40, 2}};
  std::size_t numel = 0;
  for (const MatrixShape& shape : shapes) numel += shape.numel();
  for (const DType dtype : kDTypes) {
    for (const std::size_t members : {1UL, 2UL, 5UL, 70UL}) {
      const Segment segment{
          .dtype = dtype, .numel = numel, .op = ReduceOp::kOrthonormalizedSum, .matrices = shapes};
      const std::vector<Bytes> inputs = Contributions(dtype, members, numel);
      std::vector<double> sum(numel);
      for (const Bytes& input : inputs) {
        const auto patterns = reference::Unpack(dtype, input.data(), numel);
        for (std::size_t i = 0; i < numel; ++i) {
          sum[i] += static_cast<double>(reference::Decode(dtype, patterns[i]));
        }
      }
      std::vector<std::uint64_t> expected;
      std::size_t at = 0;
      for (const MatrixShape& shape : shapes) {
        std::vector<double> columns;
        for (std::size_t c = 0; c < shape.cols; ++c) {
          for (std::size_t r = 0; r < shape.rows; ++r)
            columns.push_back(sum[at + r * shape.cols + c]);
        }
        ASSERT_TRUE(Orthonormalize(shape, 0, columns));
        for (std::size_t i = 0; i < shape.numel(); ++i) {
          const double value = columns[i % shape.cols * shape.rows + i / shape.cols];
          expected.push_back(reference::Encode(dtype, value));
        }
        at += shape.numel();
      }
      std::vector<std::vector<Piece>> cut;
      for (std::size_t m = 0; m < members; ++m)
        cut.push_back(Cut(inputs[m], {3, 1029, 1029, 2001 + m}));
      const std::vector<Pieces> contributions(cut.begin(), cut.end());
      Bytes out(segment.bytes());
      EXPECT_TRUE(gradwire::ReduceOrthonormalized(segment, contributions, out).finite);
      EXPECT_EQ(out, reference::Pack(dtype, expected)) << Name(dtype) << " " << members;
    }
  }
}

}  // namespace
}  // namespace gradwire
