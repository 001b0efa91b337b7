// Gradients that wait for a later step.
#include "client/core/late_gradients.h"

#include <cstring>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::client {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Positions = std::vector<std::uint32_t>;

// Parameters of two elements.
class LateGradientsTest : public ::testing::Test {
 protected:
  GradBucket& Bucket(std::vector<float>& values) {
    std::vector<ParameterSpec> specs;
    for (std::size_t i = 0; i < values.size() / 2; ++i) {
      specs.push_back({"p" + std::to_string(i), {2}, DType::kFloat32});
    }
    bucket_ = std::make_unique<GradBucket>(
        *GradBucket::Make(0, {DType::kFloat32, values.data(), values.size()}, specs));
    return *bucket_;
  }
  void Miss(const Positions& positions, std::vector<float> values) {
    late_.Miss(positions, Bucket(values));
  }
  void Keep(const Positions& positions, std::vector<float> values) {
    late_.Keep(positions, Bucket(values));
  }
  std::vector<float> Enter(const Positions& positions, std::vector<float> values) {
    late_.Enter(positions, Bucket(values));
    return values;
  }

  LateGradients late_;
  std::unique_ptr<GradBucket> bucket_;
};

TEST_F(LateGradientsTest, EnterTheStepAfterAnAppliedOneInWhateverBucket) {
  Miss({4, 7}, {1, 2, 3, 4});
  EXPECT_THAT(late_.kept(), IsEmpty());
  late_.Conclude(Verdict::kApply);
  EXPECT_THAT(Enter({7}, {10, 20}), ElementsAre(13, 24));
  EXPECT_THAT(Enter({5, 4}, {0, 0, 10, 20}), ElementsAre(0, 0, 11, 22));
  late_.Conclude(Verdict::kApply);
  EXPECT_THAT(late_.kept(), IsEmpty());
  EXPECT_THAT(Enter({4}, {1, 1}), Each(1));
}

TEST_F(LateGradientsTest, ASkippedStepLosesItsOwnOnly) {
  Miss({4}, {1, 2});
  late_.Conclude(Verdict::kApply);
  Miss({7}, {3, 4});
  Enter({4}, {0, 0});
  late_.Conclude(Verdict::kSkip);
  EXPECT_THAT(Enter({4, 7}, {0, 0, 0, 0}), ElementsAre(1, 2, 0, 0));
}

TEST_F(LateGradientsTest, EnterOnceInAStep) {
  Miss({4}, {1, 2});
  late_.Conclude(Verdict::kApply);
  Enter({4}, {0, 0});
  EXPECT_THAT(Enter({4}, {5, 6}), ElementsAre(5, 6));
}

TEST_F(LateGradientsTest, AddUpIfTheyAreLateAgain) {
  Miss({4}, {1, 2});
  late_.Conclude(Verdict::kApply);
  Miss({4}, {10, 20});
  late_.Conclude(Verdict::kApply);
  Keep({4}, {100, 200});  // of a step that was over before
  EXPECT_THAT(Enter({4}, {0, 0}), ElementsAre(111, 222));
}

// The step would have been skipped with them.
TEST_F(LateGradientsTest, AreNotKeptIfTheyAreNotFinite) {
  Miss({4, 7}, {1, std::numeric_limits<float>::infinity(), 3, 4});
  late_.Conclude(Verdict::kApply);
  EXPECT_THAT(late_.kept(), SizeIs(1));
  EXPECT_THAT(Enter({4, 7}, {0, 0, 0, 0}), ElementsAre(0, 0, 3, 4));
}

TEST_F(LateGradientsTest, FollowTheLossScale) {
  late_.SetLossScale(4);
  Miss({4}, {1, 2});
  late_.Conclude(Verdict::kApply);
  late_.SetLossScale(2);
  EXPECT_THAT(Enter({4}, {0, 0}), ElementsAre(0.5, 1));
}

// They may be why.
TEST_F(LateGradientsTest, AreDroppedWhenTheyWereInSkippedStepsAgainAndAgain) {
  Miss({4}, {1, 2});
  late_.Conclude(Verdict::kApply);
  for (int i = 0; i < 10; ++i) {
    EXPECT_THAT(Enter({4}, {0, 0}), ElementsAre(1, 2));
    late_.Conclude(Verdict::kSkip, /*dropped=*/true);
  }
  for (int i = 0; i < 4; ++i) {
    EXPECT_THAT(Enter({4}, {0, 0}), ElementsAre(1, 2));
    late_.Conclude(Verdict::kSkip);
  }
  EXPECT_THAT(late_.kept(), IsEmpty());
}

// 256 + 1 is no bfloat16.
TEST_F(LateGradientsTest, OfSixteenBitsAddUpInFloat32) {
  std::vector<std::uint16_t> values = {0x4380, 0x4380};  // 256
  GradBucket bucket =
      *GradBucket::Make(0, {DType::kBFloat16, values.data(), 2}, {{"p", {2}, DType::kBFloat16}});
  late_.Keep(Positions{4}, bucket);
  values = {0x3F80, 0x3F80};  // 1
  late_.Keep(Positions{4}, bucket);
  values = {0xC380, 0};  // -256 and 0
  late_.Enter(Positions{4}, bucket);
  EXPECT_EQ(values[0], 0x3F80);
  EXPECT_EQ(values[1], 0x4380);
}

}  // namespace
}  // namespace gradwire::client
