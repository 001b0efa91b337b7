// The step protocol with a daemon that is played by hand: grants and windows, large chunks one at a
// time, small buckets with their announcement, restarts and new streams.
#include "client/core/step_protocol.h"

#include "client/core/open_step.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/core/member_fixture.h"

namespace gradwire::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class ProtocolTest : public EffectsTest {
 protected:
  explicit ProtocolTest(MemberOptions options = SmallOptions()) : EffectsTest(std::move(options)) {
    Reset(hook_);
  }
  void Reset(RecordingHook& hook) {
    step_.emplace(options_, &hook);
    protocol_.emplace(options_, *step_);
  }
  absl::Status Start(const std::vector<std::size_t>& parameters) {
    const auto run = step_->Start(++ticket_, Bucket(parameters), {}, protocol_->context());
    if (!run.ok()) return run.status();
    Effects effects;
    absl::Status status = protocol_->Begin(**run, effects);
    TakeAll(std::move(effects));
    return status;
  }
  absl::Status Receive(const wire::Grant& grant) {
    Effects effects;
    absl::Status status = protocol_->On(grant, effects);
    TakeAll(std::move(effects));
    return status;
  }
  absl::Status Receive(const wire::Restart& restart) {
    Effects effects;
    absl::Status status = protocol_->On(restart, effects);
    TakeAll(std::move(effects));
    return status;
  }
  absl::Status Receive(const wire::Result& result, const wire::PayloadRef& payload) {
    Effects effects;
    absl::Status status = protocol_->On(result, payload.get(), effects);
    TakeAll(std::move(effects));
    return status;
  }
  void Grant(std::uint32_t bucket) { EXPECT_TRUE(Receive(wire::Grant{{.bucket = bucket}}).ok()); }
  void Result(std::uint32_t bucket, std::uint32_t chunk, std::size_t bytes = 64) {
    const absl::Status status =
        Receive(wire::Result{.id = {.bucket = bucket}, .chunk = chunk}, Bytes(bytes));
    EXPECT_TRUE(status.ok()) << status;
  }
  void Resumed() {
    Effects effects;
    protocol_->Resumed(effects);
    TakeAll(std::move(effects));
  }
  // Large chunks too, as soon as there are any.
  void TakeAll(Effects effects) {
    while (takes_chunks_ && protocol_->has_chunks()) protocol_->SendNext(effects);
    Take(std::move(effects));
  }

  std::optional<OpenStep> step_;
  std::optional<StepProtocol> protocol_;
  Ticket ticket_ = 0;
  bool takes_chunks_ = true;
};

TEST_F(ProtocolTest, SendsNothingBeforeItsGrantAndThenTheWindow) {
  ASSERT_TRUE(Start({1}).ok());
  const auto announced = DrainSent<wire::Announce>();
  ASSERT_THAT(announced, SizeIs(1));
  EXPECT_EQ(announced[0].parameters, std::vector<std::uint32_t>{1});
  EXPECT_EQ(announced[0].generation, 7U);
  Grant(1);
  const auto chunks = Drain<SendChunkEffect>();
  ASSERT_THAT(chunks, SizeIs(2));
  EXPECT_EQ(chunks[1].header.chunk, 1U);
  EXPECT_EQ(chunks[1].header.rank, 1);
  EXPECT_EQ(chunks[1].bytes, 64U);
  Result(1, 0);
  const auto more = Drain<SendChunkEffect>();
  ASSERT_THAT(more, SizeIs(1));
  EXPECT_EQ(more[0].header.chunk, 2U);
  EXPECT_EQ(more[0].header.received, 1U);
  EXPECT_EQ(more[0].bytes, 32U);
  Grant(1);  // once is enough
  EXPECT_THAT(Drain<SendChunkEffect>(), IsEmpty());
}

