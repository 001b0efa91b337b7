// The step protocol, frame by frame, and every way to break it.
#include <algorithm>

#include "server/core/step.h"
#include "tests/server/core/session_harness.h"

namespace gradwire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using State = SessionCore::State;

// One member breaks the rules after both announced [b], which is granted, and w, b in the manifest.
struct Breach {
  const char* name;
  std::function<void(SessionHarness&)> act;
  std::string message;
};

class SessionBreach : public testing::TestWithParam<Breach> {};

TEST_P(SessionBreach, FailsTheSessionAndBlamesTheSender) {
  SessionHarness harness;
  harness.Start();
  harness.AnnounceAll({1});
  GetParam().act(harness);
  EXPECT_EQ(harness.session.state(), State::kFailed);
  EXPECT_THAT(harness.Message(), HasSubstr("session \"s\" failed: rank 1: " + GetParam().message));
  for (int r : {0, 1}) {
    ASSERT_THAT(harness.Sent<wire::Failure>(r), SizeIs(1));
    EXPECT_EQ(harness.Sent<wire::Failure>(r)[0].blamed_rank, 1);
    EXPECT_EQ(harness.Sent<wire::Failure>(r)[0].message, harness.Message());
  }
  EXPECT_EQ(harness.session.held_bytes(), 0U);
  EXPECT_EQ(harness.Waiting(), harness.Message());
}

// Sends chunk 0 of [b], changed.
auto SendChunk(const std::function<void(wire::Contribution&)>& change, std::size_t floats = 16) {
  return [change, floats](SessionHarness& h) {
    wire::Contribution chunk = h.Chunk(1, 1);
    change(chunk);
    h.Receive(1, chunk, Floats(floats, 1));
  };
}
auto SendAnnounce(const std::function<void(wire::Announce&)>& change) {
  return [change](SessionHarness& h) {
    wire::Announce announce = h.AnnounceOf({0});
    change(announce);
    h.Receive(1, announce);
  };
}
auto Send(wire::Header header) {
  return [header](SessionHarness& h) { h.Receive(1, header); };
}

using Contribution = wire::Contribution;
using Announce = wire::Announce;

INSTANTIATE_TEST_SUITE_P(
    OfChunks, SessionBreach,
    testing::Values(
        Breach{"OtherGeneration", SendChunk([](Contribution& c) { c.generation = 6; }),
               "sent a chunk of generation 6; this session is generation 7"},
        Breach{"OtherRank", SendChunk([](Contribution& c) { c.rank = 0; }),
               "sent a chunk as rank 0"},
        Breach{"LaterStep", SendChunk([](Contribution& c) { c.id.step = 2; }),
               "sent a chunk of step 2; the session is at step 0"},
        Breach{"UnknownBucket", SendChunk([](Contribution& c) { c.id.bucket = 5; }),
               "sent a chunk of step 0 bucket 5 round 0, which is not open"},
        Breach{"LaterRound", SendChunk([](Contribution& c) { c.id.round = 1; }),
               "sent a chunk of step 0 bucket 1 round 1, which is not open"},
        Breach{"LaterAttempt", SendChunk([](Contribution& c) { c.id.attempt = 1; }),
               "sent a chunk of attempt 1; the round is in attempt 0"},
        Breach{"ChunkBeyondTheEnd", SendChunk([](Contribution& c) { c.chunk = 3; }),
               "sent chunk 3 of step 0 bucket [b] round 0, which has 3 chunks"},
        Breach{"TooManyBytes", SendChunk([](Contribution&) {}, 17),
               "sent 68 bytes as chunk 0 of step 0 bucket [b] round 0, which has 64"},
        Breach{"NoBytes", [](SessionHarness& h) { h.Receive(1, h.Chunk(1, 1)); },
               "sent 0 bytes as chunk 0 of step 0 bucket [b] round 0, which has 64"},
        Breach{
            "BeyondTheWindow", SendChunk([](Contribution& c) {
              c.chunk = 1;
              c.received = 0;
            }),
            "sent chunk 1 of step 0 bucket [b] round 0 with 0 results received; the window is 1"},
        Breach{"SeveralThatAreNotRaw", SendChunk([](Contribution& c) { c.more = 1; }),
               "sent chunk 0 and 1 more of bucket [b] in step 0 at once; allowed: raw ones"},
        Breach{"SeveralBeyondTheLast", SendChunk([](Contribution& c) {
                 c.shared = wire::SharedBytes{.raw = true};
                 c.more = 3;
               }),
               "sent chunk 0 and 3 more of bucket [b] in step 0 at once; it has 3 chunks"},
        Breach{"SeveralInOtherBytes", SendChunk([](Contribution& c) {
                 c.shared = wire::SharedBytes{.raw = true};
                 c.more = 1;
               }),
               "sent chunk 0 and 1 more of bucket [b] in step 0 in 64 bytes; they have 128"},
        Breach{"OtherDigest", SendChunk([](Contribution& c) { c.digest = 1; }),
               "chunk 0 of bucket [b] in step 0 does not match its digest"},
        Breach{"OtherBytesTheSecondTime",
               [](SessionHarness& h) {
                 h.Contribute(1, 1, 1);
                 h.Contribute(1, 1, 2);
               },
               "sent chunk 0 of bucket [b] in step 0 twice, with different bytes"},
        Breach{"ResultsThatWereNotSent", SendChunk([](Contribution& c) { c.received = 2; }),
               "acknowledged 2 results of bucket [b] in step 0; it was sent 0"},
        Breach{"AckOfResultsThatWereNotSent", Send(wire::Ack{{.bucket = 1}, 1}),
               "acknowledged 1 results of bucket [b] in step 0; it was sent 0"},
        Breach{"BeforeItsGrant",
               [](SessionHarness& h) {
                 h.AnnounceAll({2, 0});  // takes the second and last grant
                 h.Announce(1, {1});
                 h.Receive(1, h.Chunk(1, 2, 0), Floats(16, 1));
                 h.Receive(1, h.Chunk(1, 0, 0), Floats(16, 1));
               },
               "sent a chunk of step 0 bucket 0 round 0, which is not open"}),
    [](const testing::TestParamInfo<Breach>& tested) { return std::string(tested.param.name); });

