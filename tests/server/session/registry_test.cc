#include "server/session/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "hooks/coordinator_hook.h"
#include "server/session/session_runner.h"
#include "tests/server/session/stuck_session.h"

namespace gradwire::server {
namespace {

using ::testing::HasSubstr;

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

std::vector<ParameterSpec> Manifest() {
  return {ParameterSpec{.name = "w", .shape = {1024, 1024}, .dtype = DType::kFloat32}};
}

SessionOptions OptionsOf(const std::string& name, int world_size = 2) {
  SessionOptions options;
  options.name = name;
  options.world_size = world_size;
  options.manifest = Manifest();
  return options;
}

JoinAsk Ask(int rank, std::uint64_t start_id, int world_size = 2) {
  return {.world_size = world_size,
          .rank = rank,
          .start_id = start_id,
          .spec = {},
          .manifest = Manifest()};
}

TEST(RegistryTest, JoinIsIdempotentPerStartId) {
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 4});
  const auto first = registry.Join(OptionsOf("a"), Ask(-1, 7), kNow);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->token.size(), 32u);
  const auto again = registry.Join(OptionsOf("a"), Ask(-1, 7), kNow);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->token, first->token);
  EXPECT_EQ(again->member.rank, first->member.rank);
  const auto other = registry.Join(OptionsOf("a"), Ask(-1, 8), kNow);
  ASSERT_TRUE(other.ok());
  EXPECT_NE(other->token, first->token);
  EXPECT_EQ(registry.sessions(), 1u);
}

TEST(RegistryTest, TheLimitOfSessionsChangesWhileTheyRun) {
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 1});
  ASSERT_TRUE(registry.Join(OptionsOf("a"), Ask(0, 1), kNow).ok());
  EXPECT_EQ(registry.Join(OptionsOf("b"), Ask(0, 2), kNow).status().code(),
            absl::StatusCode::kResourceExhausted);
  registry.SetMaxSessions(2);
  EXPECT_TRUE(registry.Join(OptionsOf("b"), Ask(0, 2), kNow).ok());
  // Both go on.
  registry.SetMaxSessions(1);
  EXPECT_TRUE(registry.Join(OptionsOf("b"), Ask(1, 3), kNow).ok());
  EXPECT_EQ(registry.Join(OptionsOf("c"), Ask(0, 4), kNow).status().code(),
            absl::StatusCode::kResourceExhausted);
}

JoinAsk Reporting(int rank, std::uint64_t start_id) {
  JoinAsk ask = Ask(rank, start_id);
  ask.report = wire::MemberReport{
      .session_key = std::string(wire::kSessionKeyBytes, 'k'), .lineage = 77, .step = 3};
  return ask;
}

TEST(RegistryTest, TakesOverASessionOfAnotherDaemon) {
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 4});
  SessionOptions options = OptionsOf("a");
  options.coordinator_grace = absl::Seconds(60);
  const auto joined = registry.Join(options, Reporting(0, 7), kNow);
  ASSERT_TRUE(joined.ok()) << joined.status();
  const SessionOptions& own = joined->member.session->options();
  EXPECT_TRUE(own.gathers);
  EXPECT_EQ(own.lineage, 77U);
  EXPECT_EQ(own.session_key, std::string(wire::kSessionKeyBytes, 'k'));
  EXPECT_EQ(own.join_timeout, absl::Seconds(60));
}

TEST(RegistryTest, ABegunSessionHasAKeyOfItsOwn) {
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 4});
  const auto a = registry.Join(OptionsOf("a"), Ask(0, 7), kNow);
  const auto b = registry.Join(OptionsOf("b"), Ask(0, 7), kNow);
  ASSERT_TRUE(a.ok() && b.ok());
  const std::string key = a->member.session->options().session_key;
  EXPECT_EQ(key.size(), wire::kSessionKeyBytes);
  EXPECT_NE(key, b->member.session->options().session_key);
}

