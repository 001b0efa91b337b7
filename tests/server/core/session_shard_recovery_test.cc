// One shard of several that outlive losses: all are left together, and follow shard 0.
#include <string>
#include <vector>

#include "tests/server/core/session_harness.h"

namespace gradwire::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using State = SessionCore::State;

const std::string kKey(wire::kSessionKeyBytes, 'k');

SessionOptions Options(std::uint32_t number, std::uint64_t life, int world_size = 2) {
  SessionOptions options = SmallOptions(world_size);
  options.shard.number = number;
  options.shard.addresses = {"a:1", "b:1"};
  options.shard.map =
      std::make_shared<const ShardMap>(*ShardMap::Make(options.spec, options.manifest.list(), 2));
  options.lineage = 5;
  options.session_key = kKey;
  options.coordinator_grace = absl::Seconds(60);
  options.gathers = life > 0;
  options.life = number > 0 ? life : 0;
  return options;
}

JoinAsk Reporting(const SessionHarness& harness, int rank, std::uint64_t life,
                  std::int64_t step = 4) {
  JoinAsk ask = harness.Ask(rank);
  ask.life = life;
  ask.report =
      wire::MemberReport{.session_key = kKey, .lineage = 5, .step = step, .last = Verdict::kApply};
  return ask;
}

void Gather(SessionHarness& harness, int rank, std::uint64_t life) {
  ASSERT_EQ(*harness.Join(Reporting(harness, rank, life)), rank);
  ASSERT_TRUE(harness.Attach(rank, 4).ok());
}

TEST(SessionShardRecovery, ALossElsewhereEndsAllStreamsHere) {
  for (const std::uint32_t number : {0U, 1U}) {
    SessionHarness shard(Options(number, 0));
    shard.Start();
    const auto welcome = shard.Sent<wire::Welcome>(0);
    ASSERT_THAT(welcome, SizeIs(1));
    ASSERT_TRUE(welcome[0].recovery.has_value());
    EXPECT_EQ(welcome[0].recovery->life, 1U);
    shard.Receive(1, wire::GatherAgain{.generation = 7, .shard = 1 - number});
    EXPECT_EQ(shard.session.state(), State::kClosed);
    EXPECT_TRUE(shard.session.awaits_successor());
    EXPECT_THAT(shard.logged.back(), HasSubstr("rank 1 has lost shard"));
  }
}

TEST(SessionShardRecovery, WhereShardsDoNotOutliveLossesNobodyMayGather) {
  SessionOptions options = Options(1, 0);
  options.coordinator_grace = absl::ZeroDuration();
  SessionHarness shard(options);
  shard.Start();
  shard.Receive(1, wire::GatherAgain{.generation = 7, .shard = 0});
  EXPECT_EQ(shard.session.state(), State::kFailed);
  EXPECT_THAT(shard.Message(), HasSubstr("sent that it has lost shard 0"));
}

TEST(SessionShardRecovery, AShardOutOfRangeIsNamed) {
  SessionHarness shard(Options(1, 0));
  shard.Start();
  shard.Receive(0, wire::GatherAgain{.generation = 7, .shard = 2});
  EXPECT_THAT(shard.Message(), HasSubstr("sent that it has lost shard 2"));
}

TEST(SessionShardRecovery, AShardFollowsTheLifeThatShard0HasBegun) {
  SessionHarness shard(Options(1, 3));
  Gather(shard, 0, 3);
  EXPECT_THAT(shard.Sent<wire::Welcome>(0), IsEmpty());
  const auto old = shard.Join(Reporting(shard, 1, 2));
  EXPECT_TRUE(absl::IsUnavailable(old.status())) << old.status();
  EXPECT_THAT(std::string(old.status().message()), HasSubstr("shard.life: is 2"));
  Gather(shard, 1, 3);
  EXPECT_EQ(shard.session.state(), State::kRunning);
  EXPECT_EQ(shard.session.step(), 4);
  const auto welcome = shard.Sent<wire::Welcome>(0);
  ASSERT_THAT(welcome, SizeIs(1));
  EXPECT_EQ(welcome[0].recovery->life, 3U);
  EXPECT_THAT(shard.Sent<wire::StepDone>(0), IsEmpty()) << "shard 0 says so";
}

// The members that gather here have been left behind by a further loss, or a later life has begun.
TEST(SessionShardRecovery, ALaterLifeEndsTheEarlierOne) {
  for (const bool runs : {false, true}) {
    SessionHarness shard(Options(1, 3));
    Gather(shard, 0, 3);
    if (runs) Gather(shard, 1, 3);
    const auto later = shard.Join(Reporting(shard, 1, 4));
    EXPECT_TRUE(absl::IsUnavailable(later.status())) << later.status();
    EXPECT_TRUE(shard.session.awaits_successor());
  }
}

TEST(SessionShardRecovery, AStrangersLifeEndsNothing) {
  SessionHarness shard(Options(1, 3));
  Gather(shard, 0, 3);
  JoinAsk stranger = Reporting(shard, 1, 9);
  stranger.report->session_key.assign(wire::kSessionKeyBytes, 'x');
  EXPECT_TRUE(absl::IsPermissionDenied(shard.Join(stranger).status()));
  EXPECT_FALSE(shard.session.awaits_successor());
  EXPECT_EQ(shard.session.state(), State::kJoining);
}

TEST(SessionShardRecovery, ANewcomerComesWithTheLifeOnly) {
  SessionOptions options = Options(1, 3);
  options.member_grace = absl::Seconds(60);
  SessionHarness shard(options);
  Gather(shard, 0, 3);
  JoinAsk newcomer = shard.Ask(1);
  EXPECT_TRUE(absl::IsUnavailable(shard.Join(newcomer).status()));
  newcomer.life = 3;
  ASSERT_TRUE(shard.Join(newcomer).ok());
  ASSERT_TRUE(shard.Attach(1, 0).ok());
  ASSERT_EQ(shard.session.state(), State::kRunning);
  EXPECT_EQ(shard.session.step(), 4) << "shard 0 has dropped what it had no gradients for";
  const auto welcome = shard.Sent<wire::Welcome>(1);
  ASSERT_THAT(welcome, SizeIs(1));
  ASSERT_TRUE(welcome[0].change.has_value());
  EXPECT_EQ(welcome[0].step, 4);
  EXPECT_EQ(welcome[0].change->root, 0);
  EXPECT_FALSE(shard.Sent<wire::Welcome>(0)[0].change.has_value());
}

TEST(SessionShardRecovery, AShardWaitsForShard0sRosterAndNobodyElse) {
  SessionOptions options = Options(1, 3, 3);
  options.member_grace = absl::Seconds(60);
  options.shrinks_to = 1;
  SessionHarness shard(options);
  const wire::Roster roster{.number = 2, .ranks = {0, 2}};
  for (const int rank : {0, 2}) {
    EXPECT_EQ(shard.session.state(), State::kJoining);
    JoinAsk ask = Reporting(shard, rank, 3);
    ask.report->roster = roster;
    ASSERT_TRUE(shard.Join(ask).ok());
    ASSERT_TRUE(shard.Attach(rank, 4).ok());
  }
  ASSERT_EQ(shard.session.state(), State::kRunning) << shard.Message();
  EXPECT_EQ(shard.Sent<wire::Welcome>(2)[0].recovery->roster, roster);
}

}  // namespace
}  // namespace gradwire::server