TEST_F(ProtocolTest, ASmallerWindowHoldsUntilItGrows) {
  protocol_->SetWindow(1);
  ASSERT_TRUE(Start({1}).ok());
  Grant(1);
  EXPECT_THAT(Drain<SendChunkEffect>(), SizeIs(1));
  protocol_->SetWindow(2);
  EXPECT_THAT(Drain<SendChunkEffect>(), IsEmpty()) << "before a result";
  Result(1, 0);
  EXPECT_THAT(Drain<SendChunkEffect>(), SizeIs(2));
}

TEST_F(ProtocolTest, RoundsWithoutElementsArePassedOverAtOnce) {
  RecordingHook hook(true);
  Reset(hook);
  ASSERT_TRUE(Start({0}).ok());
  EXPECT_THAT(DrainSent<wire::Announce>(), SizeIs(1));
  ASSERT_TRUE(Receive(wire::Grant{{.bucket = 0, .round = 1}}).ok());
  const auto chunks = Drain<SendChunkEffect>();
  ASSERT_THAT(chunks, SizeIs(1));
  EXPECT_EQ(chunks[0].header.id.round, 1U);
}

TEST_F(ProtocolTest, ABucketWithoutElementsNeedsNoGrant) {
  ASSERT_TRUE(Start({2}).ok());
  EXPECT_THAT(Drain<BucketDoneEffect>(), SizeIs(1));
  Grant(2);
  EXPECT_TRUE(*protocol_->On(wire::StepDone{.step = 0}));
}

TEST_F(ProtocolTest, AnotherAttemptIsSentFromTheStart) {
  ASSERT_TRUE(Start({1}).ok());
  Grant(1);
  Drain<SendChunkEffect>();
  ASSERT_TRUE(
      Receive(wire::Restart{.step = 0, .attempt = 1, .open = {{.attempt = 1, .bucket = 1}}}).ok());
  const auto chunks = Drain<SendChunkEffect>();
  ASSERT_THAT(chunks, SizeIs(2));
  EXPECT_EQ(chunks[0].header.chunk, 0U);
  EXPECT_EQ(chunks[0].header.id.attempt, 1U);
}

// In-place results: what was decoded must never be encoded again.
TEST_F(ProtocolTest, AfterAResumeNothingIsSentWhoseResultIsHere) {
  ASSERT_TRUE(Start({1}).ok());
  Grant(1);
  Result(1, 0);
  Drain<SendFrameEffect>();
  Resumed();
  EXPECT_THAT(DrainSent<wire::Announce>(), SizeIs(1));
  Result(1, 0);  // the daemon does not know that it is here
  EXPECT_EQ(DrainSent<wire::Ack>().at(0).received, 1U);
  Result(1, 1);
  EXPECT_THAT(Drain<SendChunkEffect>(), IsEmpty());
  ASSERT_TRUE(Receive(wire::Restart{.step = 0, .attempt = 1, .open = {{.bucket = 1}}}).ok());
  const auto chunks = Drain<SendChunkEffect>();
  ASSERT_THAT(chunks, SizeIs(1));
  EXPECT_EQ(chunks[0].header.chunk, 2U);
  EXPECT_EQ(chunks[0].header.received, 2U);
  EXPECT_EQ(hook_.decoded, (std::vector<std::size_t>{0, 16}));
}

TEST_F(ProtocolTest, ARoundOfWhichAResultIsHereCannotStartOver) {
  ASSERT_TRUE(Start({1}).ok());
  Grant(1);
  Result(1, 0);
  EXPECT_THAT(Receive(wire::Restart{.open = {{.attempt = 1, .bucket = 1}}}).message(),
              HasSubstr("a restart of bucket 1, of which results are here in step 0"));
}

TEST_F(ProtocolTest, WhatGoesAheadNeedsNoWindowAndAcknowledgesByItself) {
  ASSERT_TRUE(Start({1}).ok());
  protocol_->SendAhead(1);
  Grant(1);
  EXPECT_THAT(Drain<SendChunkEffect>(), SizeIs(3));
  Result(1, 0);
  EXPECT_EQ(DrainSent<wire::Ack>().at(0).received, 1U);
  Resumed();  // the memory belonged to the stream before: windows count again
  Drain<SendFrameEffect>();
  ASSERT_TRUE(Receive(wire::Restart{.open = {{.bucket = 1}}}).ok());
  EXPECT_THAT(Drain<SendChunkEffect>(), SizeIs(2));
}