INSTANTIATE_TEST_SUITE_P(
    OfAnnouncements, SessionBreach,
    testing::Values(
        Breach{"OtherGeneration", SendAnnounce([](Announce& a) { a.generation = 9; }),
               "announced a bucket of generation 9; this session is generation 7"},
        Breach{"LaterStep", SendAnnounce([](Announce& a) { a.step = 1; }),
               "announced a bucket of step 1; the session is at step 0"},
        Breach{"Empty", SendAnnounce([](Announce& a) { a.parameters.clear(); }),
               "announced an empty bucket"},
        Breach{"UnknownParameter", SendAnnounce([](Announce& a) { a.parameters = {3}; }),
               "announced parameter 3; the manifest has 3"},
        Breach{"TheSameParameterTwice", SendAnnounce([](Announce& a) {
                 a.parameters = {0, 2, 0};
               }),
               "announced bucket [w, e, w] with a parameter twice"},
        Breach{"Overlap", SendAnnounce([](Announce& a) {
                 a.parameters = {0, 1};
               }),
               "announced bucket [w, b] in step 0, but parameter b is in bucket [b] already"},
        Breach{"AnotherList", SendAnnounce([](Announce& a) {
                 a.parameters = {1, 0};
               }),
               "announced bucket [b, w] in step 0; another member's is [b]"},
        Breach{"OtherRounds", SendAnnounce([](Announce& a) {
                 a.parameters = {1};
                 a.rounds = {SumOf(41)};
               }),
               "announced rounds {41 float32 sum;} for bucket [b]; another member's are "
               "{40 float32 sum;}"},
        Breach{"NotTheHooksPlan", SendAnnounce([](Announce& a) { a.rounds.push_back(SumOf(3)); }),
               "announced rounds {16 float32 sum;}{3 float32 sum;} for bucket [w]; hook no has "
               "{16 float32 sum;}"},
        Breach{"AfterTheEnd",
               [](SessionHarness& h) {
                 h.EndStep(1);
                 h.Announce(1, {0});
               },
               "announced bucket [w] after it ended step 0"},
        Breach{"EndWithoutABucketOfAnother",
               [](SessionHarness& h) {
                 h.EndStep(1);
                 h.Announce(0, {0});
               },
               "ended step 0 without bucket [w], which another member announced"},
        Breach{"EndOfALaterStep", Send(wire::EndStep{1, 7}),
               "ended step 1; the session is at step 0"},
        Breach{"EndOfAnotherGeneration", Send(wire::EndStep{0, 8}),
               "ended a step of generation 8; this session is generation 7"},
        Breach{"EnterOfAnotherGeneration", Send(wire::Enter{.number = 0, .generation = 8}),
               "entered a collective of generation 8; this session is generation 7"},
        Breach{"ACoordinatorsFrame", Send(wire::StepDone{}),
               "sent a frame that only the coordinator may send"}),
    [](const testing::TestParamInfo<Breach>& tested) { return std::string(tested.param.name); });

