// One shard of several: who decides about a step, and how the session ends on all of them.
#include "tests/server/core/session_harness.h"

namespace gradwire::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using State = SessionCore::State;

constexpr std::uint64_t kGeneration = 7;

SessionOptions ShardOptions(std::uint32_t number) {
  SessionOptions options = SmallOptions();
  options.shard.number = number;
  options.shard.addresses = {"a:1", "b:1"};
  options.shard.map =
      std::make_shared<const ShardMap>(*ShardMap::Make(options.spec, options.manifest.list(), 2));
  return options;
}

class ShardHarness : public SessionHarness {
 public:
  explicit ShardHarness(std::uint32_t number) : SessionHarness(ShardOptions(number)) { Start(); }

  // A step without buckets, up to its results.
  void Prepare() {
    for (const int rank : {0, 1}) EndStep(rank);
  }
  void Ready(int rank, Verdict verdict = Verdict::kApply) {
    Receive(
        rank,
        wire::Ready{
            .step = session.step(), .generation = kGeneration, .verdict = verdict, .digest = 3});
  }
  void Conclude(int rank, std::int64_t step, Verdict verdict = Verdict::kApply) {
    Receive(rank, wire::Concluded{.step = step, .generation = kGeneration, .verdict = verdict});
  }
};

TEST(SessionShards, TheLeadConcludesWhenAllAreReady) {
  ShardHarness lead(0);
  lead.Prepare();
  EXPECT_THAT(lead.Sent<wire::Prepared>(1), SizeIs(1));
  EXPECT_THAT(lead.Sent<wire::StepDone>(1), IsEmpty());
  lead.Ready(0, Verdict::kSkip);
  EXPECT_EQ(lead.session.step(), 0);
  lead.Ready(1, Verdict::kSkip);
  EXPECT_EQ(lead.session.step(), 1);
  for (const int rank : {0, 1}) {
    ASSERT_THAT(lead.Sent<wire::StepDone>(rank), SizeIs(1));
    EXPECT_EQ(lead.Sent<wire::StepDone>(rank)[0].verdict, Verdict::kSkip);
    EXPECT_EQ(lead.Sent<wire::StepDone>(rank)[0].digest, 3U);
  }
}

TEST(SessionShards, OthersConcludeWithTheFirstMember) {
  ShardHarness shard(1);
  shard.Prepare();
  EXPECT_THAT(shard.Sent<wire::Prepared>(0), SizeIs(1));
  shard.Conclude(1, 0);
  EXPECT_EQ(shard.session.step(), 1);
  shard.Conclude(0, 0);
  EXPECT_EQ(shard.session.step(), 1);
  EXPECT_EQ(shard.session.state(), State::kRunning);
  EXPECT_THAT(shard.Sent<wire::StepDone>(0), IsEmpty()) << "the lead says so";
}

TEST(SessionShards, MembersMustAgree) {
  ShardHarness shard(1);
  shard.Prepare();
  shard.Conclude(1, 0, Verdict::kSkip);
  shard.Conclude(0, 0, Verdict::kApply);
  EXPECT_EQ(shard.session.state(), State::kFailed);
  EXPECT_THAT(shard.Message(), HasSubstr("rank 0: says that the step before was concluded with "
                                         "APPLY; another member says SKIP"));
}

// Rank 1 waits for the lead's word of step 1, which rank 0 has, when its stream breaks.
TEST(SessionShards, AConclusionFromBeforeTheLastOneIsNoNews) {
  ShardHarness shard(1);
  for (const std::int64_t step : {0, 1}) {
    shard.Prepare();
    shard.Conclude(0, step);
  }
  ASSERT_EQ(shard.session.step(), 2);
  shard.Detach(1);
  ASSERT_TRUE(shard.Attach(1, 1).ok());
  shard.Conclude(1, 0);
  EXPECT_EQ(shard.session.state(), State::kRunning) << shard.Message();
  shard.Conclude(1, 1);
  EXPECT_EQ(shard.session.state(), State::kRunning) << shard.Message();
}