TEST(RegistryTest, RefusesSessionsThatEndWithTheirDaemon) {
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 4});
  const auto refusal = [&](const SessionOptions& options, const JoinAsk& ask) {
    const absl::Status status = registry.Join(options, ask, kNow).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refusal(OptionsOf("a"), Reporting(0, 7)), HasSubstr("on_coordinator_loss=resume"));
  SessionOptions options = OptionsOf("a");
  options.coordinator_grace = absl::Seconds(60);
  options.leaf = {.first = 0, .members = options.world_size};
  EXPECT_THAT(refusal(options, Reporting(0, 7)), HasSubstr("ended with its daemon"));
  EXPECT_EQ(registry.sessions(), 0U);
}

TEST(RegistryTest, TakesOverASessionWithNodeGroups) {
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 4});
  SessionOptions options = OptionsOf("a");
  options.coordinator_grace = absl::Seconds(60);
  JoinAsk ask = Reporting(0, 7);
  ask.group = {.name = "node", .communicator = "nccl"};
  EXPECT_TRUE(registry.Join(options, ask, kNow).ok());
}

// Its members were lost, and not their daemon.
TEST(RegistryTest, RefusesReportsOfASessionThatHasEndedHere) {
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 4});
  SessionOptions options = OptionsOf("a");
  options.coordinator_grace = absl::Seconds(60);
  const auto joined = registry.Join(options, Reporting(0, 7), kNow);
  ASSERT_TRUE(joined.ok());
  joined->member.session->Fail(absl::AbortedError("evicted"), -1);
  registry.Tick(kNow);
  const absl::Status again = registry.Join(options, Reporting(0, 7), kNow).status();
  EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(again.message()), HasSubstr("session \"a\" failed: evicted"));
  EXPECT_TRUE(registry.Join(options, Ask(0, 8), kNow).ok()) << "others may begin";
}

// Two streams for one session.
class NumberedStream final : public MemberStream {
 public:
  explicit NumberedStream(std::uint64_t id) : id_(id) {}
  std::uint64_t id() const override { return id_; }
  void Queue(Outgoing) override {}
  void QueueHeartbeats() override {}
  void EndAfterQueue(const absl::Status&) override {}
  void Pump(wire::Lane) override {}

 private:
  const std::uint64_t id_;
};

class SuccessionTest : public ::testing::Test {
 protected:
  SuccessionTest() {
    options_.coordinator_grace = absl::Seconds(60);
    options_.member_grace = absl::Seconds(300);
  }
  void Begin() {
    for (const int rank : {0, 1}) {
      const std::uint64_t id = 7 + static_cast<std::uint64_t>(rank);
      const auto joined = registry_.Join(options_, Ask(rank, id), kNow);
      ASSERT_TRUE(joined.ok()) << joined.status();
      session_ = joined->member.session;
      ASSERT_TRUE(session_->Attach(rank, id, 0, std::make_shared<NumberedStream>(id), kNow).ok());
    }
    ASSERT_EQ(session_->state(), SessionCore::State::kRunning);
  }
  // The error of a process that joins so long after all have left.
  std::string ComeAfterTheEnd(absl::Duration later) {
    Begin();
    for (const int rank : {0, 1}) {
      EXPECT_TRUE(session_->Leave(rank, 7 + static_cast<std::uint64_t>(rank), kNow).ok());
    }
    for (absl::Time now = kNow; now < kNow + absl::Seconds(2); now += absl::Milliseconds(200)) {
      registry_.Tick(now);
    }
    const auto joined = registry_.Join(options_, Ask(1, 99), kNow + later);
    EXPECT_TRUE(joined.ok()) << joined.status();
    EXPECT_FALSE(joined->member.session->options().gathers);
    registry_.Tick(kNow + later + options_.join_timeout);
    EXPECT_EQ(joined->member.session->failure(), absl::OkStatus());
    registry_.Tick(kNow + later + options_.join_timeout + absl::Seconds(1));
    return std::string(joined->member.session->failure().message());
  }
  // Rank 1, so that the session is over here.
  void LoseAMember() {
    Begin();
    session_->Detach(1, 8, kNow);
    for (absl::Time now = kNow; now < kNow + absl::Seconds(2); now += absl::Milliseconds(200)) {
      registry_.Tick(now);
    }
    session_->Detach(0, 7, kNow);
    registry_.Tick(kNow);
    ASSERT_TRUE(session_->awaits_successor());
  }
  Registry registry_{{.memory_bytes = 1 << 30, .max_sessions = 4}};
  SessionOptions options_ = OptionsOf("a");
  std::shared_ptr<SessionRunner> session_;
};

