// Members that are late: whom a step goes on without, when, and what becomes of it.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/core/session_harness.h"

namespace gradwire::server {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

SessionOptions Options() {
  SessionOptions options = SmallOptions(3);
  options.lineage = 5;
  options.coordinator_grace = options.member_grace = absl::Seconds(60);
  options.resume_grace = absl::Seconds(30);
  options.shrinks_to = 1;
  options.session_key = std::string(wire::kSessionKeyBytes, 'k');
  options.straggler_multiple = 2;
  options.straggler_share = 0.05;
  options.straggler_steps = 2;
  return options;
}

class Late : public ::testing::Test {
 protected:
  explicit Late(SessionOptions options = Options()) : harness_(std::move(options)) {}

  void Begin(std::vector<int> may_miss = {0, 1, 2}) {
    for (int r = 0; r < 3; ++r) ASSERT_EQ(*harness_.Join(harness_.Ask(r)), r);
    for (int r = 0; r < 3; ++r) Attach(r, std::ranges::count(may_miss, r) > 0);
    ASSERT_EQ(harness_.session.state(), SessionCore::State::kRunning);
  }
  void Attach(int rank, bool may_miss = true) {
    Effects effects;
    const std::uint64_t id = ++harness_.connections;
    ASSERT_TRUE(harness_.session
                    .Attach(rank, 100 + static_cast<std::uint64_t>(rank), harness_.session.step(),
                            id, harness_.now, effects, {.may_miss = may_miss})
                    .ok());
    harness_.streams[rank] = id;
    harness_.TakeAll(std::move(effects));
  }

  // Bucket 0, of one chunk, of which `ranks` send 1 each.
  void Reduce(const std::vector<int>& ranks) {
    for (const int rank : ranks) harness_.Announce(rank, {0});
    for (const int rank : ranks) harness_.Contribute(rank, 0, 1);
    harness_.Reduce();
  }
  void SayReady() {
    const std::int64_t step = harness_.session.step();
    for (int r = 0; r < 3; ++r) {
      ASSERT_THAT(harness_.Sent<wire::Prepared>(r), Not(IsEmpty()));
      const wire::Prepared prepared = harness_.Sent<wire::Prepared>(r).back();
      ASSERT_EQ(prepared.step, step) << r;
      harness_.Receive(r, wire::Ready{.step = step,
                                      .generation = 7,
                                      .verdict = prepared.verdict,
                                      .digest = prepared.digest});
    }
    ASSERT_EQ(harness_.session.step(), step + 1);
  }
  void EndStep(const std::vector<int>& ranks) {
    for (const int rank : ranks) harness_.EndStep(rank);
  }
  // A step that takes 100 ms.
  void Step() {
    harness_.Announce(0, {0});
    harness_.Tick(absl::Milliseconds(100));
    Reduce({0, 1, 2});
    EndStep({0, 1, 2});
    SayReady();
  }
  wire::Ack Knows() const { return {.id = {.step = harness_.session.step(), .bucket = 0}}; }
  std::uint64_t missed(int rank) { return harness_.session.progress().late().missed_steps(rank); }