TEST(SessionShards, AMemberMayKnowBetterThanTheShard) {
  ShardHarness shard(1);
  shard.Detach(0);
  EXPECT_FALSE(shard.Attach(0, 1).ok()) << "the step is not prepared";
  ASSERT_TRUE(shard.Attach(0, 0).ok());
  shard.Prepare();
  shard.Detach(0);
  ASSERT_TRUE(shard.Attach(0, 1).ok());
  shard.Conclude(0, 0);
  EXPECT_EQ(shard.session.step(), 1);

  ShardHarness lead(0);
  lead.Prepare();
  lead.Detach(0);
  EXPECT_FALSE(lead.Attach(0, 1).ok()) << "only the lead knows what it decides";
}

// A Leave is a call of its own: it may overtake what the member has said on its stream.
TEST(SessionShards, ALeaveWaitsForTheConclusion) {
  ShardHarness shard(1);
  shard.Prepare();
  EXPECT_TRUE(shard.Leave(0).ok());
  EXPECT_TRUE(shard.Leave(0).ok());
  EXPECT_EQ(shard.session.state(), State::kRunning) << shard.Message();
  EXPECT_THAT(shard.closed, IsEmpty()) << "it has not been heard out";
  shard.Conclude(0, 0);
  EXPECT_EQ(shard.session.step(), 1);
  EXPECT_THAT(shard.closed, SizeIs(1));
  EXPECT_THAT(shard.departed, SizeIs(1));
  EXPECT_TRUE(shard.Leave(1).ok());
  EXPECT_EQ(shard.session.state(), State::kClosed);
}

TEST(SessionShards, WhoLeavesWithoutAStreamIsGoneAtOnce) {
  ShardHarness shard(1);
  shard.Prepare();
  EXPECT_TRUE(shard.Leave(0).ok());
  shard.Detach(0);
  EXPECT_THAT(shard.departed, SizeIs(1));
  shard.Detach(1);
  EXPECT_TRUE(shard.Leave(1).ok());
  EXPECT_THAT(shard.departed, SizeIs(2));
  EXPECT_EQ(shard.session.state(), State::kClosed);
}

// Rank 1 has not heard yet what the lead decided.
TEST(SessionShards, AStepGoesOnWithoutWhoLeftAfterItsResults) {
  ShardHarness shard(1);
  shard.Prepare();
  shard.Detach(0);
  EXPECT_TRUE(shard.Leave(0).ok());
  shard.Detach(1);
  ASSERT_TRUE(shard.Attach(1).ok());
  shard.EndStep(1);
  EXPECT_EQ(shard.session.state(), State::kRunning) << shard.Message();
  shard.Conclude(1, 0);
  EXPECT_EQ(shard.session.step(), 1);
}

// All parameters are reduced, so that the step is prepared before rank 1 ends it; rank 0 has what
// the other shards have, and the stream on which it said so broke.
TEST(SessionShards, WhoLeftAfterTheResultsIsNotMissedAtTheEnd) {
  ShardHarness shard(1);
  shard.AnnounceAll({0, 1, 2});
  const auto& buckets = shard.session.progress().buckets().all();
  ASSERT_THAT(buckets, SizeIs(1)) << shard.Message();
  const wire::ChunkLayout layout = buckets.begin()->second.round().layout();
  for (std::uint32_t c = 0; c < layout.chunk_count(); ++c) {
    for (const int rank : {0, 1}) {
      shard.Receive(rank, shard.Chunk(rank, 0, c), Floats(layout.Range(c).numel(), 1));
    }
    shard.Reduce();
    ASSERT_EQ(shard.session.state(), State::kRunning) << shard.Message();
  }
  ASSERT_THAT(shard.Sent<wire::Prepared>(0), SizeIs(1)) << shard.Waiting();
  shard.EndStep(0);
  shard.Detach(0);
  EXPECT_TRUE(shard.Leave(0).ok());
  shard.EndStep(1);
  EXPECT_EQ(shard.session.state(), State::kRunning) << shard.Message();
  shard.Conclude(1, 0);
  EXPECT_EQ(shard.session.step(), 1);
}

