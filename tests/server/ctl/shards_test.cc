// One status from what several daemons say of a session.
#include "server/ctl/shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/ctl/report.h"

namespace gradwire::ctl {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Shard `number` of three of a session that is in step 7.
v1::SessionStatus Part(std::uint32_t number) {
  v1::SessionStatus part;
  part.set_name("s");
  part.set_state("running");
  part.set_generation(number + 1);
  part.set_step(7);
  part.set_world_size(2);
  part.set_waiting_for("step 7 waits for rank 1");
  part.set_contribution_bytes_total(100 + number);
  part.set_result_bytes_total(200);
  part.set_steps_applied_total(6);
  part.set_steps_skipped_total(1);
  part.mutable_step_duration()->set_sum(1);
  for (int rank = 0; rank < 2; ++rank) {
    v1::MemberStatus& member = *part.add_members();
    member.set_rank(rank);
    member.set_state("connected");
    member.set_transport("tcp");
    member.set_contribution_bytes_total(50);
  }
  v1::ShardStatus& shard = *part.mutable_shard();
  shard.set_shard(number);
  for (const char* address : {"a:1", "b:1", "c:1"}) shard.add_addresses(address);
  shard.set_tensors(4 + number);
  shard.mutable_others_wait_total()->set_nanos(number == 2 ? 1'000'000 : 701'000'000);
  return part;
}

std::vector<v1::SessionStatus> Parts() { return {Part(2), Part(0), Part(1)}; }

TEST(MergeShards, SumsBytesAndTakesTheLongestTimes) {
  std::vector<v1::SessionStatus> parts = Parts();
  parts[0].mutable_members(1)->mutable_compute_wait_total()->set_seconds(3);
  parts[2].mutable_members(1)->mutable_compute_wait_total()->set_seconds(5);
  parts[1].mutable_members(0)->mutable_last_heard()->set_seconds(1);
  parts[2].mutable_members(0)->mutable_last_heard()->set_seconds(9);
  parts[2].mutable_members(1)->set_transport("unix");
  const v1::SessionStatus merged = MergeShards(parts);
  EXPECT_EQ(merged.contribution_bytes_total(), 303U);
  EXPECT_EQ(merged.result_bytes_total(), 600U);
  EXPECT_EQ(merged.members(1).contribution_bytes_total(), 150U);
  EXPECT_EQ(merged.members(1).compute_wait_total().seconds(), 5);
  EXPECT_EQ(merged.members(0).last_heard().seconds(), 9);
  EXPECT_EQ(merged.members(0).transport(), "tcp");
  EXPECT_EQ(merged.members(1).transport(), "tcp, unix");
  EXPECT_EQ(merged.steps_applied_total(), 6U) << "a step is one on all daemons";
  ASSERT_EQ(merged.parts_size(), 3);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(merged.parts(i).shard().shard(), static_cast<std::uint32_t>(i));
}

TEST(MergeShards, NamesTheSlowest) {
  std::vector<v1::SessionStatus> parts = Parts();
  const std::string slowest =
      "shard 2 (c:1) is the slowest: the others waited 100.0 ms a step for it";
  EXPECT_EQ(MergeShards(parts).slow(), slowest);
  for (v1::SessionStatus& part : parts) part.set_slow("rank 1 is slow");
  EXPECT_EQ(MergeShards(parts).slow(), slowest + "; rank 1 is slow");
  // Too little for the length of the steps, and nothing at all.
  for (v1::SessionStatus& part : parts) part.mutable_step_duration()->set_sum(100);
  EXPECT_EQ(SlowestShard(MergeShards(parts)), "");
  for (v1::SessionStatus& part : parts) part.clear_steps_applied_total();
  for (v1::SessionStatus& part : parts) part.clear_steps_skipped_total();
  EXPECT_EQ(SlowestShard(MergeShards(parts)), "");
  EXPECT_EQ(SlowestShard(MergeShards({Part(1)})), "");
}

TEST(MergeShards, TheShardThatTheOthersWaitForSaysWhy) {
  std::vector<v1::SessionStatus> parts = Parts();
  EXPECT_EQ(MergeShards(parts).waiting_for(), "step 7 waits for rank 1");
  for (v1::SessionStatus& part : parts) {
    if (part.shard().shard() == 1) continue;
    part.mutable_shard()->set_prepared(true);
    part.set_waiting_for("step 7 waits for others");
  }
  EXPECT_EQ(MergeShards(parts).waiting_for(), "shard 1 (b:1): step 7 waits for rank 1");
  parts[0].set_state("failed");
  parts[0].set_waiting_for("session \"s\" failed: why");
  EXPECT_EQ(MergeShards(parts).state(), "failed");
  EXPECT_EQ(MergeShards(parts).waiting_for(), "session \"s\" failed: why");
}

TEST(MergeShards, AMemberThatOneShardLacksIsNotConnected) {
  std::vector<v1::SessionStatus> parts = Parts();
  parts[2].mutable_members(1)->set_state("lost");
  const v1::SessionStatus merged = MergeShards(parts);
  EXPECT_EQ(merged.members(0).state(), "connected");
  EXPECT_EQ(merged.members(1).state(), "lost");
}

TEST(MergeShards, StepsAndBucketsMeet) {
  std::vector<v1::SessionStatus> parts = {Part(0), Part(1)};
  for (std::uint32_t i = 0; i < 2; ++i) {
    v1::StepStatus& step = *parts[i].add_recent_steps();
    step.set_step(6);
    step.mutable_duration()->set_nanos(static_cast<int>(10 + i));
    v1::BucketStatus& bucket = *parts[i].add_buckets();
    bucket.set_name("w");
    bucket.mutable_report()->set_gradient_bytes(1000);
    bucket.mutable_report()->set_sent_bytes(400 + i);
    bucket.mutable_report()->set_wire_seconds(1 + i);
  }
  parts[1].add_buckets()->set_name("b");
  parts[0].add_compression()->set_name("w");
  parts[1].add_compression()->set_name("b");
  const v1::SessionStatus merged = MergeShards(parts);
  ASSERT_EQ(merged.recent_steps_size(), 1);
  EXPECT_EQ(merged.recent_steps(0).duration().nanos(), 11);
  ASSERT_EQ(merged.buckets_size(), 2);
  EXPECT_EQ(merged.buckets(0).report().gradient_bytes(), 1000U);
  EXPECT_EQ(merged.buckets(0).report().sent_bytes(), 801U);
  EXPECT_EQ(merged.buckets(0).report().wire_seconds(), 2);
  EXPECT_EQ(merged.buckets(1).name(), "b");
  EXPECT_EQ(merged.compression_size(), 2);
}

TEST(MergeSessions, PutsThePartsOfEachSessionTogether) {
  std::vector<v1::ListSessionsResponse> lists(3);
  for (std::uint32_t i = 0; i < 3; ++i) {
    *lists[i].add_sessions() = Part(i);
    v1::SessionStatus earlier = Part(i);
    earlier.set_state("failed");
    earlier.set_contribution_bytes_total(1);
    *lists[i].add_sessions() = earlier;
  }
  // On two daemons, but no shards.
  for (const std::uint32_t i : {0U, 2U}) {
    v1::SessionStatus& alone = *lists[i].add_sessions();
    alone.set_name("alone");
    alone.set_state("running");
    alone.set_step(i);
  }
  const v1::ListSessionsResponse merged = MergeSessions(lists);
  std::vector<std::string> names;
  for (const v1::SessionStatus& session : merged.sessions()) names.push_back(session.name());
  EXPECT_THAT(names, ElementsAre("s", "s", "alone", "alone"));
  EXPECT_EQ(merged.sessions(0).contribution_bytes_total(), 303U);
  EXPECT_EQ(merged.sessions(1).contribution_bytes_total(), 3U);
  EXPECT_EQ(merged.sessions(1).state(), "failed");
  EXPECT_EQ(merged.sessions(2).parts_size(), 0);
}

TEST(ShardReport, ShowsEachDaemon) {
  const std::string text = SessionTable(MergeShards(Parts()));
  EXPECT_THAT(text, StartsWith("s: step 7 waits for rank 1\nshard 2 (c:1) is the slowest"));
  EXPECT_THAT(text, ContainsRegex("\n2 +c:1 +running +7 +6 +0 B +102 B +200 B +0.0 s\n"));
  EXPECT_THAT(text, Not(HasSubstr("ask all")));
}

TEST(ShardReport, OneDaemonSaysWhoTheOthersAre) {
  const std::string hint = "this is shard 1 of 3; ask all with --address=a:1,b:1,c:1";
  EXPECT_THAT(SessionTable(Part(1)), AllOf(HasSubstr(hint), ContainsRegex("\n1 +b:1 +running")));
  EXPECT_THAT(SessionTable(MergeShards({Part(0), Part(2)})), HasSubstr("this is shard 0, 2 of 3"));
  v1::ListSessionsResponse sessions;
  *sessions.add_sessions() = Part(1);
  EXPECT_EQ(Why(sessions), "s: step 7 waits for rank 1\ns: " + hint + "\n");
}

}  // namespace
}  // namespace gradwire::ctl
