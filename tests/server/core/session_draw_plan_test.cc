// Rank 0's draw plan as the session core takes it.
#include <string>
#include <vector>

#include "base/limits.h"
#include "tests/server/core/session_harness.h"

namespace gradwire::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

SessionOptions Compressed(int start) {
  SessionOptions options = SmallOptions();
  options.spec = *HookSpec::Parse("power_sgd,min_compression_rate=0.5,start_powerSGD_iter=" +
                                  std::to_string(start));
  return options;
}

wire::DrawPlan Plan(DrawBuckets buckets) {
  return {.generation = 7, .buckets = std::move(buckets), .last = true};
}

std::string KeptPlan(const SessionHarness& harness) {
  const absl::StatusOr<StateSnapshot> snapshot = harness.session.Export();
  if (!snapshot.ok()) return "";
  auto state = snapshot->State();
  return state.ok() && state->metadata.contains("draw_plan") ? state->metadata["draw_plan"] : "";
}

wire::Announce AnnounceOf(const SessionHarness& harness, const std::vector<std::uint32_t>& bucket) {
  const SessionOptions& options = harness.session.options();
  wire::Announce announce = harness.AnnounceOf(bucket);
  announce.rounds = *(*MakeCoordinatorHook(options.spec, options.manifest))->Plan(bucket);
  return announce;
}

TEST(SessionDrawPlan, PiecesMakeOne) {
  SessionHarness harness(Compressed(3));
  harness.Start();
  harness.Receive(0, wire::DrawPlan{.generation = 7, .buckets = {{0}}});
  // A new stream begins anew.
  harness.Receive(0, wire::DrawPlan{.generation = 7, .buckets = {{2}, {1}}});
  EXPECT_EQ(KeptPlan(harness), "");
  harness.Receive(
      0, wire::DrawPlan{
             .generation = 7, .piece = 1, .buckets = {{0}}, .continued = true, .last = true});
  EXPECT_EQ(KeptPlan(harness), "2,1 0");
  harness.Receive(0, Plan({{1}, {0}}));
  EXPECT_EQ(KeptPlan(harness), "1,0") << "the last one counts";
  EXPECT_EQ(harness.session.state(), SessionCore::State::kRunning);
}

TEST(SessionDrawPlan, WhatIsNotAllowedEndsTheSession) {
  const auto piece = [](std::uint32_t number, DrawBuckets buckets, bool continued = false) {
    return wire::DrawPlan{
        .generation = 7, .piece = number, .buckets = std::move(buckets), .continued = continued};
  };
  struct Case {
    int rank;
    std::vector<wire::DrawPlan> plans;
    std::string message;
  };
  wire::DrawPlan old = Plan({{0}});
  old.generation = 6;
  const std::vector<Case> cases = {
      {1, {Plan({{0}})}, "as rank 1; allowed: rank 0"},
      {0, {old}, "of generation 6"},
      {0, {piece(1, {{0}})}, "sent piece 1 of a draw plan; allowed: 0 or 0"},
      {0, {piece(0, {{0}}), piece(2, {{1}})}, "sent piece 2 of a draw plan; allowed: 0 or 1"},
      {0, {piece(0, {{0}}, true)}, "whose first bucket is continued"},
      {0, {piece(0, {{0, 1}}), piece(1, {{2, 0}})}, "of 4 parameters; allowed: 1 to 3"},
      {0, {Plan({{0}, {0}})}, "parameter 0 for the second time"},
      {0, {Plan({{3}})}, "parameter 3; allowed: below 3"},
      {0, {Plan({})}, "has 0 entries"}};
  for (const Case& one : cases) {
    SessionHarness harness(Compressed(3));
    harness.Start();
    for (const wire::DrawPlan& plan : one.plans) harness.Receive(one.rank, plan);
    EXPECT_EQ(harness.session.state(), SessionCore::State::kFailed) << one.message;
    EXPECT_THAT(harness.Message(), HasSubstr(one.message));
  }
}

TEST(SessionDrawPlan, HooksThatDrawNothingPassItOver) {
  for (const bool users_own : {false, true}) {
    SessionHarness harness(SmallOptions(), users_own);
    harness.Start();
    harness.Receive(0, Plan({{1}}));
    EXPECT_EQ(harness.session.state(), SessionCore::State::kRunning);
  }
}

// Whoever is first: what rank 0 said before its own first bucket counts.
TEST(SessionDrawPlan, TheDrawWaitsForRankZero) {
  SessionHarness harness(Compressed(0));
  harness.Start();
  const wire::Announce announce = AnnounceOf(harness, {1});
  harness.Receive(1, announce);
  EXPECT_THAT(harness.Sent<wire::Grant>(1), IsEmpty());
  EXPECT_THAT(harness.Waiting(), HasSubstr("waits for rank 0 ("));
  harness.Receive(0, Plan({{0}, {1}}));
  EXPECT_EQ(KeptPlan(harness), "0,1");
  harness.Receive(0, announce);
  for (const int rank : {0, 1}) {
    EXPECT_THAT(harness.Sent<wire::Grant>(rank), SizeIs(1));
    EXPECT_THAT(harness.Sent<wire::SharedState>(rank), SizeIs(1));
  }
  harness.Receive(0, Plan({{1}, {0}}));
  EXPECT_EQ(KeptPlan(harness), "0,1");
  EXPECT_EQ(harness.session.state(), SessionCore::State::kRunning);
  EXPECT_THAT(harness.logged.back(), HasSubstr("rank 0's plan has no effect: draw plan: comes at"));
}

TEST(SessionDrawPlan, ABucketWithoutFactorsWaitsForNobody) {
  SessionOptions options = Compressed(0);
  options.spec = *HookSpec::Parse("power_sgd,start_powerSGD_iter=0");
  SessionHarness harness(options);
  harness.Start();
  harness.Receive(1, AnnounceOf(harness, {0}));
  EXPECT_THAT(harness.Sent<wire::Grant>(1), SizeIs(1));
}

// Resumed while it waits: the grant comes when rank 0 is there.
TEST(SessionDrawPlan, AMemberThatWaitsMayResume) {
  SessionHarness harness(Compressed(0));
  harness.Start();
  const wire::Announce announce = AnnounceOf(harness, {1});
  harness.Receive(1, announce);
  harness.Detach(1);
  ASSERT_TRUE(harness.Attach(1).ok());
  harness.Receive(1, announce);
  EXPECT_THAT(harness.Sent<wire::Grant>(1), IsEmpty());
  harness.Receive(0, announce);
  EXPECT_THAT(harness.Sent<wire::Grant>(1), SizeIs(1));
  EXPECT_THAT(harness.Sent<wire::SharedState>(1), SizeIs(1));
}

// No contribution can come with an announcement, before the factors are there.
TEST(SessionDrawPlan, AnEagerBucketThatWaitsIsRefused) {
  SessionOptions options = Compressed(0);
  options.spec =
      *HookSpec::Parse("power_sgd,min_compression_rate=0.5,start_powerSGD_iter=0,rounds=1");
  options.eager_bytes = 1000;
  SessionHarness harness(options);
  harness.Start();
  wire::Announce announce = AnnounceOf(harness, {1});
  announce.eager = true;
  harness.Receive(1, announce, Floats(10, 1));
  EXPECT_EQ(harness.session.state(), SessionCore::State::kFailed);
}

}  // namespace
}  // namespace gradwire::server
