#include "gradwire/hooks/hook_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "gradwire/hooks/registry.h"

namespace gradwire {
namespace {

using testing::HasSubstr;

// The options are what these tests are about, so they need a hook that takes some.
class HookSpecTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ASSERT_TRUE(HookRegistry::Global()
                    .Register("spec_test",
                              [](const HookSpec&) -> absl::StatusOr<std::unique_ptr<Hook>> {
                                return absl::UnimplementedError("not needed");
                              })
                    .ok());
  }

  static std::string Refusal(const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  }
  static std::string ParseRefusal(const std::string& text) {
    return Refusal(HookSpec::Parse(text).status());
  }
};

TEST_F(HookSpecTest, AcceptsTheBuiltInHooksAndWrappers) {
  for (const std::string hook : {"no", "fp16", "bf16", "noop"}) {
    for (const std::string wrapper : {"no", "fp16", "bf16"}) {
      EXPECT_TRUE((HookSpec{hook, wrapper, {}}.Validate().ok())) << hook << " " << wrapper;
    }
  }
  EXPECT_TRUE(HookSpec().Validate().ok());
}

TEST_F(HookSpecTest, RefusesByFieldValueAndWhatIsAllowed) {
  EXPECT_THAT(Refusal(HookSpec{"top_k", "no", {}}.Validate()),
              AllOf(HasSubstr("comm_hook: \"top_k\""),
                    HasSubstr("allowed: \"no\", \"fp16\", \"bf16\", \"power_sgd\", "
                              "\"batched_power_sgd\", \"noop\", \"spec_test\"")));
  EXPECT_THAT(Refusal(HookSpec{"", "no", {}}.Validate()), HasSubstr("comm_hook: \"\""));
  EXPECT_THAT(
      Refusal(HookSpec{"no", "fp8", {}}.Validate()),
      AllOf(HasSubstr("comm_wrapper: \"fp8\""), HasSubstr("allowed: \"no\", \"fp16\", \"bf16\"")));
  EXPECT_THAT(Refusal(HookSpec{"fp16", "no", {{"rank", std::int64_t{2}}}}.Validate()),
              AllOf(HasSubstr("comm_state_option: \"rank\" (2)"), HasSubstr("\"fp16\""),
                    HasSubstr("no options")));
  for (const std::string name : {"", "a-b", "comm_hook", "comm_wrapper", "a b"}) {
    EXPECT_THAT(Refusal(HookSpec{"spec_test", "no", {{name, true}}}.Validate()),
                HasSubstr("comm_state_option: \"" + name + "\""));
  }
}

TEST_F(HookSpecTest, ParsesValuesByTheirLooks) {
  const absl::StatusOr<HookSpec> spec = HookSpec::Parse(
      "spec_test,comm_wrapper=bf16,a=true,b=false,c=-7,d=2.5,e=1e3,f=word,g=\"2\",h=,i=x=y");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->comm_hook, "spec_test");
  EXPECT_EQ(spec->comm_wrapper, "bf16");
  const std::map<std::string, OptionValue> expected = {
      {"a", true},
      {"b", false},
      {"c", std::int64_t{-7}},
      {"d", 2.5},
      {"e", 1000.0},
      {"f", std::string("word")},
      {"g", std::string("2")},
      {"h", std::string()},
      {"i", std::string("x=y")},
  };
  EXPECT_EQ(spec->comm_state_option, expected);
}

TEST_F(HookSpecTest, ToStringIsShort) {
  EXPECT_EQ(HookSpec().ToString(), "no");
  EXPECT_EQ((HookSpec{"fp16", "bf16", {}}.ToString()), "fp16,comm_wrapper=bf16");
  EXPECT_EQ((HookSpec{"spec_test", "no", {{"b", std::int64_t{2}}, {"a", 3.0}}}.ToString()),
            "spec_test,a=3.0,b=2");
}

