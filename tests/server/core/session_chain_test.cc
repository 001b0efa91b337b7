// The chain of the steps' digests: over two runs, over one daemon after another, and at members.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/step_digests.h"
#include "tests/server/core/session_harness.h"

namespace gradwire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const std::string kKey(wire::kSessionKeyBytes, 'k');

SessionOptions WithLineage(std::uint64_t lineage) {
  SessionOptions options = SmallOptions();
  options.lineage = lineage;
  return options;
}

SessionOptions Outliving(bool gathers = false) {
  SessionOptions options = WithLineage(5);
  options.coordinator_grace = absl::Seconds(60);
  options.session_key = kKey;
  options.gathers = gathers;
  return options;
}

class Daemon : public SessionHarness {
 public:
  explicit Daemon(const SessionOptions& options) : SessionHarness(options) {}

  // A step of one bucket, whose sums are twice the value.
  void Step(float value, bool finite = true) {
    Results(value, finite);
    if (!session.progress().outlives_daemon()) return;
    for (const int rank : {0, 1}) SayReady(rank);
  }
  void Results(float value, bool finite = true) {
    AnnounceAll({0, 1, 2});
    for (std::uint32_t chunk = 0; chunk < 4; ++chunk) {
      for (const int rank : {0, 1}) {
        Receive(rank, Chunk(rank, 0, chunk), Floats(chunk == 3 ? 8 : 16, value));
      }
      Reduce(finite);
    }
  }
  void SayReady(int rank) {
    const wire::Prepared prepared = Sent<wire::Prepared>(rank).back();
    Receive(rank, wire::Ready{.step = prepared.step,
                              .generation = 7,
                              .verdict = prepared.verdict,
                              .digest = prepared.digest});
  }
  void Come(int rank, const std::optional<wire::MemberReport>& report) {
    JoinAsk ask = Ask(rank);
    ask.report = report;
    ASSERT_TRUE(Join(ask).ok());
    ASSERT_TRUE(Attach(rank, report ? report->step : 0).ok());
  }

  std::vector<StepDigests::Entry> Digests() const {
    return session.progress().digests().Range(0, 100);
  }
  // Before the step.
  std::uint64_t ChainAt(std::int64_t step) const {
    return session.progress().digests().Before(step);
  }
  std::uint64_t Welcomed(int rank) { return Sent<wire::Welcome>(rank).back().recovery->chain; }
};

// A run without losses: the values of its steps.
std::vector<StepDigests::Entry> RunOf(const std::vector<float>& values,
                                      const SessionOptions& options = SmallOptions()) {
  Daemon daemon(options);
  daemon.Start();
  for (const float value : values) daemon.Step(value);
  EXPECT_EQ(daemon.Digests().size(), values.size());
  return daemon.Digests();
}

TEST(SessionChain, IsEqualForEqualInputs) {
  const auto run = RunOf({1, 2, 3});
  EXPECT_EQ(run[0].step, 0);
  EXPECT_EQ(run[2].step, 2);
  EXPECT_EQ(RunOf({1, 2, 3}, WithLineage(77)), run);
  EXPECT_EQ(RunOf({1, 2, 3}, Outliving()), run) << "members say the digest with READY";
}

TEST(SessionChain, DiffersFromTheFirstStepOnWhoseResultsDo) {
  const auto run = RunOf({1, 2, 3, 4});
  const auto other = RunOf({1, 2, 5, 4});
  EXPECT_EQ(other[1], run[1]);
  EXPECT_NE(other[2].chain, run[2].chain);
  EXPECT_NE(other[3].chain, run[3].chain);
}

TEST(SessionChain, DependsOnASkipAndNotOnWhatIsSkipped) {
  std::vector<std::uint64_t> chains;
  for (const float value : {1.0F, 2.0F}) {
    Daemon daemon(SmallOptions());
    daemon.Start();
    daemon.Step(value, /*finite=*/false);
    daemon.Step(3);
    chains.push_back(daemon.ChainAt(2));
  }
  EXPECT_EQ(chains[0], chains[1]);
  EXPECT_NE(chains[0], RunOf({1, 3})[1].chain);
}

TEST(SessionChain, OfSeveralShardsTheFirstHasIt) {
  for (const std::uint32_t number : {0U, 1U}) {
    SessionOptions options = SmallOptions();
    options.shard.number = number;
    options.shard.addresses = {"a:1", "b:1"};
    options.shard.map =
        std::make_shared<const ShardMap>(*ShardMap::Make(options.spec, options.manifest.list(), 2));
    Daemon daemon(options);
    daemon.Start();
    for (const int rank : {0, 1}) daemon.EndStep(rank);
    for (const int rank : {0, 1}) {
      if (number == 0) {
        daemon.Receive(rank, wire::Ready{.step = 0, .generation = 7, .digest = 3});
      } else {
        daemon.Receive(rank, wire::Concluded{.step = 0, .generation = 7});
      }
    }
    EXPECT_EQ(daemon.session.step(), 1);
    EXPECT_THAT(daemon.Digests(), SizeIs(number == 0 ? 1 : 0));
  }
}

TEST(SessionChain, AResumedMemberIsToldThatOfItsOwnStep) {
  Daemon daemon(Outliving());
  daemon.Start();
  EXPECT_EQ(daemon.Welcomed(0), 0U);
  daemon.Step(1);
  daemon.Step(2);
  for (const std::int64_t step : {1, 2}) {
    daemon.Detach(1);
    ASSERT_TRUE(daemon.Attach(1, step).ok());
    EXPECT_EQ(daemon.Sent<wire::Welcome>(1).back().step, step);
    EXPECT_NE(daemon.ChainAt(step), 0U);
    EXPECT_EQ(daemon.Welcomed(1), daemon.ChainAt(step));
  }
}