TEST(SessionShards, ALeaveBeforeTheResultsFailsTheOthers) {
  ShardHarness shard(1);
  shard.EndStep(0);
  EXPECT_TRUE(shard.Leave(1).ok());
  EXPECT_EQ(shard.session.state(), State::kFailed);
  EXPECT_THAT(shard.Message(), HasSubstr("rank 1 left before the end of step 0"));
}

const wire::Failure kElsewhere{.code = static_cast<int>(absl::StatusCode::kAborted),
                               .message = "session \"s\" failed: rank 1 was lost [GW301]",
                               .blamed_rank = 1};

TEST(SessionShards, AFailureElsewhereHasTheSameWordsAndBlame) {
  ShardHarness shard(1);
  shard.Receive(0, kElsewhere);
  EXPECT_EQ(shard.session.state(), State::kFailed);
  EXPECT_EQ(shard.Message(), kElsewhere.message);
  for (const int rank : {0, 1}) {
    ASSERT_THAT(shard.Sent<wire::Failure>(rank), SizeIs(1));
    EXPECT_EQ(shard.Sent<wire::Failure>(rank)[0].message, kElsewhere.message);
    EXPECT_EQ(shard.Sent<wire::Failure>(rank)[0].blamed_rank, 1);
    EXPECT_EQ(shard.Sent<wire::Failure>(rank)[0].code, kElsewhere.code);
  }
}

TEST(SessionShards, AFailureElsewhereEndsAShardThatWaitsForMembers) {
  SessionHarness shard(ShardOptions(1));
  ASSERT_TRUE(shard.Join(shard.Ask(0)).ok());
  ASSERT_TRUE(shard.Attach(0).ok());
  shard.Receive(0, kElsewhere);
  EXPECT_EQ(shard.session.state(), State::kFailed);
  EXPECT_EQ(shard.Message(), kElsewhere.message);
}

TEST(SessionShards, OfOneDaemonNoMemberMaySayThatItFailed) {
  SessionHarness alone;
  alone.Start();
  alone.Receive(1, kElsewhere);
  EXPECT_THAT(alone.Message(), HasSubstr("rank 1: sent a failure"));
}

// All shards lose whoever dies; the words are the lead's.
TEST(SessionShards, TheLeadDeclaresALossFirst) {
  ShardHarness lead(0);
  ShardHarness shard(1);
  for (ShardHarness* one : {&lead, &shard}) {
    one->Detach(1);
    one->Pass(absl::Milliseconds(1300));
  }
  EXPECT_EQ(lead.session.state(), State::kFailed);
  EXPECT_EQ(shard.session.state(), State::kRunning);
  shard.Pass(absl::Milliseconds(900));
  EXPECT_EQ(shard.session.state(), State::kFailed);
  EXPECT_THAT(shard.Message(), HasSubstr("rank 1 was lost"));
}

// ---- State

// Only b is compressed; w weighs more than what travels of b, so that b is shard 1's.
SessionOptions CompressedShard(std::uint32_t number) {
  SessionOptions options = ShardOptions(number);
  options.spec = *HookSpec::Parse("power_sgd,start_powerSGD_iter=0,matrix_approximation_rank=1");
  options.shard.map =
      std::make_shared<const ShardMap>(*ShardMap::Make(options.spec, options.manifest.list(), 2));
  return options;
}

TEST(SessionShards, AnExportIsMarkedAsAPart) {
  const std::vector<std::string> compressed = {"0", "1"};
  for (std::uint32_t number = 0; number < 2; ++number) {
    SessionHarness shard(CompressedShard(number));
    ASSERT_EQ(shard.session.options().shard.Owns(1), number == 1);
    shard.Start();
    const auto snapshot = shard.session.Export();
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    const auto state = snapshot->State();
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(state->metadata.at("shard"), std::to_string(number) + " of 2");
    EXPECT_EQ(state->metadata.at("compressed"), compressed[number]);
    EXPECT_THAT(std::string(shard.session.ReadState(*state).status().message()),
                HasSubstr("is the part of shard"));
  }
}

