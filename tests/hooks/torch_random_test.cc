#include "hooks/power_sgd/torch_random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace gradwire {
namespace {

std::vector<float> Normals(TorchGenerator& generator, std::size_t numel) {
  std::vector<float> values(numel);
  generator.Normal(values);
  return values;
}

TEST(NumpyRandomState, DrawsNumpysSeeds) {
  NumpyRandomState state(0);
  for (const std::uint32_t expected :
       {209652396U, 398764591U, 924231285U, 404868288U, 441365315U}) {
    EXPECT_EQ(state.NextSeed(), expected);
  }
}

TEST(NumpyRandomState, DrawsBelowOneBillion) {
  for (const std::uint32_t seed : {1U, 4294967295U}) {
    NumpyRandomState state(seed);
    for (int i = 0; i < 10000; ++i) ASSERT_LT(state.NextSeed(), 1000000000U);
  }
}

TEST(NumpyRandomState, GoesOnWhereItWasPrinted) {
  NumpyRandomState state(42);
  for (int draws = 0; draws < 1500; draws += 71) {
    const auto parsed = NumpyRandomState::Parse(state.ToString());
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, state);
    NumpyRandomState copy = *parsed;
    for (int i = 0; i < 71; ++i) ASSERT_EQ(copy.NextSeed(), state.NextSeed());
    EXPECT_EQ(copy.ToString(), state.ToString());
  }
}

TEST(NumpyRandomState, ParsesTheLongestText) {
  std::string text;
  for (std::size_t i = 0; i < std::mt19937::state_size; ++i) text += "4294967295 ";
  const auto state = NumpyRandomState::Parse(text + "624");
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->ToString(), text + "624");
}

std::string Repeated(const std::string& word, std::size_t count, const std::string& last) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += word + " ";
  return text + last;
}

TEST(NumpyRandomState, RefusesAnyOtherText) {
  const std::string good = NumpyRandomState(9).ToString();
  const std::size_t last = good.rfind(' ');
  const std::vector<std::string> bad = {
      "",
      " ",
      "7",
      "garbage",
      std::string(1, '\0'),
      good + " ",
      " " + good,
      good + " 1",
      good + "x",
      good + '\0',
      good + "\n",
      good.substr(0, last),
      good.substr(0, last + 1),
      good.substr(0, last) + " 625",
      good.substr(0, last) + " -1",
      good.substr(0, last) + " 18446744073709551615",
      good.substr(0, last) + " 0x10",
      good.substr(0, last) + "  624",
      good.substr(0, last) + "\t624",
      good.substr(0, last) + " 0624",
      "-" + good,
      "+" + good,
      "0" + good,
      Repeated("0", 624, "624"),
      Repeated("1", 623, "624"),
      Repeated("1", 625, "624"),
      Repeated("4294967296", 624, "624"),
      Repeated("18446744073709551615", 624, "1"),
      Repeated("99999999999999999999999", 624, "1"),
      Repeated("nan", 624, "1"),
      std::string(100 << 20, '1'),
      std::string(100 << 20, ' '),
  };
  for (const std::string& text : bad) {
    const auto state = NumpyRandomState::Parse(text);
    ASSERT_FALSE(state.ok()) << text.substr(0, 40) << " ... of " << text.size();
    EXPECT_EQ(state.status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(NumpyRandomState, SurvivesEveryCutAndManyChanges) {
  const std::string good = NumpyRandomState(3).ToString();
  for (std::size_t size = 0; size < good.size(); ++size) {
    const auto state = NumpyRandomState::Parse(good.substr(0, size));
    // Cutting digits off the last number leaves a position.
    EXPECT_EQ(state.ok(), size > good.rfind(' ') + 1) << size;
  }
  std::mt19937 random(1);
  for (int i = 0; i < 3000; ++i) {
    std::string text = good;
    text[random() % text.size()] = static_cast<char>(random());
    auto state = NumpyRandomState::Parse(text);
    if (!state.ok()) continue;
    EXPECT_EQ(state->ToString(), text);
    EXPECT_LT(state->NextSeed(), 1000000000U);
  }
}

TEST(TorchGenerator, DrawsFewerThanSixteenAsTorch) {
  TorchGenerator generator(209652396);
  EXPECT_EQ(Normals(generator, 5),
            (std::vector<float>{-0.8103023767F, 0.4133994579F, -1.2778252363F, 0.3302519619F,
                                0.3386461735F}));
}

TEST(TorchGenerator, DrawsSixteenAndMoreAsTorchDoesWithAvx2) {
  TorchGenerator generator(209652396);
  const std::vector<float> values = Normals(generator, 20);
  const std::vector<std::pair<std::size_t, float>> expected = {
      {0, -0.6394617558F},  {1, -0.1133734211F},  {2, 1.2295761108F},
      {17, -2.0830762386F}, {18, -2.2713122368F}, {19, 0.4596719742F}};
  for (const auto& [at, value] : expected) {
    EXPECT_EQ(values[at], value) << at;
  }
}

TEST(TorchGenerator, KeepsTheSecondOfAPairForTheNextShortDraw) {
  TorchGenerator at_once(5);
  TorchGenerator in_parts(5);
  const std::vector<float> expected = Normals(at_once, 10);
  std::vector<float> parts;
  for (const std::size_t numel : {1U, 0U, 3U, 1U, 5U}) {
    for (const float value : Normals(in_parts, numel)) parts.push_back(value);
  }
  EXPECT_EQ(parts, expected);
}

TEST(TorchGenerator, KeepsItAcrossLongDraws) {
  TorchGenerator pair(5);
  const std::vector<float> expected = Normals(pair, 2);
  const std::vector<float> long_after_pair = Normals(pair, 33);
  TorchGenerator split(5);
  EXPECT_EQ(Normals(split, 1)[0], expected[0]);
  EXPECT_EQ(Normals(split, 33), long_after_pair);
  EXPECT_EQ(Normals(split, 1)[0], expected[1]);
}

TEST(TorchGenerator, RedrawsTheLastSixteenOfAnUnevenLength) {
  TorchGenerator even(8);
  TorchGenerator uneven(8);
  const std::vector<float> whole = Normals(even, 32);
  const std::vector<float> values = Normals(uneven, 33);
  EXPECT_TRUE(std::equal(values.begin(), values.begin() + 17, whole.begin()));
  EXPECT_NE(values[17], whole[17]);
}

TEST(TorchGenerator, DrawsAStandardNormalDistribution) {
  for (const std::size_t numel : {15U, 100001U}) {
    TorchGenerator generator(77);
    double sum = 0;
    double squares = 0;
    std::size_t count = 0;
    while (count < 100000) {
      for (const float value : Normals(generator, numel)) {
        sum += value;
        squares += static_cast<double>(value) * value;
        ++count;
      }
    }
    EXPECT_NEAR(sum / static_cast<double>(count), 0, 0.02);
    EXPECT_NEAR(squares / static_cast<double>(count), 1, 0.03);
  }
}

}  // namespace
}  // namespace gradwire
