// What the registry returns to the quotas, on every path that a membership and a session can end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/session/outgoing.h"
#include "server/session/registry.h"
#include "server/session/session_runner.h"

namespace gradwire::server {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::size_t kMembers = static_cast<std::size_t>(QuotaKind::kMembers);
constexpr std::size_t kSessions = static_cast<std::size_t>(QuotaKind::kSessions);
constexpr std::size_t kMemory = static_cast<std::size_t>(QuotaKind::kMemory);
constexpr std::size_t kStreams = static_cast<std::size_t>(QuotaKind::kStreams);

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

std::vector<ParameterSpec> Manifest() {
  return {ParameterSpec{.name = "w", .shape = {64, 64}, .dtype = DType::kFloat32}};
}

SessionOptions OptionsOf(const std::string& name, int world_size) {
  SessionOptions options;
  options.name = name;
  options.world_size = world_size;
  options.manifest = Manifest();
  return options;
}

JoinAsk Ask(int rank, std::uint64_t start_id, int world_size) {
  return {.world_size = world_size,
          .rank = rank,
          .start_id = start_id,
          .spec = {},
          .manifest = Manifest()};
}

QuotaLimits Limits(const std::string& text, QuotaOwner owner = QuotaOwner::kIdentity) {
  return ParseQuota(text, owner).value_or(QuotaLimits());
}

QuotaHolder Holder(int identity) { return {.name = absl::StrCat("i", identity)}; }

// Takes what it is sent, and drops it.
class Stream final : public MemberStream {
 public:
  explicit Stream(std::uint64_t id) : id_(id) {}
  std::uint64_t id() const override { return id_; }
  void Queue(Outgoing /*frame*/) override {}
  void QueueHeartbeats() override {}
  void EndAfterQueue(const absl::Status& /*status*/) override {}
  void Pump(wire::Lane /*lane*/) override {}

 private:
  const std::uint64_t id_;
};

TEST(RegistryQuotaTest, ARefusedJoinLeavesNothingBehind) {
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 4});
  registry.ledger().SetLimits(Limits("sessions=1,members=3"), {});
  const auto first = registry.Join(OptionsOf("a", 4), Ask(0, 1, 4), kNow, "x", Holder(0));
  ASSERT_TRUE(first.ok()) << first.status();
  const std::size_t reserved = registry.reserved_bytes();
  const absl::Status second =
      registry.Join(OptionsOf("b", 4), Ask(0, 2, 4), kNow, "x", Holder(0)).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(second.message()), HasSubstr("i0 has 1 of 1 sessions"));
  EXPECT_EQ(registry.sessions(), 1);
  EXPECT_EQ(registry.reserved_bytes(), reserved);
  EXPECT_EQ(registry.Get("b"), nullptr);
  ASSERT_TRUE(registry.Join(OptionsOf("a", 4), Ask(1, 3, 4), kNow, "x", Holder(0)).ok());
  ASSERT_TRUE(registry.Join(OptionsOf("a", 4), Ask(2, 4, 4), kNow, "x", Holder(0)).ok());
  EXPECT_FALSE(registry.Join(OptionsOf("a", 4), Ask(3, 5, 4), kNow, "x", Holder(0)).ok());
  EXPECT_EQ(registry.Status("a", kNow)->members(3).state(), "absent");
  // Who repeats a join because the answer was lost needs no place.
  const auto again = registry.Join(OptionsOf("a", 4), Ask(0, 1, 4), kNow, "x", Holder(0));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->token, first->token);
  // Another identity is not concerned.
  EXPECT_TRUE(registry.Join(OptionsOf("a", 4), Ask(3, 6, 4), kNow, "y", Holder(1)).ok());
  EXPECT_TRUE(registry.Join(OptionsOf("b", 4), Ask(0, 7, 4), kNow, "y", Holder(1)).ok());
}