TEST(SessionUserHook, HasLimits) {
  const std::vector<std::pair<std::vector<RoundPlan>, std::string>> cases = {
      {std::vector<RoundPlan>(9, SumOf(1)), "announced 9 rounds; at most 8 are allowed"},
      {{SumOf(1057)}, "more than 4224 bytes for bucket [w], whose gradients have 64"},
      {{SumOf(std::size_t{1} << 62)}, "more than 4224 bytes for bucket [w]"},
      {{RoundPlan{std::vector<Segment>(73)}}, "a round of 73 segments for bucket [w]; at most 72"},
      {{RoundPlan{{Segment{
           .numel = 33, .op = ReduceOp::kOrthonormalizedSum, .matrices = {{16, 1}, {17, 1}}}}}},
       "a matrix of 68 bytes for bucket [w]; at most 64"},
  };
  for (const auto& [rounds, message] : cases) {
    SessionHarness harness(SmallOptions(), true);
    harness.Start();
    harness.Receive(0, wire::Announce{0, 7, {0}, rounds});
    EXPECT_THAT(harness.Message(), HasSubstr("rank 0: announced"));
    EXPECT_THAT(harness.Message(), HasSubstr(message));
  }
}

// More bytes than the gradients have; the reservation covers them.
TEST(SessionUserHook, HoldsNoMoreThanReserved) {
  SessionOptions options = SmallOptions();
  options.spec.comm_hook = "users_own";
  options.window_chunks = 40;
  options.manifest = {options.manifest[0]};
  SessionHarness harness(options, true);
  harness.Start();
  for (int r : {0, 1}) harness.Receive(r, wire::Announce{0, 7, {0}, {SumOf(16 * 40)}});
  for (int r : {0, 1}) {
    for (std::uint32_t c = 0; c < 40; ++c) {
      wire::Contribution chunk = harness.Chunk(r, 0, c);
      chunk.received = 0;
      harness.Receive(r, chunk, Floats(16, 1));
    }
  }
  harness.Reduce();
  EXPECT_EQ(harness.session.state(), State::kRunning);
}

TEST(SessionStep, GivesEverybodyTheSameResultAndCommits) {
  SessionHarness harness;
  harness.Start();
  harness.AnnounceAll({0, 2});
  ASSERT_THAT(harness.Sent<wire::Grant>(0), SizeIs(1));
  EXPECT_EQ(harness.Sent<wire::Grant>(1), harness.Sent<wire::Grant>(0));
  harness.Contribute(0, 0, 1);
  EXPECT_EQ(harness.session.held_bytes(), 64U);
  EXPECT_THAT(harness.reductions, IsEmpty());
  harness.Contribute(1, 0, 2);
  ASSERT_THAT(harness.reductions, SizeIs(1));
  EXPECT_THAT(harness.reductions[0].inputs, SizeIs(2));
  harness.Reduce();
  for (int r : {0, 1}) {
    ASSERT_THAT(harness.Sent<wire::Result>(r), SizeIs(1));
    EXPECT_EQ(FirstFloat(harness.frames[r].back().payload), 3);
  }
  EXPECT_EQ(harness.session.step(), 0);
  harness.AnnounceAll({1});
  for (std::uint32_t c = 0; c < 3; ++c) {
    const std::size_t floats = c == 2 ? 8 : 16;
    for (int r : {0, 1}) harness.Receive(r, harness.Chunk(r, 1, c), Floats(floats, 1));
    harness.Reduce();
  }
  EXPECT_EQ(harness.session.step(), 1);
  ASSERT_THAT(harness.Sent<wire::StepDone>(0), SizeIs(1));
  EXPECT_EQ(harness.Sent<wire::StepDone>(0), harness.Sent<wire::StepDone>(1));
  EXPECT_EQ(harness.Sent<wire::StepDone>(0)[0].verdict, Verdict::kApply);
  EXPECT_EQ(harness.session.progress().flow().stats().contribution_bytes, 2U * (64 + 160));
  EXPECT_EQ(harness.session.progress().flow().member_bytes(0), 224U);
  for (int r : {0, 1}) {
    harness.Receive(r, wire::Ack{{.bucket = 0}, 1});
    harness.Receive(r, wire::Ack{{.bucket = 1}, 3});
  }
  EXPECT_EQ(harness.session.held_bytes(), 0U);
}

