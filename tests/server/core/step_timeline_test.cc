#include "server/core/step_timeline.h"

#include <tuple>

#include "tests/server/core/session_harness.h"

namespace gradwire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Kind = TimelineSpan::Kind;
using State = StepTimeline::State;

constexpr absl::Duration kMs = absl::Milliseconds(1);

// What is compared of a span: kind, rank, round, begin and end in milliseconds.
using Seen = std::tuple<Kind, int, int, int, int>;

Seen Of(const TimelineSpan& span) {
  return {span.kind, span.rank, static_cast<int>(span.round),
          static_cast<int>(span.begin_ns / 1'000'000), static_cast<int>(span.end_ns / 1'000'000)};
}

// Members of a hook of their own: its plans are what they announce.
class StepTimelineTest : public ::testing::Test {
 protected:
  static SessionOptions Options() {
    SessionOptions options = SmallOptions(2);
    options.manifest = {{"w", {16}, DType::kFloat32}};
    return options;
  }

  void SetUp() override { harness_.Start(); }

  // Each event is at a time since the recording's begin.
  void At(int milliseconds) {
    harness_.now = begin_ + milliseconds * kMs;
    harness_.session.Observe(harness_.now);
  }
  absl::Status Begin(int steps, absl::Duration time = absl::Minutes(1)) {
    return harness_.session.BeginTimeline(steps, harness_.now + time, harness_.now);
  }
  void Announce(int rank, std::size_t rounds = 2) {
    wire::Announce announce = harness_.AnnounceOf({0});
    announce.rounds.assign(rounds, SumOf(16));
    harness_.Receive(rank, announce);
  }
  void Contribute(int rank, std::uint32_t round) {
    wire::Contribution header = harness_.Chunk(rank, 0);
    header.id.round = round;
    harness_.Receive(rank, header, Floats(16, 1));
  }
  void Acknowledge(int rank, std::uint32_t round, std::int64_t step) {
    harness_.Receive(rank,
                     wire::Ack{.id = {.step = step, .bucket = 0, .round = round}, .received = 1});
  }
  void WholeStep() {
    const std::int64_t step = harness_.session.step();
    for (int r : {0, 1}) Announce(r, 1);
    for (int r : {0, 1}) Contribute(r, 0);
    harness_.Reduce();
    for (int r : {0, 1}) Acknowledge(r, 0, step);
  }
  const StepTimeline& timeline() const { return *harness_.session.timeline(); }
  std::vector<Seen> Spans() const {
    std::vector<Seen> seen;
    for (const TimelineSpan& span : timeline().spans()) seen.push_back(Of(span));
    return seen;
  }

  SessionHarness harness_{Options(), true};
  const absl::Time begin_ = harness_.now;
};

TEST_F(StepTimelineTest, ShowsEachPhaseOfTwoRounds) {
  ASSERT_TRUE(Begin(1).ok());
  At(10);
  Announce(0);
  At(15);
  Announce(1);
  At(20);
  Contribute(0, 0);
  At(35);
  Contribute(1, 0);  // which completes it
  At(38);
  harness_.Reduce();
  At(40);
  Acknowledge(0, 0, 0);
  At(45);
  Acknowledge(1, 0, 0);
  At(50);
  Contribute(1, 1);
  At(60);
  Contribute(0, 1);
  At(62);
  harness_.Reduce();
  EXPECT_EQ(timeline().state(), State::kRecording);  // members have not got the last results
  At(65);
  Acknowledge(0, 1, 0);
  At(70);
  Acknowledge(1, 1, 0);
  EXPECT_EQ(timeline().state(), State::kComplete);
  EXPECT_EQ(timeline().complete_steps(), 1);
  EXPECT_THAT(Spans(),
              ElementsAre(Seen(Kind::kStep, -1, 0, 10, 62), Seen(Kind::kMemberStep, 0, 0, 10, 65),
                          Seen(Kind::kGrant, 0, 0, 10, 10), Seen(Kind::kMemberStep, 1, 0, 15, 70),
                          Seen(Kind::kGrant, 1, 0, 15, 15), Seen(Kind::kContribute, 0, 0, 20, 20),
                          Seen(Kind::kContribute, 1, 0, 35, 35), Seen(Kind::kSum, -1, 0, 35, 38),
                          Seen(Kind::kResult, 0, 0, 38, 40), Seen(Kind::kResult, 1, 0, 38, 45),
                          Seen(Kind::kContribute, 1, 1, 50, 50),
                          Seen(Kind::kContribute, 0, 1, 60, 60), Seen(Kind::kSum, -1, 1, 60, 62),
                          Seen(Kind::kResult, 0, 1, 62, 65), Seen(Kind::kResult, 1, 1, 62, 70)));
  for (const TimelineSpan& span : timeline().spans()) {
    EXPECT_TRUE(span.ended);
    EXPECT_FALSE(span.skipped);
    if (span.kind == Kind::kContribute || span.kind == Kind::kResult) {
      EXPECT_EQ(span.bytes, 64U);
    }
    if (span.kind == Kind::kSum) {
      EXPECT_EQ(span.bytes, 128U);    // of both members
      EXPECT_EQ(span.busy_ns, 3000);  // as the harness says
    }
    if (span.kind == Kind::kGrant) {
      EXPECT_EQ(span.rounds, 2U);
    }
  }
}