// It does not know the session's key, nor how its buckets are cut.
TEST_F(SuccessionTest, ASuccessorMayComeBeforeTheOthersReport) {
  LoseAMember();
  SessionOptions other = options_;
  other.chunk_bytes = 4096;
  const auto joined = registry_.Join(other, Ask(1, 99), kNow);
  ASSERT_TRUE(joined.ok()) << joined.status();
  const SessionOptions& own = joined->member.session->options();
  EXPECT_TRUE(own.gathers);
  EXPECT_EQ(own.session_key, session_->options().session_key);
  EXPECT_EQ(own.lineage, session_->options().lineage);
  EXPECT_EQ(own.chunk_bytes, options_.chunk_bytes);
  EXPECT_NE(own.generation, session_->options().generation);
  EXPECT_EQ(own.join_timeout, absl::Seconds(300));
  JoinAsk ask = Reporting(0, 7);
  EXPECT_EQ(registry_.Join(options_, ask, kNow).status().code(),
            absl::StatusCode::kPermissionDenied)
      << "a forged key";
  ask.report->session_key = own.session_key;
  ask.report->lineage = own.lineage;
  EXPECT_TRUE(registry_.Join(options_, ask, kNow).ok());
}

TEST_F(SuccessionTest, TheOthersMayReportFirst) {
  LoseAMember();
  JoinAsk ask = Reporting(0, 7);
  ask.report->session_key = session_->options().session_key;
  ask.report->lineage = session_->options().lineage;
  const auto joined = registry_.Join(options_, ask, kNow);
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_TRUE(registry_.Join(options_, Ask(1, 99), kNow).ok());
}

TEST_F(SuccessionTest, IsForgottenAfterTheGrace) {
  LoseAMember();
  for (const int seconds : {301, 302}) registry_.Tick(kNow + absl::Seconds(seconds));
  const auto joined = registry_.Join(options_, Ask(1, 99), kNow + absl::Seconds(302));
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_FALSE(joined->member.session->options().gathers) << "a new session";
}

// Nobody can tell it from the first process of a new job.
TEST_F(SuccessionTest, WhoComesAfterTheEndIsToldSo) {
  EXPECT_THAT(ComeAfterTheEnd(absl::Seconds(5)),
              HasSubstr("to join; a session of this name ended here less than 1m before"));
}

TEST_F(SuccessionTest, LongAfterTheEndNothingIsKnown) {
  EXPECT_THAT(ComeAfterTheEnd(absl::Seconds(90)), HasSubstr("to join [GW205]"));
}

TEST(RegistryTest, ACallerIsToldOfItsSessionsOnly) {
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 4});
  for (const char* name : {"a-1", "a-2", "b-1"}) {
    ASSERT_TRUE(registry.Join(OptionsOf(name), Ask(0, 1), kNow).ok());
  }
  EXPECT_EQ(registry.SessionsOf({.sessions = {"a-*"}}), 2u);
  EXPECT_EQ(registry.SessionsOf({.sessions = {"b-1", "c"}}), 1u);
  EXPECT_EQ(registry.SessionsOf({.sessions = {}}), 0u);
  EXPECT_EQ(registry.sessions(), 3u);
}

TEST(RegistryTest, TokensBelongToAStartId) {
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 4});
  const auto joined = registry.Join(OptionsOf("a"), Ask(1, 7), kNow);
  ASSERT_TRUE(joined.ok());
  EXPECT_EQ(registry.Find(joined->token, 7)->rank, 1);
  EXPECT_EQ(registry.Find(joined->token, 8).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(registry.Find("guess", 7).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(registry.Find("", 7).status().code(), absl::StatusCode::kNotFound);
}

TEST(RegistryTest, AMembershipIsOfOneIdentity) {
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 4});
  const auto joined = registry.Join(OptionsOf("a"), Ask(1, 7), kNow, "token a, anybody");
  ASSERT_TRUE(joined.ok());
  EXPECT_TRUE(registry.Find(joined->token, 7, "token a, anybody").ok());
  for (const char* identity : {"", "local", "anybody", "token b, anybody"}) {
    EXPECT_EQ(registry.Find(joined->token, 7, identity).status().code(),
              absl::StatusCode::kPermissionDenied);
    EXPECT_EQ(registry.Leave(joined->token, 7, kNow, identity).code(),
              absl::StatusCode::kPermissionDenied);
  }
  EXPECT_TRUE(registry.Leave(joined->token, 7, kNow, "token a, anybody").ok());
}

