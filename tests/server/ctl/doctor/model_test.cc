#include "server/ctl/doctor/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradwire::ctl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Model, HasTheElementsOfTheWellKnownOnes) {
  // As sum(p.numel() for p in model.parameters()) has them.
  EXPECT_EQ(Elements(*ModelByName("resnet18")), 11689512U);
  EXPECT_EQ(ModelByName("resnet18")->size(), 62U);
  EXPECT_EQ(Elements(*ModelByName("gpt2")), 124439808U);
  EXPECT_EQ(ModelByName("gpt2")->size(), 148U);
  EXPECT_EQ(Elements(*ModelByName("mlp")), 784U * 1024 + 1024 + 1024U * 1024 + 1024 + 10240 + 10);
}

TEST(Model, NamesTheModelsThatThereAre) {
  const absl::Status unknown = ModelByName("resnet\n50").status();
  EXPECT_THAT(unknown.message(), HasSubstr("; allowed: gpt2, mlp, resnet18"));
  EXPECT_THAT(unknown.message(), Not(HasSubstr("\n")));
}

TEST(Shapes, RepeatsAndNumbersParameters) {
  const auto parameters = ParseShapes("3x2,2*5");
  ASSERT_TRUE(parameters.ok()) << parameters.status();
  ASSERT_EQ(parameters->size(), 3U);
  EXPECT_THAT((*parameters)[0].shape, ElementsAre(3, 2));
  EXPECT_THAT((*parameters)[2].shape, ElementsAre(5));
  EXPECT_EQ((*parameters)[2].name, "2");
}

TEST(Shapes, RefusesWhatIsNoneOrTooLarge) {
  for (const char* text : {"", "x", "3x", "0", "-1", "3x0x2", "a", "0*3", "*3", "2*", "1,,2", "3 x",
                           "99999999999999999999"}) {
    const auto parameters = ParseShapes(text);
    EXPECT_EQ(parameters.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(parameters.status().message(), HasSubstr("allowed: sizes from 1")) << text;
  }
  EXPECT_THAT(ParseShapes("32768x32769").status().message(), HasSubstr("more than 1073741824"));
  EXPECT_THAT(ParseShapes("4611686018427387904x4").status().message(), HasSubstr("more than"));
  EXPECT_THAT(ParseShapes("1073741824,1").status().message(), HasSubstr("more than"));
  EXPECT_THAT(ParseShapes("100000*1,1").status().message(), HasSubstr("more than 100000 param"));
  EXPECT_THAT(ParseShapes("4000000000*1").status().message(), HasSubstr("more than 100000 param"));
  EXPECT_TRUE(ParseShapes("100000*1").ok());
}

}  // namespace
}  // namespace gradwire::ctl
