// Pieces and answers through a daemon, from members that may send anything and whose streams break.
#include "server/core/hand_over_relay.h"

#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/wire/owned_payload.h"
#include "server/core/membership.h"

namespace gradwire::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::size_t kChunk = 64;
constexpr int kFrom = 2;
constexpr int kTo = 0;

class HandOverRelayTest : public ::testing::Test {
 protected:
  HandOverRelayTest() {
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(members_.Join(rank, Id(rank), "s", now_).ok());
      Attach(rank);
    }
  }

  static std::uint64_t Id(int rank) { return static_cast<std::uint64_t>(rank) + 100; }
  void Attach(int rank) {
    members_.Attach(rank, ++connection_, now_);
    members_.SetAbilities(rank, {.takes_residuals = rank != 1});
  }
  void Break(int rank) { EXPECT_TRUE(members_.Detach(rank, members_.connection(rank), now_)); }

  MaybeFailure Send(std::uint64_t offset, std::size_t bytes = kChunk, int to = kTo,
                    std::uint64_t id = 7, const std::string& may_not = "") {
    effects_.clear();
    return relay_.On(
        kFrom,
        wire::HandOver{.generation = 1, .id = id, .rank = to, .offset = offset, .bytes = 6400},
        wire::OwnedPayload::Make(std::vector<std::byte>(bytes)), may_not, effects_);
  }
  MaybeFailure Answer(wire::HandOverAnswer answer, int by = kTo) {
    effects_.clear();
    answer.generation = 1;
    answer.rank = kFrom;
    answer.id = answer.id == 0 ? 7 : answer.id;
    return relay_.On(by, answer, effects_);
  }
  // The frame that the last call has sent, and to whom; other effects are none.
  template <class Header>
  std::optional<Header> SentTo(int rank) {
    for (const Effect& effect : effects_) {
      const auto* send = std::get_if<SendEffect>(&effect);
      if (send == nullptr) continue;
      EXPECT_EQ(send->rank, rank);
      if (const auto* header = std::get_if<Header>(&send->frame.header)) return *header;
    }
    return std::nullopt;
  }

  const absl::Time now_ = absl::FromUnixSeconds(1);
  Membership members_{3, {absl::Seconds(5), absl::Seconds(1), absl::Seconds(15)}, now_};
  HandOverRelay relay_{members_, kChunk};
  std::uint64_t connection_ = 0;
  Effects effects_;
};

TEST_F(HandOverRelayTest, PassesPiecesAndAnswersOn) {
  EXPECT_FALSE(Send(0).has_value());
  auto piece = SentTo<wire::HandOver>(kTo);
  ASSERT_TRUE(piece.has_value());
  EXPECT_EQ(*piece, (wire::HandOver{.id = 7, .rank = kFrom, .bytes = 6400}));
  EXPECT_FALSE(Send(kChunk).has_value());
  piece = SentTo<wire::HandOver>(kTo);
  ASSERT_TRUE(piece.has_value());
  EXPECT_EQ(piece->offset, kChunk);
  EXPECT_FALSE(Answer({.received = kChunk}).has_value());
  EXPECT_EQ(SentTo<wire::HandOverAnswer>(kFrom),
            (wire::HandOverAnswer{.id = 7, .rank = kTo, .received = kChunk}));
}

TEST_F(HandOverRelayTest, SaysWhoDoesNotTakeThem) {
  const auto refusal = [&](int to, const std::string& may_not = "") {
    EXPECT_FALSE(Send(0, kChunk, to, 7, may_not).has_value());
    const auto answer = SentTo<wire::HandOverAnswer>(kFrom);
    if (!answer) return std::string("none");
    EXPECT_EQ(answer->rank, to);
    return answer->refusal;
  };
  EXPECT_EQ(refusal(1), "rank 1's client is of a version that takes no residuals");
  EXPECT_EQ(refusal(kTo, "it ends"), "it ends");
  members_.Leave(kTo, now_);
  EXPECT_EQ(refusal(kTo), "rank 0 is left");
  members_.SetGone(1);
  EXPECT_EQ(refusal(1), "rank 1 is gone");
  // What was under way is nothing more.
  EXPECT_FALSE(Send(kChunk).has_value());
  EXPECT_THAT(effects_, IsEmpty());
}

TEST_F(HandOverRelayTest, WhoeverLeavesRefuses) {
  EXPECT_FALSE(Send(0).has_value());
  effects_.clear();
  relay_.OnGone(kTo, effects_);
  const auto answer = SentTo<wire::HandOverAnswer>(kFrom);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->refusal, "rank 0 has left");
}