TEST(RegistryTest, RefusesWhatMemoryDoesNotHold) {
  const std::size_t each = OptionsOf("a").ReservedBytes();
  Registry registry({.memory_bytes = 2 * each + 1, .max_sessions = 4});
  ASSERT_TRUE(registry.Join(OptionsOf("a"), Ask(0, 1), kNow).ok());
  ASSERT_TRUE(registry.Join(OptionsOf("b"), Ask(0, 1), kNow).ok());
  EXPECT_EQ(registry.reserved_bytes(), 2 * each);
  const absl::Status refused = registry.Join(OptionsOf("c"), Ask(0, 1), kNow).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(std::to_string(each)));
  EXPECT_EQ(registry.sessions(), 2u);
}

TEST(RegistryTest, RefusesTooManySessions) {
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 1});
  ASSERT_TRUE(registry.Join(OptionsOf("a"), Ask(0, 1), kNow).ok());
  EXPECT_EQ(registry.Join(OptionsOf("b"), Ask(0, 1), kNow).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(RegistryTest, ARefusedFirstJoinLeavesNothingBehind) {
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 4});
  EXPECT_FALSE(registry.Join(OptionsOf("a"), Ask(5, 1), kNow).ok());
  EXPECT_FALSE(registry.Join(OptionsOf("bad name"), Ask(0, 1), kNow).ok());
  EXPECT_FALSE(registry.Join(OptionsOf("a", 0), Ask(0, 1, 0), kNow).ok());
  EXPECT_EQ(registry.sessions(), 0u);
  EXPECT_EQ(registry.reserved_bytes(), 0u);
}

TEST(RegistryTest, ASessionThatEverybodyGaveUpIsDropped) {
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 4});
  auto joined = registry.Join(OptionsOf("a"), Ask(0, 1), kNow);
  ASSERT_TRUE(joined.ok());
  joined->member.session.reset();
  registry.Tick(kNow);
  EXPECT_EQ(registry.sessions(), 1u);
  // Its token was not used in time.
  for (int i = 1; i <= 60; ++i) registry.Tick(kNow + i * absl::Milliseconds(100));
  EXPECT_EQ(registry.sessions(), 0u);
  EXPECT_EQ(registry.reserved_bytes(), 0u);
  EXPECT_FALSE(registry.Find(joined->token, 1).ok());
}

TEST(RegistryTest, ASessionWhoseMembersAllDiedWhileJoiningSaysSo) {
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 4});
  ASSERT_TRUE(registry.Join(OptionsOf("unused"), Ask(1, 1), kNow).ok());
  const auto lost = registry.Join(OptionsOf("lost"), Ask(0, 1), kNow);
  ASSERT_TRUE(lost.ok());
  const auto stream = std::make_shared<QuietStream>();
  ASSERT_TRUE(lost->member.session->Attach(0, 1, 0, stream, kNow).ok());
  lost->member.session->Detach(0, stream->id(), kNow);
  const auto left = registry.Join(OptionsOf("left"), Ask(0, 1), kNow);
  ASSERT_TRUE(left.ok());
  ASSERT_TRUE(left->member.session->Leave(0, 1, kNow).ok());
  for (int i = 1; i <= 60; ++i) registry.Tick(kNow + i * absl::Milliseconds(100));
  EXPECT_EQ(registry.sessions(), 0u);
  const auto why = [&](const std::string& name) {
    const auto status = registry.Status(name, kNow);
    return status.ok() ? status->state() + ": " + status->waiting_for()
                       : status.status().ToString();
  };
  constexpr char kNobody[] = " failed: nobody is in it any more: ";
  EXPECT_EQ(why("unused"),
            absl::StrCat("failed: session \"unused\"", kNobody,
                         "rank 1 opened no stream before all 2 members had joined [GW212]"));
  EXPECT_EQ(why("lost"),
            absl::StrCat("failed: session \"lost\"", kNobody,
                         "rank 0's stream ended before all 2 members had joined [GW212]"));
  EXPECT_EQ(why("left"), absl::StrCat("failed: session \"left\"", kNobody,
                                      "rank 0 left before all 2 members had joined [GW212]"));
  EXPECT_EQ(registry.List(kNow).size(), 3u);
}

