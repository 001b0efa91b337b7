#include "server/core/rendezvous.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::server {
namespace {

using Kind = FailureEvent::Kind;
using ::testing::HasSubstr;

class RendezvousTest : public ::testing::Test {
 protected:
  static SessionOptions Options() {
    SessionOptions options;
    options.name = "s";
    options.world_size = 3;
    options.join_timeout = absl::Seconds(60);
    return options;
  }

  static JoinAsk Ask(int world_size, int rank) {
    JoinAsk ask;
    ask.world_size = world_size;
    ask.rank = rank;
    ask.start_id = StartId(rank);
    return ask;
  }
  void Join(int rank) {
    const auto joined = rendezvous_.Join(Ask(3, rank), start_, effects_);
    ASSERT_TRUE(joined.ok()) << joined.status();
    EXPECT_EQ(*joined, rank);
  }
  static std::uint64_t StartId(int rank) { return 100 + static_cast<std::uint64_t>(rank); }

  template <class Effect>
  std::vector<Effect> Take() {
    std::vector<Effect> found;
    for (const auto& effect : effects_) {
      if (const auto* one = std::get_if<Effect>(&effect)) found.push_back(*one);
    }
    effects_.clear();
    return found;
  }

  const absl::Time start_ = absl::FromUnixSeconds(1'000'000);
  const SessionOptions options_ = Options();
  Membership members_{
      3, {.token_timeout = absl::Seconds(10), .resume_grace = {}, .silence_timeout = {}}, start_};
  Rendezvous rendezvous_{options_, members_, start_};
  Effects effects_;
};

TEST_F(RendezvousTest, AskingAgainGivesTheSameRankAndNoSecondLogLine) {
  Join(1);
  EXPECT_EQ(Take<LogEffect>().size(), 1);
  Join(1);
  EXPECT_EQ(Take<LogEffect>().size(), 0);
}

TEST_F(RendezvousTest, AWrongJoinFailsOnlyForTheRankThatTheOthersWaitFor) {
  Join(0);
  const absl::Status difference = absl::InvalidArgumentError("hook: differs");
  const MaybeFailure failure = rendezvous_.OnWrongJoin(Ask(3, 2), difference);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->kind, Kind::kWrongJoin);
  EXPECT_EQ(failure->rank, 2);
  EXPECT_EQ(failure->what, difference);
  EXPECT_TRUE(rendezvous_.OnWrongJoin(Ask(2, 1), difference).has_value());
  for (const JoinAsk& ask : {Ask(3, 0), Ask(3, 3), Ask(3, -1)}) {
    EXPECT_FALSE(rendezvous_.OnWrongJoin(ask, difference).has_value()) << ask.rank;
  }
}

TEST_F(RendezvousTest, ARankIsFreeOnceItsHolderLeaves) {
  Join(0);
  members_.Attach(0, 7, start_);
  EXPECT_EQ(rendezvous_.last_departure(), "");
  rendezvous_.Leave(0, effects_);
  ASSERT_TRUE(std::holds_alternative<DepartureEffect>(effects_.back()));
  EXPECT_EQ(std::get<DepartureEffect>(effects_.back()).lost, "");
  const auto closed = Take<CloseEffect>();
  ASSERT_EQ(closed.size(), 1);
  EXPECT_EQ(closed[0].connection, 7);
  EXPECT_EQ(members_.state(0), MemberState::kAbsent);
  EXPECT_EQ(rendezvous_.last_departure(), "rank 0 left");
}

TEST_F(RendezvousTest, ARankIsFreeOnceItsHolderIsLost) {
  Join(0);
  effects_.clear();
  absl::Time now = start_;
  while (members_.state(0) != MemberState::kAbsent && now < start_ + absl::Seconds(20)) {
    now += absl::Milliseconds(100);
    members_.Tick(now);
    EXPECT_FALSE(rendezvous_.Tick(now, effects_).has_value());
  }
  EXPECT_GT(now, start_ + absl::Seconds(10));
  EXPECT_EQ(members_.state(0), MemberState::kAbsent);
  ASSERT_TRUE(std::holds_alternative<DepartureEffect>(effects_.back()));
  EXPECT_EQ(std::get<DepartureEffect>(effects_.back()).lost, rendezvous_.last_departure());
  const auto logged = Take<LogEffect>();
  ASSERT_EQ(logged.size(), 1);
  EXPECT_EQ(logged[0].rank, 0);
  EXPECT_THAT(logged[0].message, HasSubstr("rank 0 is free again: "));
  EXPECT_THAT(logged[0].message, HasSubstr(rendezvous_.last_departure()));
}

TEST_F(RendezvousTest, FailsOnceTheJoinTimeoutHasPassed) {
  EXPECT_FALSE(rendezvous_.Tick(start_ + absl::Seconds(60), effects_).has_value());
  const MaybeFailure failure = rendezvous_.Tick(start_ + absl::Seconds(61), effects_);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->kind, Kind::kJoinTimeout);
  EXPECT_EQ(failure->waited, absl::Seconds(60));
}

TEST_F(RendezvousTest, WelcomesAllWhenTheyAreThere) {
  for (const int rank : {0, 1, 2}) {
    Join(rank);
    members_.Attach(rank, StartId(rank), start_);
  }
  effects_.clear();
  rendezvous_.Complete(NodeGroups(3), {.step = 5, .attempt = 2}, {}, effects_);
  const auto sent = Take<FanOutEffect>();
  ASSERT_EQ(sent.size(), 1);
  EXPECT_EQ(sent[0].ranks, (std::vector<int>{0, 1, 2}));
  const auto* welcome = std::get_if<wire::Welcome>(&sent[0].frame.header);
  ASSERT_NE(welcome, nullptr);
  EXPECT_EQ(*welcome, (wire::Welcome{.step = 5, .attempt = 2}));
}

}  // namespace
}  // namespace gradwire::server