TEST_F(HookSpecTest, ParseReadsWhatToStringPrints) {
  const OptionValue values[] = {
      true,
      false,
      std::int64_t{0},
      std::numeric_limits<std::int64_t>::min(),
      std::numeric_limits<std::int64_t>::max(),
      0.0,
      -3.0,
      0.1,
      1e300,
      5e-324,
      1e22,
      std::numeric_limits<double>::infinity(),
      std::string(),
      std::string("plain"),
      std::string("true"),
      std::string("12"),
      std::string("1e5"),
      std::string("nan"),
      std::string("99999999999999999999"),
      std::string("a,b=c"),
      std::string("say \"hi\"\\ there"),
      std::string("\""),
      std::string("\\"),
      std::string(" padded "),
  };
  for (const OptionValue& value : values) {
    const HookSpec spec = {"spec_test", "fp16", {{"first", value}, {"second", value}}};
    const absl::StatusOr<HookSpec> read = HookSpec::Parse(spec.ToString());
    ASSERT_TRUE(read.ok()) << spec.ToString() << ": " << read.status();
    EXPECT_EQ(*read, spec) << spec.ToString();
  }
}

TEST_F(HookSpecTest, ParseRefusesWhatItCannotRead) {
  EXPECT_THAT(ParseRefusal(""), HasSubstr("comm_hook: \"\""));
  EXPECT_THAT(ParseRefusal("fp17"), HasSubstr("\"fp17\""));
  EXPECT_THAT(ParseRefusal("fp16,"), HasSubstr("name=value"));
  EXPECT_THAT(ParseRefusal("fp16,bf16"), HasSubstr("\"bf16\""));
  EXPECT_THAT(ParseRefusal("fp16,comm_wrapper=x"), HasSubstr("comm_wrapper: \"x\""));
  EXPECT_THAT(ParseRefusal("fp16,rank=1"), HasSubstr("\"rank\" (1)"));
  EXPECT_THAT(ParseRefusal("spec_test,a=1,a=2"), HasSubstr("\"a\" is given twice"));
  EXPECT_THAT(ParseRefusal("no,comm_wrapper=no,comm_wrapper=fp16"), HasSubstr("given twice"));
  EXPECT_THAT(ParseRefusal("spec_test,a=99999999999999999999"), HasSubstr("out of range"));
  EXPECT_THAT(ParseRefusal("spec_test,a=1e999"), HasSubstr("out of range"));
  EXPECT_THAT(ParseRefusal("spec_test,a=\"open"), HasSubstr("quoted string"));
  EXPECT_THAT(ParseRefusal("spec_test,a=\"x\"y"), HasSubstr("quoted string"));
  EXPECT_THAT(ParseRefusal("spec_test,a=\"x\\"), HasSubstr("quoted string"));
  EXPECT_THAT(ParseRefusal("spec_test,=1"), HasSubstr("cannot name an option"));
}

TEST_F(HookSpecTest, FirstDifferenceNamesFieldAndBothValues) {
  const HookSpec base = {"spec_test", "fp16", {{"a", std::int64_t{1}}}};
  EXPECT_EQ(FirstDifference(base, base), std::nullopt);
  EXPECT_EQ(FirstDifference(base, HookSpec{"no", "fp16", {}}),
            "comm_hook is \"spec_test\"; the session's is \"no\"");
  EXPECT_EQ(FirstDifference(base, HookSpec{"spec_test", "no", {}}),
            "comm_wrapper is \"fp16\"; the session's is \"no\"");
  EXPECT_EQ(FirstDifference(base, HookSpec{"spec_test", "fp16", {{"a", 1.0}}}),
            "comm_state_option \"a\" is 1; the session's is 1.0");
  EXPECT_EQ(FirstDifference(base, HookSpec{"spec_test", "fp16", {}}),
            "comm_state_option \"a\" is 1; the session's is not given");
  EXPECT_EQ(FirstDifference(HookSpec{"spec_test", "fp16", {}}, base),
            "comm_state_option \"a\" is not given; the session's is 1");
}

}  // namespace
}  // namespace gradwire
