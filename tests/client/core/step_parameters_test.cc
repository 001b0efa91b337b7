#include "client/core/step_parameters.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/core/member_fixture.h"

namespace gradwire::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class StepParametersTest : public EffectsTest {
 protected:
  std::string ErrorOf(const GradBucket& bucket) {
    return std::string(parameters_.Map(bucket, 5).status().message());
  }
  StepParameters parameters_{options_.manifest};
};

TEST_F(StepParametersTest, FindsPositionsInTheBucketsOrder) {
  EXPECT_THAT(*parameters_.Map(Bucket({1, 0}), 5), ElementsAre(1U, 0U));
  EXPECT_EQ(parameters_.Find("e"), 2U);
  EXPECT_EQ(parameters_.Find("x"), std::nullopt);
}

TEST_F(StepParametersTest, AParameterIsInAStepOnce) {
  EXPECT_THAT(ErrorOf(Bucket({0, 0})), HasSubstr("parameter w is in step 5 already"));
  const auto positions = parameters_.Map(Bucket({0}), 5);
  ASSERT_TRUE(positions.ok()) << "a refused bucket uses nothing";
  parameters_.Use(*positions);
  EXPECT_THAT(ErrorOf(Bucket({1, 0})), HasSubstr("parameter w is in step 5 already"));
  EXPECT_TRUE(parameters_.Map(Bucket({1}), 5).ok());
  parameters_.Clear();
  EXPECT_TRUE(parameters_.Map(Bucket({1, 0}), 6).ok());
}

TEST_F(StepParametersTest, NamesWhatDoesNotFitTheManifest) {
  EXPECT_THAT(ErrorOf(Bucket({{"x", {4}, DType::kFloat32}}, 4)),
              HasSubstr("parameter x is not among the session's 3 parameters"));
  EXPECT_THAT(ErrorOf(Bucket({{"w", {4, 4}, DType::kFloat32}}, 16)),
              HasSubstr("parameter w has another shape or dtype"));
}

}  // namespace
}  // namespace gradwire::client