TEST(SessionStep, ANonFiniteResultSkipsTheStep) {
  SessionHarness harness;
  harness.Start();
  harness.AnnounceAll({0});
  for (int r : {0, 1}) harness.Contribute(r, 0, 1);
  harness.Reduce(false);
  harness.EndStep(0);
  EXPECT_THAT(harness.Waiting(),
              HasSubstr("step 0 waits for further buckets, or the end of the step, from rank 1 "));
  harness.EndStep(1);
  ASSERT_THAT(harness.Sent<wire::StepDone>(1), SizeIs(1));
  EXPECT_EQ(harness.Sent<wire::StepDone>(1)[0].verdict, Verdict::kSkip);
  EXPECT_EQ(harness.session.progress().flow().stats().steps_skipped, 1U);
}

// Contributions may have been overwritten by results, so that nobody is asked for them again.
TEST(SessionStep, ARoundThatIsBeingReducedGoesOnAfterAResume) {
  SessionOptions options = SmallOptions();
  options.window_chunks = 2;
  SessionHarness harness(options);
  harness.Start();
  harness.AnnounceAll({1});
  for (std::uint32_t c : {0U, 1U}) {
    for (int r : {0, 1}) {
      wire::Contribution chunk = harness.Chunk(r, 1, c);
      chunk.received = 0;
      harness.Receive(r, chunk, Floats(16, 1));
    }
  }
  ASSERT_THAT(harness.reductions, SizeIs(2));
  EXPECT_TRUE(harness.reductions[0].in_place);
  ASSERT_TRUE(harness.Attach(1).ok());
  ASSERT_THAT(harness.Sent<wire::Restart>(1), SizeIs(1));
  ASSERT_THAT(harness.Sent<wire::Restart>(1)[0].open, SizeIs(1));
  EXPECT_EQ(harness.Sent<wire::Restart>(1)[0].open[0].attempt, 0U);
  wire::Contribution again = harness.Chunk(1, 1, 0);
  again.id.attempt = 0;
  harness.Receive(1, again, Floats(16, 77));  // its memory is a result by now
  EXPECT_EQ(harness.session.progress().flow().stats().duplicate_chunks, 1U);
  ASSERT_THAT(harness.reductions, SizeIs(2));
  harness.Reduce();
  ASSERT_THAT(harness.Sent<wire::Result>(0), SizeIs(2));
  EXPECT_EQ(harness.Sent<wire::Result>(0)[1].id.attempt, 0U);
  EXPECT_EQ(FirstFloat(harness.frames[0].back().payload), 2);
}

// Gradients that a daemon has mapped, which take their result.
class Gradients final : public wire::Payload {
 public:
  explicit Gradients(wire::PayloadRef floats) : floats_(std::move(floats)), room_() {}
  std::span<const std::span<const std::byte>> pieces() const override { return floats_->pieces(); }
  std::size_t bytes() const override { return floats_->bytes(); }
  const wire::ResultRoom* result_room() const override { return &room_; }
  wire::PayloadRef Cut(std::size_t, std::size_t bytes) const override {
    return std::make_shared<Gradients>(Floats(bytes / sizeof(float), FirstFloat(floats_)));
  }

 private:
  const wire::PayloadRef floats_;
  const wire::ResultRoom room_;
};

wire::Contribution AllOf(const SessionHarness& harness, int rank) {
  wire::Contribution all = harness.Chunk(rank, 1, 0);
  all.shared = wire::SharedBytes{.bytes = 160, .raw = true, .takes_result = true};
  all.more = 2;
  return all;
}