TEST_F(ProtocolTest, TheStepEndsWithTheLastResultOnly) {
  ASSERT_TRUE(Start({0}).ok());
  Grant(0);
  EXPECT_THAT(protocol_->On(wire::StepDone{.step = 0}).status().message(),
              HasSubstr("the end of step 0 before its last result"));
  Result(0, 0);
  EXPECT_TRUE(*protocol_->On(wire::StepDone{.step = 0}));
  EXPECT_FALSE(*protocol_->On(wire::StepDone{.step = -1})) << "repeated after a resume";
  EXPECT_FALSE(protocol_->On(wire::StepDone{.step = 1}).ok());
}

TEST_F(ProtocolTest, ANewStreamHearsOfTheStepsEndAgain) {
  step_->End();
  Resumed();
  EXPECT_THAT(DrainSent<wire::EndStep>(), ElementsAre(wire::EndStep{.step = 0, .generation = 7}));
}

// Chunks of 64 bytes are large here.
class LargeChunkTest : public ProtocolTest {
 protected:
  static MemberOptions Options() {
    MemberOptions options = SmallOptions();
    options.large_chunk_bytes = 64;
    return options;
  }
  LargeChunkTest() : ProtocolTest(Options()) { takes_chunks_ = false; }
  std::vector<std::uint32_t> Next() {
    Effects effects;
    protocol_->SendNext(effects);
    Take(std::move(effects));
    std::vector<std::uint32_t> chunks;
    for (const auto& chunk : Drain<SendChunkEffect>()) chunks.push_back(chunk.header.chunk);
    return chunks;
  }
};

TEST_F(LargeChunkTest, AreHandedOutOneAtATimeUpToTheWindow) {
  ASSERT_TRUE(Start({1}).ok());  // chunks of 64, 64 and 32 bytes
  EXPECT_FALSE(protocol_->has_chunks());
  Grant(1);
  EXPECT_THAT(Drain<SendChunkEffect>(), IsEmpty());
  ASSERT_TRUE(protocol_->has_chunks());
  EXPECT_THAT(Next(), ElementsAre(0));
  ASSERT_TRUE(protocol_->has_chunks());
  EXPECT_THAT(Next(), ElementsAre(1));
  EXPECT_FALSE(protocol_->has_chunks());
  Result(1, 0);  // what it makes room for is small
  const auto last = Drain<SendChunkEffect>();
  ASSERT_THAT(last, SizeIs(1));
  EXPECT_EQ(last[0].header.chunk, 2U);
  EXPECT_EQ(last[0].header.received, 1U);
}

TEST_F(LargeChunkTest, SayWhatHasArrivedWhenTheyAreHandedOut) {
  ASSERT_TRUE(Start({0}).ok());
  ASSERT_TRUE(Start({1}).ok());
  Grant(0);
  Grant(1);
  Drain<SendChunkEffect>();
  EXPECT_THAT(Next(), ElementsAre(0));  // bucket 0's only one
  EXPECT_THAT(Next(), ElementsAre(0));  // bucket 1's first
  Result(1, 0);
  Effects effects;
  protocol_->SendNext(effects);
  ASSERT_THAT(effects, SizeIs(2));
  EXPECT_EQ(std::get<SendChunkEffect>(effects[0]).header.received, 1U);
  EXPECT_EQ(std::get<SendChunkEffect>(effects[1]).header.chunk, 2U);
}