TEST(RegistryQuotaTest, MemoryIsReturnedWhenItIsFree) {
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 4});
  const auto joined = registry.Join(OptionsOf("a", 1), Ask(0, 1, 1), kNow, "", Holder(0));
  ASSERT_TRUE(joined.ok());
  const auto stream = std::make_shared<Stream>(1);
  ASSERT_TRUE(joined->member.session->Attach(0, 1, 0, stream, kNow).ok());
  EXPECT_EQ(registry.ledger().used_by("i0")[kMemory], registry.reserved_bytes());
  ASSERT_TRUE(registry.Leave(joined->token, 1, kNow).ok());
  EXPECT_EQ(registry.ledger().used_by("i0")[kSessions], 0);
  EXPECT_GT(registry.ledger().used_by("i0")[kMemory], 0);
  joined->member.session->Detach(0, 1, kNow);
  registry.Tick(kNow);
  // This test still has the session.
  EXPECT_GT(registry.ledger().used_by("i0")[kMemory], 0);
}

TEST(RegistryQuotaTest, ASessionBegunAtOnceByItsMembersIsOne) {
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 4});
  registry.ledger().SetLimits(Limits("sessions=1"), {});
  for (int rank = 0; rank < 3; ++rank) {
    const auto id = static_cast<std::uint64_t>(rank + 1);
    EXPECT_TRUE(registry.Join(OptionsOf("a", 3), Ask(rank, id, 3), kNow, "", Holder(0)).ok());
  }
  EXPECT_EQ(registry.ledger().refusals(QuotaKind::kSessions), 0);
}

// A registry with random members, and the test's own books of who has which rank.
class World {
 public:
  explicit World(std::uint64_t seed) : random_(seed) {
    registry_.ledger().SetLimits(Limits("sessions=3,members=7,streams=10"),
                                 Limits("members=3", QuotaOwner::kSession));
  }

  void Step() {
    switch (Below(8)) {
      case 0:
      case 1:
      case 2:
        return Join();
      case 3:
        return Attach();
      case 4:
        return Detach();
      case 5:
        return Leave();
      case 6:
        return Fail();
      default:
        now_ += absl::Milliseconds(Below(2) == 0 ? 100 : 1500);
        registry_.Tick(now_);
    }
  }

  void Compare() {
    std::map<std::string, QuotaLedger::Amounts> by_identity;
    for (int i = 0; i < 3; ++i) by_identity[absl::StrCat("i", i)] = {};
    for (const auto& [name, session] : sessions_) {
      const v1::SessionStatus status = session.runner->Status(now_);
      if (session.runner->ended()) continue;
      ++by_identity[session.beginner][kSessions];
      for (const v1::MemberStatus& member : status.members()) {
        if (member.state() == "absent" || member.state() == "left") continue;
        const Member& who = session.members.at(static_cast<int>(member.rank()));
        QuotaLedger::Amounts& amounts = by_identity[who.identity];
        ++amounts[kMembers];
        amounts[kStreams] += who.lane ? 2 : 1;
      }
    }
    for (const auto& [identity, amounts] : by_identity) {
      QuotaLedger::Amounts used = registry_.ledger().used_by(identity);
      used[kMemory] = 0;  // until the last reference is gone: not an event
      EXPECT_EQ(used, amounts) << identity;
    }
  }

  void End() {
    registry_.FailAll(absl::UnavailableError("over"));
    for (auto& [name, session] : sessions_) {
      for (auto& [rank, member] : session.members) {
        if (member.stream != nullptr) session.runner->Detach(rank, member.stream->id(), now_);
      }
    }
    sessions_.clear();
    now_ += absl::Seconds(20);
    registry_.Tick(now_);
    registry_.Tick(now_);
    EXPECT_EQ(registry_.ledger().identities(), 0);
    EXPECT_EQ(registry_.ledger().sessions(), 0);
    EXPECT_EQ(registry_.reserved_bytes(), 0);
  }

  std::uint64_t refusals() const {
    return registry_.ledger().refusals(QuotaKind::kSessions) +
           registry_.ledger().refusals(QuotaKind::kMembers) +
           registry_.ledger().refusals(QuotaKind::kStreams);
  }