TEST_F(StepTimelineTest, BeginsWithAStepThatNobodyHasBegun) {
  Announce(0, 1);
  ASSERT_TRUE(Begin(2).ok());
  EXPECT_EQ(timeline().first_step(), 1);
  Announce(1, 1);
  for (int r : {0, 1}) Contribute(r, 0);
  harness_.Reduce();
  for (int r : {0, 1}) Acknowledge(r, 0, 0);
  EXPECT_THAT(Spans(), IsEmpty());
  WholeStep();
  WholeStep();
  EXPECT_EQ(timeline().state(), State::kComplete);
  const std::size_t spans = timeline().spans().size();
  EXPECT_EQ(timeline().spans().front().step, 1);
  EXPECT_EQ(timeline().spans().back().step, 2);
  WholeStep();
  EXPECT_THAT(timeline().spans(), SizeIs(spans));
}

// Two chunks to a round and a window of one: who has sent the first waits for the others'.
TEST_F(StepTimelineTest, ShowsWhenAWindowWasFull) {
  SessionOptions options = Options();
  options.manifest = {{"w", {32}, DType::kFloat32}};
  SessionHarness harness(options);
  harness.Start();
  ASSERT_TRUE(harness.session.BeginTimeline(1, absl::InfiniteFuture(), harness.now).ok());
  const absl::Time begin = harness.now;
  const auto at = [&](int milliseconds) {
    harness.now = begin + milliseconds * kMs;
    harness.session.Observe(harness.now);
  };
  harness.AnnounceAll({0});
  at(1);
  harness.Contribute(0, 0, 1, 0);
  at(50);
  harness.Contribute(1, 0, 1, 0);
  harness.Reduce();
  at(60);
  for (int r : {0, 1}) harness.Contribute(r, 0, 1, 1);
  harness.Reduce();
  for (const TimelineSpan& span : harness.session.timeline()->spans()) {
    if (span.kind != Kind::kContribute) continue;
    EXPECT_EQ(span.before_sums_ns, (span.rank == 0 ? 1 : 50) * 1'000'000);
    EXPECT_EQ(span.end_ns, 60'000'000);
    EXPECT_EQ(span.chunks, 2U);
  }
}

// A chunk that comes again, and results that go out again, change neither bytes nor order.
TEST_F(StepTimelineTest, ShowsABrokenAndResumedStream) {
  ASSERT_TRUE(Begin(1).ok());
  At(10);
  Announce(0, 1);
  Announce(1, 1);
  Contribute(0, 0);
  At(20);
  harness_.Detach(1);
  At(30);
  ASSERT_TRUE(harness_.Attach(1).ok());
  Announce(1, 1);
  At(40);
  for (int r : {0, 1}) Contribute(r, 0);
  Contribute(0, 0);
  harness_.Reduce();
  At(41);
  for (int r : {0, 1}) Acknowledge(r, 0, 0);
  EXPECT_EQ(timeline().state(), State::kRecording);  // acknowledged was an attempt before
  for (int r : {0, 1}) {
    harness_.Receive(r, wire::Ack{.id = {.step = 0, .attempt = 1, .bucket = 0}, .received = 1});
  }
  std::vector<Seen> moments;
  for (const TimelineSpan& span : timeline().spans()) {
    if (span.kind >= Kind::kBroken) moments.push_back(Of(span));
    if (span.kind == Kind::kResult) {
      EXPECT_EQ(span.bytes, 64U);
    }
    // An attempt that is repeated is sent again by all.
    if (span.kind == Kind::kContribute) {
      EXPECT_EQ(span.bytes, span.rank == 0 ? 128U : 64U);
    }
  }
  EXPECT_THAT(moments,
              ElementsAre(Seen(Kind::kBroken, 1, 0, 20, 20), Seen(Kind::kResumed, 1, 0, 30, 30)));
}

