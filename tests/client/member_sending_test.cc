// Large chunks go one at a time, small buckets with their announcement.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/member_fixture.h"

namespace gradwire::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Chunks of 64 bytes are large here.
class LargeChunkTest : public MemberTest {
 protected:
  LargeChunkTest() {
    options_.large_chunk_bytes = 64;
    member_.emplace(options_, &hook_);
    takes_chunks_ = false;
  }
  std::vector<std::uint32_t> Next() {
    Effects effects;
    member_->SendNext(effects);
    Take(std::move(effects));
    std::vector<std::uint32_t> chunks;
    for (const auto& chunk : Drain<SendChunkEffect>()) chunks.push_back(chunk.header.chunk);
    return chunks;
  }
};

TEST_F(LargeChunkTest, AreHandedOutOneAtATimeUpToTheWindow) {
  ASSERT_TRUE(Start({1}).ok());  // chunks of 64, 64 and 32 bytes
  EXPECT_FALSE(member_->has_chunks());
  Grant(1);
  EXPECT_THAT(Drain<SendChunkEffect>(), IsEmpty());
  ASSERT_TRUE(member_->has_chunks());
  EXPECT_THAT(Next(), ElementsAre(0));
  ASSERT_TRUE(member_->has_chunks());
  EXPECT_THAT(Next(), ElementsAre(1));
  EXPECT_FALSE(member_->has_chunks());
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
  member_->SendNext(effects);
  ASSERT_THAT(effects, SizeIs(2));
  EXPECT_EQ(std::get<SendChunkEffect>(effects[0]).header.received, 1U);
  EXPECT_EQ(std::get<SendChunkEffect>(effects[1]).header.chunk, 2U);
}

TEST_F(LargeChunkTest, AreForgottenWithTheirStreamAndTheirStep) {
  ASSERT_TRUE(Start({1}).ok());
  Grant(1);
  ASSERT_TRUE(member_->has_chunks());
  Resumed();
  EXPECT_FALSE(member_->has_chunks());
  Receive(wire::Restart{.open = {wire::RoundId{.bucket = 1}}});
  ASSERT_TRUE(member_->has_chunks());
  // Results that were computed before: the chunks that were to go are not asked for any more.
  for (const std::uint32_t chunk : {0U, 1U}) Result(1, chunk);
  Result(1, 2, 32);
  Drain<SendChunkEffect>();
  EXPECT_THAT(Next(), IsEmpty());
  Effects effects;
  ASSERT_TRUE(Start({0}).ok());
  Grant(0);
  member_->Fail(absl::InternalError("over"), effects);
  EXPECT_FALSE(member_->has_chunks());
}

class EagerMemberTest : public MemberTest {
 protected:
  EagerMemberTest() : MemberTest(100) {}
};

TEST_F(EagerMemberTest, OneChunkGoesWithItsAnnouncement) {
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

TEST_F(EagerMemberTest, AResultIsAcknowledgedWithTheNextAnnouncement) {
  ASSERT_TRUE(Start({0}).ok());
  Drain<SendChunkEffect>();
  Result(0, 0);
  EXPECT_THAT(DrainSent<wire::Ack>(), IsEmpty());
  ASSERT_TRUE(Start({1}).ok());
  const auto announced = DrainSent<wire::Announce>();
  ASSERT_THAT(announced, SizeIs(1));
  EXPECT_EQ(announced[0].acknowledged, std::vector<std::uint32_t>{0});
}

TEST_F(EagerMemberTest, AResultIsAcknowledgedAtOnceWhileAnotherBucketWaits) {
  ASSERT_TRUE(Start({1}).ok());
  ASSERT_TRUE(Start({0}).ok());
  Result(0, 0);
  EXPECT_THAT(DrainSent<wire::Ack>(), SizeIs(1));
}

TEST_F(EagerMemberTest, AfterAResumeEverythingWaitsForItsGrant) {
  ASSERT_TRUE(Start({0}).ok());
  Drain<SendChunkEffect>();
  Resumed();
  const auto announced = DrainSent<wire::Announce>();
  ASSERT_THAT(announced, SizeIs(1));
  EXPECT_FALSE(announced[0].eager);
  Receive(wire::Grant{{.attempt = 1, .bucket = 0}});
  const auto chunks = Drain<SendChunkEffect>();
  ASSERT_THAT(chunks, SizeIs(1));
  EXPECT_FALSE(chunks[0].announce.has_value());
  EXPECT_EQ(chunks[0].header.id.attempt, 1U);
}

TEST_F(EagerMemberTest, AGrantOfALaterAttemptSendsItAgain) {
  ASSERT_TRUE(Start({0}).ok());
  Drain<SendChunkEffect>();
  Receive(wire::Grant{{.attempt = 0, .bucket = 0}});
  EXPECT_THAT(Drain<SendChunkEffect>(), IsEmpty());
  Receive(wire::Grant{{.attempt = 1, .bucket = 0}});
  EXPECT_THAT(Drain<SendChunkEffect>(), SizeIs(1));
}

}  // namespace
}  // namespace gradwire::client