 private:
  static constexpr int kWorldSize = 3;
  struct Member {
    std::string identity;
    std::string token;
    std::uint64_t start_id = 0;
    bool lane = false;
    std::shared_ptr<Stream> stream{};
  };
  struct Session {
    std::shared_ptr<SessionRunner> runner;
    std::string beginner;
    std::map<int, Member> members{};  // by rank, the last that joined
  };

  int Below(int end) { return std::uniform_int_distribution<int>(0, end - 1)(random_); }

  void Join() {
    const std::string name = absl::StrCat("s", Below(6));
    const int identity = Below(3);
    const std::uint64_t id = ++last_id_;
    const auto joined =
        registry_.Join(OptionsOf(name, kWorldSize), Ask(Below(kWorldSize + 1) - 1, id, kWorldSize),
                       now_, "", Holder(identity));
    if (!joined.ok()) return;
    Session& session = sessions_[name];
    if (session.runner != joined->member.session) {
      // The session before has ended; its streams close.
      Close(session);
      session = {.runner = joined->member.session, .beginner = Holder(identity).name};
    }
    Member& member = session.members[joined->member.rank];
    // The stream of the one that had the rank before ends.
    if (member.stream != nullptr)
      session.runner->Detach(joined->member.rank, member.stream->id(), now_);
    member = {.identity = Holder(identity).name,
              .token = joined->token,
              .start_id = id,
              .lane = session.runner->GrantLane(joined->member.rank, id, Holder(identity))};
  }

  void Close(Session& session) {
    for (auto& [rank, member] : session.members) {
      if (member.stream == nullptr) continue;
      session.runner->Detach(rank, member.stream->id(), now_);
      member.stream = nullptr;
    }
  }

  // A random member that has once joined; null: there is none.
  std::pair<Session*, int> Any() {
    if (sessions_.empty()) return {nullptr, 0};
    auto session = std::next(sessions_.begin(), Below(static_cast<int>(sessions_.size())));
    auto& members = session->second.members;
    return {&session->second,
            std::next(members.begin(), Below(static_cast<int>(members.size())))->first};
  }

  void Attach() {
    const auto [session, rank] = Any();
    if (session == nullptr) return;
    Member& member = session->members.at(rank);
    auto stream = std::make_shared<Stream>(++last_id_);
    if (!session->runner->Attach(rank, member.start_id, 0, stream, now_).ok()) return;
    if (member.stream != nullptr) session->runner->Detach(rank, member.stream->id(), now_);
    member.stream = std::move(stream);
  }

  void Detach() {
    const auto [session, rank] = Any();
    if (session == nullptr) return;
    Member& member = session->members.at(rank);
    if (member.stream == nullptr) return;
    session->runner->Detach(rank, member.stream->id(), now_);
    member.stream = nullptr;
  }

  void Leave() {
    const auto [session, rank] = Any();
    if (session == nullptr) return;
    const Member& member = session->members.at(rank);
    registry_.Leave(member.token, member.start_id, now_).IgnoreError();
  }

  void Fail() {
    const auto [session, rank] = Any();
    if (session == nullptr || Below(4) > 0) return;
    session->runner->Fail(absl::CancelledError("an operator ended it"), -1);
  }

  std::mt19937_64 random_;
  Registry registry_{{.memory_bytes = std::size_t{1} << 32, .max_sessions = 100}};
  absl::Time now_ = kNow;
  std::uint64_t last_id_ = 0;
  std::map<std::string, Session> sessions_;
};

TEST(RegistryQuotaTest, AgreesWithARecountAfterAnySequence) {
  std::uint64_t refusals = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    World world(seed);
    for (int step = 0; step < 300; ++step) {
      world.Step();
      world.Compare();
      if (::testing::Test::HasFailure()) return;
    }
    refusals += world.refusals();
    world.End();
  }
  EXPECT_GT(refusals, 100);
}

}  // namespace
}  // namespace gradwire::server