// Its new stream has all of it again, from the beginning.
TEST_F(HandOverRelayTest, ABrokenStreamIsWaitedFor) {
  EXPECT_FALSE(Send(0).has_value());
  Break(kTo);
  EXPECT_FALSE(Send(kChunk).has_value());
  EXPECT_THAT(effects_, IsEmpty());
  Attach(kTo);
  relay_.OnAttached(kTo, effects_);
  EXPECT_EQ(SentTo<wire::HandOverAnswer>(kFrom), (wire::HandOverAnswer{.id = 7, .rank = kTo}));
  EXPECT_FALSE(Send(2 * kChunk).has_value()) << "it was on its way";
  EXPECT_THAT(effects_, IsEmpty());
  EXPECT_FALSE(Send(0).has_value());
  EXPECT_TRUE(SentTo<wire::HandOver>(kTo).has_value());
}

TEST_F(HandOverRelayTest, AnAnswerThatWasLostIsGivenAgain) {
  EXPECT_FALSE(Send(0).has_value());
  EXPECT_FALSE(Answer({.received = kChunk, .taken = true}).has_value());
  EXPECT_THAT(effects_, SizeIs(2)) << "the answer, and a line in the log";
  EXPECT_FALSE(Send(0).has_value());
  const auto answer = SentTo<wire::HandOverAnswer>(kFrom);
  ASSERT_TRUE(answer.has_value());
  EXPECT_TRUE(answer->taken);
  // Another hand-over of the same member, which stayed after all.
  EXPECT_FALSE(Send(0, kChunk, kTo, 8).has_value());
  EXPECT_TRUE(SentTo<wire::HandOver>(kTo).has_value());
}

TEST_F(HandOverRelayTest, AnswersOfOthersMeanNothing) {
  EXPECT_FALSE(Answer({.received = kChunk}).has_value());
  EXPECT_FALSE(Send(0).has_value());
  for (const wire::HandOverAnswer& answer :
       {wire::HandOverAnswer{.id = 9, .received = kChunk}, {.received = 2 * kChunk}}) {
    EXPECT_FALSE(Answer(answer).has_value());
    EXPECT_THAT(effects_, IsEmpty());
  }
  EXPECT_FALSE(Answer({.received = kChunk, .taken = true}, /*by=*/1).has_value());
  EXPECT_THAT(effects_, IsEmpty());
}

TEST_F(HandOverRelayTest, WhatNoClientSendsIsAViolation) {
  const auto violation = [](const MaybeFailure& failure) {
    if (!failure) return std::string("none");
    EXPECT_EQ(failure->kind, FailureEvent::Kind::kViolation);
    EXPECT_EQ(failure->rank, kFrom);
    return std::string(failure->what.message());
  };
  EXPECT_THAT(violation(Send(0, kChunk + 1)), HasSubstr("allowed: at most 64 at a time"));
  EXPECT_THAT(violation(Send(0, kChunk, kFrom)), HasSubstr("to another rank of the session"));
  EXPECT_THAT(violation(Send(0, kChunk, 3)), HasSubstr("to rank 3"));
  EXPECT_THAT(violation(Send(6400 - 1, 2)), HasSubstr("sent 2 bytes of 6400 from 6399 on"));
}

// Its stream breaks again and again, and the other member is slow.
TEST_F(HandOverRelayTest, PiecesWithoutRoomAreAskedForAgain) {
  for (int stream = 0; stream < 4; ++stream) {
    for (std::uint64_t piece = 0; piece < 4; ++piece) {
      EXPECT_FALSE(Send(piece * kChunk).has_value());
      EXPECT_TRUE(SentTo<wire::HandOver>(kTo).has_value());
    }
  }
  EXPECT_FALSE(Send(0).has_value());
  EXPECT_THAT(effects_, IsEmpty()) << "16 are under way";
  for (int answer = 0; answer < 15; ++answer) {
    EXPECT_FALSE(Answer({.received = kChunk}).has_value());
    EXPECT_FALSE(SentTo<wire::HandOverAnswer>(kFrom) ==
                 (wire::HandOverAnswer{.id = 7, .rank = kTo}));
  }
  EXPECT_FALSE(Answer({.received = 4 * kChunk}).has_value());
  EXPECT_EQ(SentTo<wire::HandOverAnswer>(kFrom), (wire::HandOverAnswer{.id = 7, .rank = kTo}));
  EXPECT_FALSE(Send(0).has_value());
  EXPECT_TRUE(SentTo<wire::HandOver>(kTo).has_value());
}

}  // namespace
}  // namespace gradwire::server