TEST_F(StepTimelineTest, EagerBucketsWaitForNoGrantAndNoAcknowledgement) {
  SessionOptions options = Options();
  options.eager_bytes = 64;
  SessionHarness harness(options);
  harness.Start();
  ASSERT_TRUE(harness.session.BeginTimeline(1, absl::InfiniteFuture(), harness.now).ok());
  for (int r : {0, 1}) {
    wire::Announce announce = harness.AnnounceOf({0});
    announce.eager = true;
    harness.Receive(r, announce, Floats(16, 1));
  }
  harness.Reduce(/*finite=*/false);
  ASSERT_EQ(harness.session.timeline()->state(), State::kComplete);
  int eager = 0;
  for (const TimelineSpan& span : harness.session.timeline()->spans()) {
    eager += span.eager ? 1 : 0;
    EXPECT_EQ(span.skipped, span.kind <= Kind::kMemberStep);
    EXPECT_EQ(span.ended, span.kind != Kind::kResult);
  }
  EXPECT_EQ(eager, 4);  // grants and results
}

TEST_F(StepTimelineTest, EndsAtItsDeadline) {
  ASSERT_TRUE(Begin(1, 50 * kMs).ok());
  At(49);
  EXPECT_EQ(timeline().state(), State::kRecording);
  At(50);
  EXPECT_EQ(timeline().state(), State::kExpired);
  WholeStep();
  EXPECT_THAT(Spans(), IsEmpty());
}

// A member that acknowledges nothing and begins nothing delays the end for so long only.
TEST_F(StepTimelineTest, EndsWithoutAcknowledgements) {
  ASSERT_TRUE(Begin(1).ok());
  for (int r : {0, 1}) Announce(r, 1);
  for (int r : {0, 1}) Contribute(r, 0);
  harness_.Reduce();
  At(999);
  EXPECT_EQ(timeline().state(), State::kRecording);
  At(1000);
  EXPECT_EQ(timeline().state(), State::kComplete);
}

TEST_F(StepTimelineTest, KeepsNoMoreThanItsBound) {
  EXPECT_LE(StepTimeline::kMostBytes, std::size_t{20} << 20);
  StepTimeline timeline({.steps = 1, .world_size = 2, .most_spans = 5}, begin_);
  for (std::uint32_t bucket = 0; bucket < 100; ++bucket) {
    timeline.OnFrame(0, wire::Announce{.parameters = {bucket}, .rounds = {SumOf(16)}}, 0);
    EXPECT_LE(timeline.spans().size(), 5U);
  }
  EXPECT_EQ(timeline.state(), State::kFull);
  EXPECT_THAT(timeline.spans(), SizeIs(5));
}

TEST_F(StepTimelineTest, TimesDoNotRunBackwards) {
  StepTimeline timeline({.steps = 1, .world_size = 2}, begin_);
  timeline.Advance(begin_ + 5 * kMs);
  timeline.OnFrame(0, wire::EndStep{}, 0);
  timeline.Advance(begin_ + 3 * kMs);
  timeline.OnFrame(1, wire::EndStep{}, 0);
  EXPECT_EQ(timeline.spans().back().begin_ns, 5'000'000);
}

TEST_F(StepTimelineTest, RefusesWhatItCannotRecord) {
  for (const int steps : {-1, 0, 101}) {
    const absl::Status refused = Begin(steps);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr(absl::StrCat("steps is ", steps, "; allowed are 1 to 100")));
  }
  ASSERT_TRUE(Begin(100).ok());
  EXPECT_EQ(Begin(1).code(), absl::StatusCode::kAlreadyExists);
  harness_.session.TakeTimeline();
  EXPECT_TRUE(Begin(1).ok());
  harness_.session.TakeTimeline();
  Effects effects;
  harness_.session.Fail(absl::InternalError("broken"), 1, effects);
  const absl::Status ended = Begin(1);
  EXPECT_EQ(ended.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(ended.message()), HasSubstr("broken"));
}

}  // namespace
}  // namespace gradwire::server