TEST(SessionStep, ContributionsThatTakeTheirResultsNeedNoWindow) {
  SessionHarness harness;
  harness.Start();
  harness.AnnounceAll({1});
  for (int r : {0, 1}) {
    harness.Receive(r, AllOf(harness, r), std::make_shared<Gradients>(Floats(40, 1)));
  }
  ASSERT_THAT(harness.reductions, SizeIs(3));
  EXPECT_TRUE(harness.reductions[2].in_place);
  EXPECT_EQ(harness.reductions[2].segment.numel, 8U);
  EXPECT_EQ(harness.session.held_bytes(), 0U);
  harness.Reduce();
  EXPECT_THAT(harness.Sent<wire::Result>(1), SizeIs(3));
}

// Another member's result is kept until rank 0, though ahead, has acknowledged it.
TEST(SessionStep, WhatIsKeptStaysInEveryWindow) {
  SessionHarness harness;
  harness.Start();
  harness.AnnounceAll({1});
  harness.Receive(0, AllOf(harness, 0), std::make_shared<Gradients>(Floats(40, 1)));
  harness.Receive(1, harness.Chunk(1, 1, 0), Floats(16, 1));
  harness.Reduce();
  harness.Receive(1, harness.Chunk(1, 1, 1), Floats(16, 1));
  EXPECT_THAT(harness.reductions, IsEmpty());
  EXPECT_THAT(harness.Waiting(),
              HasSubstr("step 0 waits for rank 0 (connected, last heard just now) to acknowledge "
                        "results of bucket [b]"));
  harness.Receive(0, wire::Ack{{.bucket = 1}, 1});
  EXPECT_THAT(harness.reductions, SizeIs(1));
  EXPECT_THAT(harness.Waiting(), HasSubstr("step 0 reduces bucket [b]"));
}

TEST(SessionStep, CountsADuplicateOnce) {
  SessionHarness harness;
  harness.Start();
  harness.AnnounceAll({0});
  harness.Contribute(0, 0, 1);
  harness.Contribute(0, 0, 1);
  EXPECT_THAT(harness.reductions, IsEmpty());
  EXPECT_EQ(harness.session.progress().flow().stats().duplicate_chunks, 1U);
  EXPECT_EQ(harness.session.progress().flow().stats().contribution_bytes, 64U);
  harness.Contribute(1, 0, 1);
  harness.Contribute(0, 0, 1);
  EXPECT_THAT(harness.reductions, SizeIs(1));
}

TEST(SessionStep, DropsContributionsToAnEarlierAttempt) {
  SessionHarness harness;
  harness.Start();
  harness.AnnounceAll({0});
  wire::Contribution stale = harness.Chunk(0, 0);
  ASSERT_TRUE(harness.Attach(1).ok());
  harness.Receive(0, stale, Floats(16, 5));
  harness.Contribute(0, 0, 1);
  harness.Contribute(1, 0, 1);
  ASSERT_THAT(harness.reductions, SizeIs(1));
  harness.Reduce();
  EXPECT_EQ(FirstFloat(harness.frames[0].back().payload), 2);
}

TEST(SessionStep, AResumingMemberGetsWhatItMissedAlsoPastTheCommit) {
  SessionHarness harness;
  harness.Start();
  harness.AnnounceAll({0});
  for (int r : {0, 1}) harness.Contribute(r, 0, 1);
  for (int r : {0, 1}) harness.EndStep(r);
  harness.Detach(1);
  harness.Reduce();
  EXPECT_EQ(harness.session.step(), 1);
  EXPECT_THAT(harness.Sent<wire::Result>(1), IsEmpty());
  harness.Receive(0, wire::Ack{{.bucket = 0}, 1});
  EXPECT_EQ(harness.session.held_bytes(), 64U);
  ASSERT_TRUE(harness.Attach(1, 0).ok());
  ASSERT_THAT(harness.Sent<wire::Result>(1), SizeIs(1));
  EXPECT_EQ(harness.Sent<wire::Result>(1), harness.Sent<wire::Result>(0));
  EXPECT_EQ(harness.Sent<wire::StepDone>(1), harness.Sent<wire::StepDone>(0));
  EXPECT_EQ(harness.Sent<wire::Restart>(1)[0].step, 1);
  harness.Receive(1, wire::Announce{0, 7, {0}, {SumOf(16)}});  // sent before it knew
  harness.Receive(1, wire::EndStep{0, 7});
  harness.Receive(1, wire::Ack{{.bucket = 0}, 1});
  EXPECT_EQ(harness.session.held_bytes(), 0U);
  EXPECT_EQ(harness.session.state(), State::kRunning);
}