  SessionHarness harness_;
};

TEST_F(Late, TheOthersGoOnWhenTheMemberKnows) {
  Begin();
  Step();
  Step();
  Reduce({0, 1});
  EndStep({0, 1});
  harness_.Tick(absl::Milliseconds(200));
  EXPECT_THAT(harness_.Sent<wire::Missed>(2), IsEmpty());  // the deadline, and not later
  harness_.Tick(absl::Milliseconds(1));
  ASSERT_THAT(harness_.Sent<wire::Missed>(2), SizeIs(1));
  EXPECT_EQ(harness_.Sent<wire::Missed>(2)[0].id.step, 2);
  EXPECT_THAT(harness_.Sent<wire::Missed>(2)[0].parameters, ElementsAre(0));
  EXPECT_THAT(harness_.Sent<wire::Missed>(0), IsEmpty());
  EXPECT_THAT(harness_.logged, Contains(HasSubstr("rank 2 (connected, last heard 200ms ago) is "
                                                  "late in step 2")));
  EXPECT_THAT(harness_.reductions, IsEmpty());  // it does not know yet
  harness_.Receive(2, Knows());
  ASSERT_THAT(harness_.reductions, SizeIs(1));
  EXPECT_EQ(harness_.reductions[0].weight, 3);  // of all
  EXPECT_THAT(harness_.reductions[0].inputs, SizeIs(2));
  EXPECT_FALSE(harness_.reductions[0].in_place);
  harness_.Reduce();
  EXPECT_EQ(harness_.Sent<wire::Result>(2).back().id.step, 2);
  SayReady();
  EXPECT_EQ(missed(2), 1U);
  EXPECT_EQ(missed(0), 0U);
}

TEST_F(Late, AnAnnouncementThatCrossesCounts) {
  Begin();
  Step();
  Step();
  Reduce({0, 1});
  harness_.Tick(absl::Milliseconds(300));
  ASSERT_THAT(harness_.Sent<wire::Missed>(2), SizeIs(1));
  Reduce({2});
  EXPECT_EQ(harness_.Sent<wire::Result>(0).back().id.step, 2);
  EndStep({0, 1, 2});
  SayReady();
  EXPECT_EQ(missed(2), 0U);
}

TEST_F(Late, BucketsThatOthersAnnounceLaterGoOnWithoutItToo) {
  Begin();
  Step();
  Step();
  Reduce({0, 1});
  harness_.Tick(absl::Milliseconds(300));
  harness_.Receive(2, Knows());
  harness_.Announce(0, {1});
  ASSERT_THAT(harness_.Sent<wire::Missed>(2), SizeIs(2));
  EXPECT_EQ(harness_.Sent<wire::Missed>(2)[1].id.bucket, 1U);
  harness_.Announce(1, {1});
  EXPECT_THAT(harness_.Sent<wire::Missed>(2), SizeIs(2));
}

TEST_F(Late, AContributionToAMissedBucketIsAViolation) {
  Begin();
  Step();
  Step();
  Reduce({0, 1});
  harness_.Tick(absl::Milliseconds(300));
  harness_.Receive(2, Knows());
  harness_.Contribute(2, 0, 1);
  EXPECT_THAT(harness_.Message(), HasSubstr("which is not open"));
}

TEST_F(Late, NeverInTwoStepsThatFollowEachOther) {
  Begin();
  Step();
  Step();
  Reduce({0, 1});
  EndStep({0, 1});
  harness_.Tick(absl::Milliseconds(300));
  harness_.Receive(2, Knows());
  harness_.Reduce();
  SayReady();
  Reduce({0, 1});
  harness_.Tick(absl::Seconds(5));
  EXPECT_THAT(harness_.Sent<wire::Missed>(2), SizeIs(1));
  Reduce({2});
  EndStep({0, 1, 2});
  SayReady();
  Reduce({0, 1});
  harness_.Tick(absl::Seconds(5));
  EXPECT_THAT(harness_.Sent<wire::Missed>(2), SizeIs(2));
}

// Of 100 steps, 5.
TEST_F(Late, OnlyInAShareOfTheSteps) {
  Begin();
  Step();
  Step();
  for (int i = 0; i < 7; ++i) {
    Reduce({0, 1});
    harness_.Tick(absl::Milliseconds(300));
    if (i < 5) {
      EndStep({0, 1});
      harness_.Receive(2, Knows());
      harness_.Reduce();
      SayReady();
    } else {
      Reduce({2});
      EndStep({0, 1, 2});
      SayReady();
    }
    EXPECT_EQ(missed(2), static_cast<std::uint64_t>(std::min(i + 1, 5)));
    Step();
  }
}

TEST_F(Late, NotWithoutAMajorityOfTheOthers) {
  Begin();
  Step();
  Step();
  Reduce({0});
  harness_.Tick(absl::Seconds(5));
  EXPECT_THAT(harness_.Sent<wire::Missed>(1), IsEmpty());
  Reduce({1});
  harness_.Tick(absl::Milliseconds(1));
  EXPECT_THAT(harness_.Sent<wire::Missed>(2), SizeIs(1));
}

TEST_F(Late, NotAMemberThatCannotMiss) {
  Begin({0, 1});
  Step();
  Step();
  Reduce({0, 1});
  harness_.Tick(absl::Seconds(5));
  EXPECT_THAT(harness_.Sent<wire::Missed>(2), IsEmpty());
}

TEST_F(Late, NotAMemberWithoutAStream) {
  Begin();
  Step();
  Step();
  Reduce({0, 1});
  harness_.Detach(2);
  harness_.Tick(absl::Milliseconds(300));
  Attach(2);
  EXPECT_THAT(harness_.Sent<wire::Missed>(2), IsEmpty());
  harness_.Tick(absl::Milliseconds(1));
  EXPECT_THAT(harness_.Sent<wire::Missed>(2), SizeIs(1));
}

// Neither what it was told nor what it has not acknowledged is lost with a stream.
TEST_F(Late, ANewStreamBringsWhatTheMemberLacks) {
  Begin();
  Step();
  Step();
  Reduce({0, 1});
  EndStep({0, 1});
  harness_.Tick(absl::Milliseconds(300));
  harness_.Detach(2);
  Attach(2);
  ASSERT_THAT(harness_.Sent<wire::Missed>(2), SizeIs(2));
  harness_.Contribute(0, 0, 1);  // the resume has begun the round again
  harness_.Contribute(1, 0, 1);
  harness_.Receive(2, Knows());
  harness_.Reduce();
  harness_.frames[2].clear();
  harness_.Detach(2);
  Attach(2);
  EXPECT_THAT(harness_.Sent<wire::Missed>(2), IsEmpty());
  EXPECT_THAT(harness_.Sent<wire::Result>(2), SizeIs(1));
  ASSERT_THAT(harness_.Sent<wire::Restart>(2), SizeIs(1));
  EXPECT_THAT(harness_.Sent<wire::Restart>(2)[0].open, IsEmpty());
  SayReady();
}

TEST_F(Late, NotBeforeStepsWereMeasured) {
  Begin();
  Step();
  Reduce({0, 1});
  harness_.Tick(absl::Seconds(5));
  EXPECT_THAT(harness_.Sent<wire::Missed>(2), IsEmpty());
}

class Patient : public Late {
 protected:
  Patient()
      : Late([] {
          SessionOptions options = Options();
          options.straggler_floor = absl::Seconds(1);
          return options;
        }()) {}
};

TEST_F(Patient, ShortStepsHaveAFloor) {
  Begin();
  Step();
  Step();
  Reduce({0, 1});
  harness_.Tick(absl::Milliseconds(900));
  EXPECT_THAT(harness_.Sent<wire::Missed>(2), IsEmpty());
  harness_.Tick(absl::Milliseconds(200));
  EXPECT_THAT(harness_.Sent<wire::Missed>(2), SizeIs(1));
}

class Alone : public Late {
 protected:
  Alone()
      : Late([] {
          SessionOptions options = Options();
          options.shrinks_to = 0;
          return options;
        }()) {}
};

TEST_F(Alone, ASessionThatDoesNotShrinkWaits) {
  Begin();
  Step();
  Step();
  Reduce({0, 1});
  harness_.Tick(absl::Seconds(5));
  EXPECT_THAT(harness_.Sent<wire::Missed>(2), IsEmpty());
  EXPECT_THAT(harness_.logged, Contains(HasSubstr("straggler_multiple has no effect")));
}

TEST(CheckStraggler, NamesWhatIsAllowed) {
  EXPECT_TRUE(CheckStraggler(0, 0.5).ok());
  EXPECT_TRUE(CheckStraggler(1.5, 0.01).ok());
  EXPECT_EQ(CheckStraggler(1.2, 0.1).message(),
            "straggler_multiple is 1.2; allowed are 0 and 1.5 to 1000 [GW602]");
  EXPECT_THAT(CheckStraggler(2, 0.6).message(), HasSubstr("straggler_share is 0.6"));
  EXPECT_FALSE(CheckStraggler(2, 0).ok());
}

}  // namespace
}  // namespace gradwire::server
