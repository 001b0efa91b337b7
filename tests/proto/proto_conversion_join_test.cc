#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "proto/wire/proto_conversion.h"

namespace gradwire::wire {
namespace {

using testing::AllOf;
using testing::HasSubstr;

void ExpectInvalid(const absl::Status& status, const std::string& what) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(what), HasSubstr("allowed")));
}

TEST(HookSpecConvertTest, ThereAndBack) {
  const std::vector<HookSpec> specs = {
      {},
      {.comm_hook = "fp16", .comm_wrapper = "no", .comm_state_option = {}},
      {.comm_hook = "no", .comm_wrapper = "bf16", .comm_state_option = {}},
      {.comm_hook = "somebodys_own",
       .comm_wrapper = "fp16",
       .comm_state_option =
           {{"flag", true}, {"count", std::int64_t{-3}}, {"rate", 0.1}, {"name", "x"}}},
  };
  for (const HookSpec& spec : specs) {
    const absl::StatusOr<HookSpec> back = FromProto(ToProto(spec));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, spec);
  }
}

TEST(HookSpecConvertTest, EmptyMeansNo) {
  const absl::StatusOr<HookSpec> spec = FromProto(v1::HookSpec());
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(*spec, HookSpec{});
}

TEST(HookSpecConvertTest, HostileSpecsAreRefused) {
  using Change = std::function<void(v1::HookSpec&)>;
  const auto option = [](v1::HookSpec& spec, const std::string& name) -> v1::OptionValue& {
    return (*spec.mutable_comm_state_option())[name];
  };
  const std::vector<std::pair<std::string, Change>> cases = {
      {"comm_hook", [](v1::HookSpec& spec) { spec.set_comm_hook("two words"); }},
      {"comm_hook", [](v1::HookSpec& spec) { spec.set_comm_hook(std::string(64, 'a')); }},
      {"comm_wrapper", [](v1::HookSpec& spec) { spec.set_comm_wrapper("fp8"); }},
      {"[\"x\"]", [&](v1::HookSpec& spec) { option(spec, "x"); }},
      {"NaN",
       [&](v1::HookSpec& spec) {
         option(spec, "x").set_double_value(std::numeric_limits<double>::quiet_NaN());
       }},
      {"[\"x\"]",
       [&](v1::HookSpec& spec) {
         option(spec, "x").set_string_value(std::string(kMaxOptionBytes + 1, 'x'));
       }},
      {"comm_state_option", [&](v1::HookSpec& spec) { option(spec, "").set_bool_value(true); }},
      {"comm_state_option", [&](v1::HookSpec& spec) { option(spec, "a=b").set_bool_value(true); }},
      {"comm_state_option",
       [&](v1::HookSpec& spec) { option(spec, std::string(65, 'a')).set_bool_value(true); }},
      {"comm_state_option",
       [&](v1::HookSpec& spec) {
         for (std::size_t i = 0; i <= kMaxOptions; ++i)
           option(spec, "o" + std::to_string(i)).set_bool_value(true);
       }},
      {"comm_state_option",
       [&](v1::HookSpec& spec) {
         spec.set_comm_hook("fp16");
         option(spec, "x").set_bool_value(true);
       }},
  };
  for (const auto& [what, change] : cases) {
    v1::HookSpec spec;
    spec.set_comm_hook("own");
    change(spec);
    ExpectInvalid(FromProto(spec).status(), what);
  }
}

Manifest ToManifest(const std::vector<ParameterSpec>& parameters) {
  Manifest manifest;
  for (const ParameterSpec& parameter : parameters) *manifest.Add() = ToProto(parameter);
  return manifest;
}

TEST(ManifestConvertTest, ThereAndBack) {
  const std::vector<ParameterSpec> parameters = {{"fc1.weight", {128, 64}, DType::kFloat32},
                                                 {"scale", {}, DType::kFloat64},
                                                 {"empty", {0, 3}, DType::kFloat16},
                                                 {"fc1.bias", {128}, DType::kBFloat16}};
  const absl::StatusOr<std::vector<ParameterSpec>> back = FromProto(ToManifest(parameters));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, parameters);
}

TEST(ManifestConvertTest, MayBeEmpty) {
  const absl::StatusOr<std::vector<ParameterSpec>> parameters = FromProto(Manifest());
  ASSERT_TRUE(parameters.ok()) << parameters.status();
  EXPECT_TRUE(parameters->empty());
}

TEST(ManifestConvertTest, HostileManifestsAreRefused) {
  constexpr auto max = std::numeric_limits<std::int64_t>::max();
  const std::vector<std::pair<std::string, std::vector<ParameterSpec>>> cases = {
      {"manifest[0]", {{"", {1}}}},
      {"manifest[1]", {{"a", {1}}, {std::string(513, 'n'), {1}}}},
      {"manifest[1].name", {{"a", {1}}, {"a", {2}}}},
      {"manifest[0]", {{"a", {-1}}}},
      {"manifest[0]", {{"a", std::vector<std::int64_t>(17, 1)}}},
      {"limit", {{"a", {max, max}}}},
      {"manifest[0].dtype", {{"a", {1}, static_cast<DType>(0)}}},
      {"manifest[0].dtype", {{"a", {1}, static_cast<DType>(5)}}},
      {"manifest", {{"a", {std::int64_t{1} << 46}}, {"b", {1}}}},
  };
  for (const auto& [what, parameters] : cases) {
    const absl::Status status = FromProto(ToManifest(parameters)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  }
}

TEST(DurationConvertTest, ThereAndBack) {
  for (const absl::Duration duration : {absl::ZeroDuration(), absl::Nanoseconds(1),
                                        absl::Milliseconds(1500), absl::Hours(24 * 365)}) {
    const absl::StatusOr<absl::Duration> back = FromProto(ToProto(duration), "join_timeout");
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, duration);
  }
  EXPECT_EQ(ToProto(absl::InfiniteDuration()).seconds(), 315'576'000'000);
}

TEST(DurationConvertTest, HostileDurationsAreRefused) {
  const std::vector<std::pair<std::int64_t, std::int32_t>> cases = {
      {-1, 0},
      {0, -1},
      {0, 1'000'000'000},
      {315'576'000'001, 0},
      {std::numeric_limits<std::int64_t>::min(), 0}};
  for (const auto& [seconds, nanos] : cases) {
    google::protobuf::Duration duration;
    duration.set_seconds(seconds);
    duration.set_nanos(nanos);
    ExpectInvalid(FromProto(duration, "join_timeout").status(), "join_timeout");
  }
}

}  // namespace
}  // namespace gradwire::wire
