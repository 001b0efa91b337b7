#include "hooks/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

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

TEST(Reduce, MeanOfLargeFloatsDoesNotOverflow) {
  const float largest = std::numeric_limits<float>::max();
  Bytes input(4);
  std::memcpy(input.data(), &largest, 4);
  const Bytes out = ReduceWhole(DType::kFloat32, ReduceOp::kMean, 1, {input, input, input});
  EXPECT_EQ(out, input);
}

}  // namespace
}  // namespace gradwire