// ---- The next daemon

class NextDaemon : public ::testing::Test {
 protected:
  wire::MemberReport Report(std::int64_t step) const {
    return {.session_key = kKey,
            .lineage = 5,
            .step = step,
            .last = Verdict::kApply,
            .chain = step == 0 ? 0 : run_[static_cast<std::size_t>(step) - 1].chain};
  }

  const std::vector<StepDigests::Entry> run_ = RunOf({1, 2, 3, 4}, Outliving());
  Daemon daemon_{Outliving(true)};
};

TEST_F(NextDaemon, GoesOnWithIt) {
  for (const int rank : {0, 1}) daemon_.Come(rank, Report(2));
  EXPECT_EQ(daemon_.Welcomed(0), run_[1].chain);
  daemon_.Step(3);
  daemon_.Step(4);
  EXPECT_THAT(daemon_.Digests(), ElementsAre(run_[1], run_[2], run_[3]));
}

TEST_F(NextDaemon, GoesOnWithItAfterAStepThatSomeHaveNotSeenEnd) {
  Daemon first(Outliving());
  first.Start();
  first.Step(1);
  first.Results(2);
  wire::MemberReport ready = Report(1);
  ready.has_contributed = ready.may_have_results = true;
  ready.ready = {.verdict = Verdict::kApply, .digest = first.Sent<wire::Prepared>(0)[1].digest};
  daemon_.Come(0, ready);
  daemon_.Come(1, Report(2));
  EXPECT_EQ(daemon_.Sent<wire::StepDone>(0).back().digest, ready.ready->digest);
  EXPECT_EQ(daemon_.Welcomed(0), run_[1].chain);
  daemon_.Step(3);
  EXPECT_THAT(daemon_.Digests(), ElementsAre(run_[1], run_[2]));
}

TEST_F(NextDaemon, CountsADroppedStepAsOneThatIsSkipped) {
  Daemon skips(Outliving());
  skips.Start();
  skips.Step(1);
  skips.Step(2, /*finite=*/false);
  wire::MemberReport lost = Report(1);
  lost.has_contributed = lost.may_have_results = true;
  wire::MemberReport other = Report(1);
  other.has_contributed = true;
  daemon_.Come(0, lost);
  daemon_.Come(1, other);
  EXPECT_TRUE(daemon_.Sent<wire::StepDone>(0).back().dropped);
  EXPECT_EQ(daemon_.Welcomed(0), skips.ChainAt(2));
  // One daemon later rank 1 has not heard of it.
  wire::MemberReport told = Report(2);
  told.last = Verdict::kSkip;
  told.chain = skips.ChainAt(2);
  Daemon third(Outliving(true));
  third.Come(0, told);
  third.Come(1, other);
  EXPECT_EQ(third.Welcomed(1), skips.ChainAt(2));
}

TEST_F(NextDaemon, EndsTheSessionOfMembersThatHaveAppliedDifferentResults) {
  wire::MemberReport other = Report(2);
  ++other.chain;
  daemon_.Come(0, Report(2));
  daemon_.Come(1, other);
  EXPECT_EQ(daemon_.session.state(), SessionCore::State::kFailed);
  EXPECT_THAT(daemon_.Message(),
              HasSubstr("contradict each other: ranks 0 and 1 have different digests of the steps "
                        "before step 2"));
}

// Rank 1 was READY with other results than those that rank 0 has applied.
TEST_F(NextDaemon, EndsTheSessionOfAMemberThatWouldApplyOthers) {
  wire::MemberReport ready = Report(1);
  ready.has_contributed = ready.may_have_results = true;
  ready.ready = {.verdict = Verdict::kApply, .digest = 9};
  daemon_.Come(0, Report(2));
  daemon_.Come(1, ready);
  EXPECT_THAT(daemon_.Message(), HasSubstr("ranks 0 and 1 have different digests of the steps "
                                           "before step 2"));
}

TEST_F(NextDaemon, IgnoresMembersThatDoNotKnowIt) {
  wire::MemberReport unknown = Report(2);
  unknown.chain = 0;
  daemon_.Come(0, unknown);
  daemon_.Come(1, Report(2));
  EXPECT_EQ(daemon_.Welcomed(0), run_[1].chain);
  Daemon none(Outliving(true));
  for (const int rank : {0, 1}) none.Come(rank, unknown);
  EXPECT_EQ(none.session.state(), SessionCore::State::kRunning);
  none.Step(3);
  EXPECT_THAT(none.Digests(), IsEmpty());
}

TEST_F(NextDaemon, TellsANewcomer) {
  SessionOptions options = Outliving(true);
  options.member_grace = absl::Seconds(60);
  Daemon daemon(options);
  wire::MemberReport unhealed = Report(2);
  daemon.Come(0, unhealed);
  daemon.Come(1, std::nullopt);
  const wire::Welcome welcome = daemon.Sent<wire::Welcome>(1).back();
  ASSERT_TRUE(welcome.change.has_value());
  EXPECT_EQ(welcome.step, 3);
  EXPECT_NE(daemon.ChainAt(3), 0U);
  EXPECT_EQ(welcome.recovery->chain, daemon.ChainAt(3)) << "the open step was dropped";
  EXPECT_EQ(daemon.Welcomed(0), daemon.ChainAt(3));
}

}  // namespace
}  // namespace gradwire::server
