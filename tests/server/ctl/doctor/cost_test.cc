#include "server/ctl/doctor/cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/ctl/doctor/model.h"

namespace gradwire::ctl {
namespace {

constexpr double kStep = 0.01;
constexpr double kRoundTrip = 0.004;

Link PlainLink() {
  return {.bytes_per_second = 1e6,
          .step_seconds = kStep,
          .round_trip_seconds = kRoundTrip,
          .whole_bytes_per_second = 5e5};
}

TEST(StepSeconds, IsTheStarsFormula) {
  // One server, n members: n C / B beside the smallest step.
  EXPECT_DOUBLE_EQ(StepSeconds({.rounds = {{.streamed_bytes = 100000}}}, 4, PlainLink()), 0.41);
  // A second round waits for one more round trip.
  EXPECT_DOUBLE_EQ(
      StepSeconds({.rounds = {{.streamed_bytes = 1000}, {.streamed_bytes = 2000}}}, 1, PlainLink()),
      0.01 + 0.003 + 0.004);
  // What is orthonormalized travels up and down in turn.
  EXPECT_DOUBLE_EQ(
      StepSeconds({.rounds = {{.whole_bytes = 1000}}, .compute_seconds = 0.5}, 2, PlainLink()),
      0.01 + 0.004 + 0.5);
  // A hook that exchanges nothing still ends its steps together.
  EXPECT_DOUBLE_EQ(StepSeconds({}, 8, PlainLink()), 0.01);
}

TEST(CrossingSeconds, FollowsWhatWasMeasured) {
  const Link link{.bytes_per_second = 1e6, .crossings = {{1000, 0.002}, {3000, 0.004}}};
  EXPECT_DOUBLE_EQ(CrossingSeconds(link, 0), 0);
  EXPECT_DOUBLE_EQ(CrossingSeconds(link, 500), 0.001);
  EXPECT_DOUBLE_EQ(CrossingSeconds(link, 1000), 0.002);
  EXPECT_DOUBLE_EQ(CrossingSeconds(link, 2000), 0.003);
  EXPECT_DOUBLE_EQ(CrossingSeconds(link, 5000), 0.006);
  EXPECT_DOUBLE_EQ(
      CrossingSeconds({.bytes_per_second = 1e6, .members = 2, .crossings = {{1000, 0.004}}}, 2000),
      0.006);
  // Two members fill the link twice.
  EXPECT_DOUBLE_EQ(StepSeconds({.rounds = {{.streamed_bytes = 2000}}}, 2, link), 0.006);
}

TEST(MeasureCost, CountsTheBytesThatEachHookSends) {
  const auto model = ParseShapes("100x50,7");
  ASSERT_TRUE(model.ok());
  const auto cost = [&](const std::string& text) {
    const auto spec = HookFromText(text);
    EXPECT_TRUE(spec.ok()) << spec.status();
    auto measured = MeasureCost(*spec, *model);
    EXPECT_TRUE(measured.ok()) << measured.status();
    return *measured;
  };
  EXPECT_EQ(cost("no").bytes(), 4U * (100 * 50 + 7));
  EXPECT_EQ(cost("no").rounds.size(), 1U);
  EXPECT_EQ(cost("fp16").bytes(), 2U * (100 * 50 + 7));
  EXPECT_EQ(cost("noop").bytes(), 0U);
  // PowerSGD of rank 3: P is 100 x 3 and waits for all, Q is 50 x 3; the vector goes as it is.
  const StepCost low_rank = cost("power_sgd,matrix_approximation_rank=3");
  ASSERT_EQ(low_rank.rounds.size(), 2U);
  EXPECT_EQ(low_rank.rounds[0].whole_bytes, 4U * 100 * 3);
  EXPECT_EQ(low_rank.rounds[0].streamed_bytes, 4U * 7);
  EXPECT_EQ(low_rank.rounds[1].streamed_bytes, 4U * 50 * 3);
  EXPECT_GT(low_rank.compute_seconds, 0);
  // Around it a wrapper halves every round.
  EXPECT_EQ(cost("power_sgd,comm_wrapper=fp16,matrix_approximation_rank=3").bytes(),
            low_rank.bytes() / 2);
}

TEST(HookFromText, CompressesAtOnceUnlessTheTextSaysWhen) {
  EXPECT_EQ(HookFromText("power_sgd")->comm_state_option.at("start_powerSGD_iter"),
            OptionValue(std::int64_t{2}));
  EXPECT_EQ(
      HookFromText("power_sgd,start_powerSGD_iter=9")->comm_state_option.at("start_powerSGD_iter"),
      OptionValue(std::int64_t{9}));
  EXPECT_TRUE(HookFromText("fp16")->comm_state_option.empty());
  EXPECT_THAT(HookFromText("fp17").status().message(), ::testing::HasSubstr("fp17"));
}

}  // namespace
}  // namespace gradwire::ctl
