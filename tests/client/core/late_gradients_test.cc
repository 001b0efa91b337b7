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

// ---- Those of another member

class TakenLateGradientsTest : public LateGradientsTest {
 protected:
  // What another member keeps, which has all gradients multiplied by `scale`.
  HookState Of(std::vector<float> values, double scale = 1) {
    LateGradients other;
    other.SetLossScale(scale);
    other.Keep(Positions{0, 1}, Bucket(values));
    return other.State(manifest_);
  }

  const std::vector<ParameterSpec> manifest_ = {{"p0", {2}, DType::kFloat32},
                                                {"p1", {2}, DType::kFloat32}};
};

TEST_F(TakenLateGradientsTest, AreAddedInTheOwnLossScale) {
  late_.SetLossScale(4);
  Keep({1}, {10, 20});
  ASSERT_TRUE(late_.Take(Of({2, 4, 6, 8}, 2), manifest_).ok());
  EXPECT_THAT(Enter({0, 1}, {0, 0, 0, 0}), ElementsAre(4, 8, 22, 36));
}

TEST_F(TakenLateGradientsTest, WaitWhereTheStepHasOthersOfTheirParameter) {
  Keep({0}, {1, 2});
  EXPECT_THAT(Enter({0}, {0, 0}), ElementsAre(1, 2));
  ASSERT_TRUE(late_.Take(Of({10, 20, 30, 40}), manifest_).ok());
  ASSERT_TRUE(late_.Take(Of({1, 1, 1, 1}), manifest_).ok());
  EXPECT_THAT(late_.coming(), SizeIs(1));
  EXPECT_THAT(Enter({1}, {0, 0}), ElementsAre(31, 41));
  late_.Conclude(Verdict::kApply);
  EXPECT_THAT(late_.coming(), IsEmpty());
  EXPECT_THAT(Enter({0, 1}, {0, 0, 0, 0}), ElementsAre(11, 21, 0, 0));
  late_.Conclude(Verdict::kApply);
  EXPECT_THAT(late_.kept(), IsEmpty());
}

TEST_F(TakenLateGradientsTest, AreKeptBesideThoseOfASkippedStep) {
  Keep({0}, {1, 2});
  Enter({0}, {0, 0});
  ASSERT_TRUE(late_.Take(Of({10, 20, 30, 40}), manifest_).ok());
  late_.Conclude(Verdict::kSkip);
  EXPECT_THAT(Enter({0, 1}, {0, 0, 0, 0}), ElementsAre(11, 22, 30, 40));
}

TEST_F(TakenLateGradientsTest, AreAllRefusedIfOneDoesNotFit) {
  const auto refused = [this](const HookState& state) {
    const absl::Status taken = late_.Take(state, manifest_);
    EXPECT_THAT(late_.kept(), IsEmpty());
    return !taken.ok();
  };
  HookState state = Of({1, 2, 3, 4});
  EXPECT_TRUE(LateGradients::IsLate(state));
  state.tensors[1].name = "other";
  EXPECT_TRUE(refused(state));
  state = Of({1, 2, 3, 4});
  state.tensors[1].dtype = DType::kFloat64;
  EXPECT_TRUE(refused(state));
  state = Of({1, 2, 3, 4});
  state.metadata["loss_scale"] = "0";
  EXPECT_TRUE(refused(state));
  state = Of({1, 2, 3, 4});
  const float infinite = std::numeric_limits<float>::infinity();
  std::memcpy(state.tensors[1].data.data(), &infinite, sizeof(infinite));
  EXPECT_TRUE(refused(state));
  EXPECT_FALSE(LateGradients::IsLate({}));
}

}  // namespace
}  // namespace gradwire::client