TEST_F(LargeChunkTest, AreForgottenWithTheirStreamAndTheirStep) {
  ASSERT_TRUE(Start({1}).ok());
  Grant(1);
  ASSERT_TRUE(protocol_->has_chunks());
  Resumed();
  EXPECT_FALSE(protocol_->has_chunks());
  ASSERT_TRUE(Receive(wire::Restart{.open = {wire::RoundId{.bucket = 1}}}).ok());
  ASSERT_TRUE(protocol_->has_chunks());
  // Results that were computed before: the chunks that were to go are not asked for any more.
  for (const std::uint32_t chunk : {0U, 1U}) Result(1, chunk);
  Result(1, 2, 32);
  Drain<SendChunkEffect>();
  EXPECT_THAT(Next(), IsEmpty());
  ASSERT_TRUE(Start({0}).ok());
  Grant(0);
  ASSERT_TRUE(protocol_->has_chunks());
  protocol_->Forget();
  EXPECT_FALSE(protocol_->has_chunks());
}

// Parameter 0 is one chunk of 64 bytes.
class EagerProtocolTest : public ProtocolTest {
 protected:
  static MemberOptions Options() {
    MemberOptions options = SmallOptions();
    options.eager_bytes = 100;
    return options;
  }
  EagerProtocolTest() : ProtocolTest(Options()) {}
};

TEST_F(EagerProtocolTest, OneChunkGoesWithItsAnnouncement) {
  ASSERT_TRUE(Start({0}).ok());
  const auto chunks = Drain<SendChunkEffect>();
  ASSERT_THAT(chunks, SizeIs(1));
  ASSERT_TRUE(chunks[0].announce.has_value());
  EXPECT_TRUE(chunks[0].announce->eager);
  EXPECT_EQ(chunks[0].announce->parameters, std::vector<std::uint32_t>{0});
  EXPECT_THAT(DrainSent<wire::Announce>(), IsEmpty());
  // Several chunks wait for their grant.
  ASSERT_TRUE(Start({1}).ok());
  EXPECT_THAT(DrainSent<wire::Announce>(), SizeIs(1));
  EXPECT_THAT(Drain<SendChunkEffect>(), IsEmpty());
}

TEST_F(EagerProtocolTest, AResultIsAcknowledgedWithTheNextAnnouncement) {
  ASSERT_TRUE(Start({0}).ok());
  Drain<SendChunkEffect>();
  Result(0, 0);
  EXPECT_THAT(DrainSent<wire::Ack>(), IsEmpty());
  ASSERT_TRUE(Start({1}).ok());
  const auto announced = DrainSent<wire::Announce>();
  ASSERT_THAT(announced, SizeIs(1));
  EXPECT_EQ(announced[0].acknowledged, std::vector<std::uint32_t>{0});
}

TEST_F(EagerProtocolTest, AResultIsAcknowledgedAtOnceWhileAnotherBucketWaits) {
  ASSERT_TRUE(Start({1}).ok());
  ASSERT_TRUE(Start({0}).ok());
  Result(0, 0);
  EXPECT_THAT(DrainSent<wire::Ack>(), SizeIs(1));
}

TEST_F(EagerProtocolTest, AfterAResumeEverythingWaitsForItsGrant) {
  ASSERT_TRUE(Start({0}).ok());
  Drain<SendChunkEffect>();
  Resumed();
  const auto announced = DrainSent<wire::Announce>();
  ASSERT_THAT(announced, SizeIs(1));
  EXPECT_FALSE(announced[0].eager);
  ASSERT_TRUE(Receive(wire::Grant{{.attempt = 1, .bucket = 0}}).ok());
  const auto chunks = Drain<SendChunkEffect>();
  ASSERT_THAT(chunks, SizeIs(1));
  EXPECT_FALSE(chunks[0].announce.has_value());
  EXPECT_EQ(chunks[0].header.id.attempt, 1U);
}

TEST_F(EagerProtocolTest, AGrantOfALaterAttemptSendsItAgain) {
  ASSERT_TRUE(Start({0}).ok());
  Drain<SendChunkEffect>();
  ASSERT_TRUE(Receive(wire::Grant{{.attempt = 0, .bucket = 0}}).ok());
  EXPECT_THAT(Drain<SendChunkEffect>(), IsEmpty());
  ASSERT_TRUE(Receive(wire::Grant{{.attempt = 1, .bucket = 0}}).ok());
  EXPECT_THAT(Drain<SendChunkEffect>(), SizeIs(1));
}

}  // namespace
}  // namespace gradwire::client