TEST(RegistryTest, ANameIsFreeOnceItsSessionHasEnded) {
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 4});
  auto first = registry.Join(OptionsOf("a"), Ask(0, 1), kNow);
  ASSERT_TRUE(first.ok());
  first->member.session->Fail(absl::AbortedError("broken"), 0);
  EXPECT_EQ(registry.sessions(), 0u);
  const auto second = registry.Join(OptionsOf("a"), Ask(0, 1), kNow);
  ASSERT_TRUE(second.ok());
  EXPECT_GT(second->member.session->options().generation,
            first->member.session->options().generation);
  EXPECT_NE(second->member.session->options().lineage, first->member.session->options().lineage);
  EXPECT_NE(second->token, first->token);
  // The first one's member can still learn what happened, and then not any more.
  const absl::Status failure = registry.Find(first->token, 1).status();
  EXPECT_EQ(failure.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(failure.message()), HasSubstr("broken"));
  EXPECT_TRUE(registry.Leave(first->token, 1, kNow).ok());
  registry.Tick(kNow + absl::Seconds(11));
  EXPECT_EQ(registry.Find(first->token, 1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(registry.Leave(first->token, 1, kNow).code(), absl::StatusCode::kNotFound);
}

TEST(RegistryTest, AFailedSessionKeepsItsReservationAsLongAsItsMemory) {
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 4});
  auto joined = registry.Join(OptionsOf("a"), Ask(0, 1), kNow);
  ASSERT_TRUE(joined.ok());
  const std::weak_ptr<SessionRunner> session = joined->member.session;
  joined->member.session->Fail(absl::AbortedError("broken"), 0);
  registry.Tick(kNow);
  EXPECT_EQ(registry.sessions(), 0u);
  EXPECT_GT(registry.reserved_bytes(), 0u) << "somebody still has the session";
  joined->member.session.reset();
  EXPECT_TRUE(session.expired()) << "it is kept for members that ask";
  EXPECT_EQ(registry.reserved_bytes(), 0u);
  EXPECT_EQ(registry.Find(joined->token, 1).status().code(), absl::StatusCode::kAborted);
}

TEST(RegistryTest, RemembersTheLastSessionsThatEnded) {
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 4});
  for (int i = 0; i < 40; ++i) {
    const auto joined = registry.Join(OptionsOf("s" + std::to_string(i)), Ask(0, 1), kNow);
    ASSERT_TRUE(joined.ok());
    joined->member.session->Fail(absl::AbortedError("broken"), 0);
    registry.Tick(kNow);
  }
  EXPECT_EQ(registry.List(kNow).size(), 16u);
  EXPECT_EQ(registry.Status("s39", kNow)->state(), "failed");
  EXPECT_THAT(registry.Status("s39", kNow)->waiting_for(), HasSubstr("broken"));
  EXPECT_EQ(registry.Status("s0", kNow).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(registry.reserved_bytes(), 0u);
}

TEST(RegistryTest, DrainingRefusesJoinsAndEndsIncompleteSessions) {
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 4});
  const auto joined = registry.Join(OptionsOf("a"), Ask(0, 1), kNow);
  ASSERT_TRUE(joined.ok());
  registry.BeginDrain();
  EXPECT_TRUE(joined->member.session->ended());
  EXPECT_EQ(registry.Join(OptionsOf("b"), Ask(0, 1), kNow).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_TRUE(registry.idle());
}

}  // namespace
}  // namespace gradwire::server