TEST(SessionShards, AnImportMustGoToAll) {
  SessionHarness shard(CompressedShard(1));
  shard.Start();
  EXPECT_TRUE(shard.session.CheckImport(2).ok());
  for (const std::uint32_t daemons : {1U, 3U}) {
    const absl::Status refused = shard.session.CheckImport(daemons);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(
        std::string(refused.message()),
        HasSubstr("has 2 daemons (a:1,b:1), and the state goes to " + std::to_string(daemons)));
  }
}

// The member that imports knows how the step ended, but this shard does not.
TEST(SessionShards, AnImportIsToBeRepeatedWhileAStepConcludes) {
  ShardHarness shard(1);
  shard.Prepare();
  EXPECT_EQ(shard.session.CheckImport(2).code(), absl::StatusCode::kUnavailable);
  shard.Conclude(0, 0);
  EXPECT_TRUE(shard.session.CheckImport(2).ok());
  shard.EndStep(0);
  EXPECT_EQ(shard.session.CheckImport(2).code(), absl::StatusCode::kFailedPrecondition);
}

// Only the lead tells members that a step is done.
TEST(SessionShards, ARecordingSeesWhatTheLeadConcluded) {
  ShardHarness shard(1);
  shard.session.Observe(shard.now);
  ASSERT_TRUE(shard.session.BeginTimeline(1, shard.now + absl::Seconds(60), shard.now).ok());
  shard.Prepare();
  EXPECT_EQ(shard.session.timeline()->complete_steps(), 0);
  shard.Conclude(1, 0, Verdict::kSkip);
  shard.Conclude(0, 0, Verdict::kSkip);
  EXPECT_EQ(shard.session.timeline()->complete_steps(), 1);
  EXPECT_EQ(shard.session.timeline()->state(), StepTimeline::State::kComplete);
  EXPECT_TRUE(shard.session.timeline()->spans().front().skipped);
}

TEST(SessionShards, CountsHowLongItWaitsForTheOthers) {
  ShardHarness shard(1);
  const auto after = [&](int ms) {
    shard.now += absl::Milliseconds(ms);
    shard.session.Observe(shard.now);
  };
  after(0);
  shard.EndStep(0);
  after(20);  // for rank 1
  shard.EndStep(1);
  after(300);
  shard.Conclude(0, 0);
  after(1000);  // between steps
  const WaitLog& waits = shard.session.waits();
  EXPECT_EQ(waits.other_shards_total(), absl::Milliseconds(300));
  ASSERT_THAT(waits.recent(), SizeIs(1));
  EXPECT_EQ(waits.recent()[0].other_shards, absl::Milliseconds(300));
  EXPECT_EQ(waits.recent()[0].members[1].caused.compute, absl::Milliseconds(20));
}

// Another shard than the lead has no other way to tell why.
TEST(SessionShards, PreparedSaysWhyItIsASkip) {
  ShardHarness shard(1);
  shard.AnnounceAll({0});  // a small bucket, which is this shard's
  for (const int rank : {0, 1}) shard.Contribute(rank, 0, 1);
  ASSERT_THAT(shard.reductions, SizeIs(1));
  shard.Reduce(/*finite=*/false);
  shard.Prepare();
  ASSERT_THAT(shard.Sent<wire::Prepared>(0), SizeIs(1));
  EXPECT_EQ(shard.Sent<wire::Prepared>(0)[0].verdict, Verdict::kSkip);
  EXPECT_THAT(shard.Sent<wire::Prepared>(0)[0].reason, HasSubstr("their sum is too large"));
}

}  // namespace
}  // namespace gradwire::server
