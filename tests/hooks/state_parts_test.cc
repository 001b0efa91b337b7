// The parts of shards are the state of one coordinator, and what does not fit is named.
#include "hooks/state_parts.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/safetensors.h"

namespace gradwire {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

StateTensor Tensor(const std::string& name, std::size_t bytes = 4) {
  return {.name = name,
          .shape = {static_cast<std::int64_t>(bytes / 4)},
          .data = std::vector<std::byte>(bytes, std::byte{7})};
}

// Of three shards, the last has nothing that is compressed.
std::vector<HookState> Parts() {
  std::vector<HookState> parts(3);
  for (std::uint32_t i = 0; i < 3; ++i) {
    parts[i].metadata = {{"format", "f"},      {"iteration", "9"},          {"step", "9"},
                         {"compressed", "1"},  {"generator", "g"},          {"seed", "5"},
                         {"draw_plan", "1 0"}, {kShardKey, ShardText(i, 3)}};
  }
  parts[0].tensors = {Tensor("q/b")};
  parts[0].metadata["version/b"] = "9";
  parts[1].tensors = {Tensor("q/a/x", 8)};
  parts[1].metadata["version/a/x"] = "8";
  parts[2].metadata["compressed"] = "0";
  parts[2].metadata["generator"] = "not drawn from";
  parts[2].metadata["seed"] = "";
  return parts;
}

std::vector<std::string> Names(const HookState& state) {
  std::vector<std::string> names;
  for (const StateTensor& tensor : state.tensors) names.push_back(tensor.name);
  return names;
}

// The message of the refusal.
std::string Refusal(std::vector<HookState> parts) {
  const auto whole = JoinSessionState(std::move(parts));
  EXPECT_FALSE(whole.ok());
  return std::string(whole.status().message());
}

TEST(JoinSessionState, TakesEachParameterFromItsShard) {
  std::vector<HookState> parts = Parts();
  std::swap(parts[0], parts[2]);  // the order does not matter
  const auto whole = JoinSessionState(std::move(parts));
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_THAT(Names(*whole), ElementsAre("q/b", "q/a/x"));
  EXPECT_EQ(whole->metadata, (std::map<std::string, std::string>{{"format", "f"},
                                                                 {"iteration", "9"},
                                                                 {"step", "9"},
                                                                 {"generator", "g"},
                                                                 {"seed", "5"},
                                                                 {"draw_plan", "1 0"},
                                                                 {"version/b", "9"},
                                                                 {"version/a/x", "8"}}));
  EXPECT_TRUE(CheckIsWhole(*whole).ok());
}

TEST(JoinSessionState, AWholeStateStaysWhatItIs) {
  const HookState one{.metadata = {{"step", "3"}}, .tensors = {Tensor("q/a")}};
  const auto whole = JoinSessionState({one});
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(whole->metadata, one.metadata);
  EXPECT_THAT(Names(*whole), ElementsAre("q/a"));
}

TEST(JoinSessionState, WithoutCompressionTheFirstShardCounts) {
  std::vector<HookState> parts = Parts();
  for (HookState& part : parts) part.metadata["compressed"] = "0";
  parts[0].metadata["generator"] = "first";
  const auto whole = JoinSessionState(std::move(parts));
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->metadata.at("generator"), "first");
}

TEST(JoinSessionState, RefusesPartsThatAreNotAllOfOneState) {
  std::vector<HookState> parts = Parts();
  parts.erase(parts.begin() + 1);
  EXPECT_THAT(Refusal(parts),
              AllOf(HasSubstr("the part of shard 1 of 3 is missing"), HasSubstr("[GW503]")));
  parts = Parts();
  parts[1].metadata[kShardKey] = "0 of 3";
  EXPECT_THAT(Refusal(parts), HasSubstr("the part of shard 0 twice"));
  parts[1].metadata[kShardKey] = "1 of 4";
  EXPECT_THAT(Refusal(parts), HasSubstr("sessions with 3 and with 4 shards"));
  for (const char* bad : {"", "1", "3 of 3", "1 of 0", "-1 of 3", "1 of 65", "1 of 3 of 3"}) {
    parts[1].metadata[kShardKey] = bad;
    EXPECT_THAT(Refusal(parts), AllOf(HasSubstr("allowed: a number"), HasSubstr("[GW502]"))) << bad;
  }
  parts = Parts();
  parts[1].tensors.push_back(Tensor("q/b"));
  EXPECT_THAT(Refusal(parts), HasSubstr("two parts have the tensor \"q/b\""));
  EXPECT_THAT(Refusal({}), HasSubstr("no parts"));
}

TEST(JoinSessionState, RefusesShardsThatDiffer) {
  std::vector<HookState> parts = Parts();
  parts[1].metadata["step"] = "10";
  EXPECT_THAT(Refusal(parts),
              AllOf(HasSubstr("after step 9, shard 1's after 10"), HasSubstr("[GW504]")));
  parts = Parts();
  parts[2].metadata["iteration"] = "10";
  EXPECT_THAT(Refusal(parts), HasSubstr("differ in \"iteration\""));
  for (const char* key : {"generator", "seed", "draw_plan"}) {
    parts = Parts();
    parts[1].metadata[key] = "another";
    EXPECT_THAT(Refusal(parts),
                AllOf(HasSubstr("0 of 3 and 1 of 3 have not drawn alike"), HasSubstr(key)));
  }
  parts = Parts();
  parts[1].metadata.erase("draw_plan");
  EXPECT_THAT(Refusal(parts), HasSubstr("have not drawn alike"));
}

TEST(JoinSessionState, OnlyAWholeStateIsWhole) {
  EXPECT_THAT(std::string(CheckIsWhole(Parts()[1]).message()),
              HasSubstr("the part of shard 1 of 3"));
}

TEST(JoinSessionFiles, ReadsAndWritesFiles) {
  std::vector<std::string> files;
  for (const HookState& part : Parts()) files.push_back(WriteSafetensors(part));
  const auto whole = JoinSessionFiles(files);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(*whole, WriteSafetensors(*JoinSessionState(Parts())));
  files[1].back() = static_cast<char>(files[1].back() ^ 1);
  EXPECT_EQ(FindCode(std::string(JoinSessionFiles(files).status().message())),
            ErrorCode::kStateFile);
}

TEST(MemberParts, ComeApartAndTogether) {
  const HookState whole{
      .metadata = {{"rank", "2"}, {"loss_scale", "4"}, {"bucket/a", "a\nb"}},
      .tensors = {Tensor("residual/a"), Tensor("residual/b/c", 8), Tensor("residual/d")}};
  std::vector<HookState> parts;
  for (const std::string& mine : {std::string("b/c"), std::string("a")}) {
    parts.push_back(MemberPart(
        whole, [&](std::string_view name) { return mine == "a" ? name != "b/c" : name == "b/c"; }));
  }
  EXPECT_THAT(Names(parts[0]), ElementsAre("residual/b/c"));
  EXPECT_FALSE(parts[0].metadata.contains("bucket/a"));
  EXPECT_THAT(Names(parts[1]), ElementsAre("residual/a", "residual/d"));
  const auto joined = JoinMemberState(parts);
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_EQ(WriteSafetensors(*joined), WriteSafetensors(whole));
  parts[1].metadata["loss_scale"] = "8";
  EXPECT_THAT(std::string(JoinMemberState(parts).status().message()),
              HasSubstr("shard 0 and 1 differ in \"loss_scale\""));
}

}  // namespace
}  // namespace gradwire