TEST(SessionGrant, OppositeOrdersWithOneOpenBucketFinish) {
  SessionOptions options = SmallOptions();
  options.open_buckets = 1;
  Manifest::List parameters;
  for (int i = 0; i < 64; ++i) {
    parameters.push_back({"p" + std::to_string(i), {16}, DType::kFloat32});
  }
  options.manifest = parameters;
  SessionHarness harness(options);
  harness.Start();
  for (std::uint32_t b = 0; b < 64; ++b) {
    harness.Announce(0, {b});
    harness.Announce(1, {63 - b});
  }
  for (std::size_t done = 0; done < 64; ++done) {
    const std::vector<wire::Grant> grants = harness.Sent<wire::Grant>(0);
    ASSERT_THAT(grants, SizeIs(done + 1));
    ASSERT_EQ(harness.Sent<wire::Grant>(1), grants);
    const std::uint32_t bucket = grants.back().id.bucket;
    for (int r : {0, 1}) harness.Contribute(r, bucket, 1);
    harness.Reduce();
    harness.Receive(0, wire::Ack{{.bucket = bucket}, 1});
    if (done < 62) {
      EXPECT_THAT(harness.Waiting(), HasSubstr("waits for rank 1 ")) << harness.Waiting();
      EXPECT_THAT(harness.Waiting(), HasSubstr("to acknowledge bucket"));
    }
    harness.Receive(1, wire::Ack{{.bucket = bucket}, 1});
  }
  EXPECT_EQ(harness.session.step(), 1);
}

TEST(SessionGrant, ABucketWithoutElementsNeedsNone) {
  SessionOptions options = SmallOptions();
  options.open_buckets = 1;
  SessionHarness harness(options);
  harness.Start();
  harness.Announce(0, {2});
  harness.Announce(0, {0});
  harness.Announce(1, {0});
  harness.Announce(1, {2});
  for (const int rank : {0, 1}) {
    ASSERT_THAT(harness.Sent<wire::Grant>(rank), SizeIs(1));
    EXPECT_EQ(harness.Sent<wire::Grant>(rank)[0].id.bucket, 0U);
  }
}

TEST(SessionGrant, RoundsWithoutElementsArePassedOver) {
  SessionHarness harness(SmallOptions(), true);
  harness.Start();
  const wire::Announce announce{0, 7, {0}, {SumOf(0), SumOf(16), SumOf(0), SumOf(4), SumOf(0)}};
  harness.Receive(0, announce);
  ASSERT_THAT(harness.Sent<wire::Grant>(0), SizeIs(1));
  EXPECT_EQ(harness.Sent<wire::Grant>(0)[0].id.round, 1U);
  harness.Receive(1, announce);
  for (std::uint32_t round : {1U, 3U}) {
    for (int r : {0, 1}) {
      wire::Contribution chunk = harness.Chunk(r, 0);
      chunk.id.round = round;
      harness.Receive(r, chunk, Floats(round == 1 ? 16 : 4, 1));
    }
    harness.Reduce();
  }
  for (int r : {0, 1}) harness.EndStep(r);
  EXPECT_EQ(harness.session.step(), 1);
}

TEST(SessionWaiting, NamesTheRankAndTheChunk) {
  SessionHarness harness;
  harness.Start();
  EXPECT_THAT(harness.Waiting(), HasSubstr("waits for ranks 0, 1 to begin step 0"));
  harness.Announce(1, {1});
  EXPECT_THAT(harness.Waiting(), HasSubstr("step 0 waits for rank 0 (connected, last heard "));
  EXPECT_THAT(harness.Waiting(), HasSubstr("to announce bucket [b]"));
  harness.Announce(0, {1});
  EXPECT_THAT(harness.Waiting(), HasSubstr("waits for ranks 0, 1: chunk 0 of 3 of bucket [b]"));
  harness.Contribute(0, 1, 1);
  EXPECT_THAT(harness.Waiting(), HasSubstr("waits for rank 1 "));
  harness.Contribute(1, 1, 1);
  EXPECT_EQ(harness.Waiting(), "step 0 reduces bucket [b]");
  harness.Detach(1);
  harness.Reduce();
  EXPECT_THAT(harness.Waiting(), HasSubstr("chunk 1 of 3"));
}

}  // namespace
}  // namespace gradwire::server
