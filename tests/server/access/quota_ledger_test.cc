#include "server/access/quota_ledger.h"

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::server {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Time kNow = absl::UnixEpoch();

QuotaLimits Limits(const std::string& text, QuotaOwner owner = QuotaOwner::kIdentity) {
  const auto limits = ParseQuota(text, owner);
  EXPECT_TRUE(limits.ok()) << limits.status();
  return limits.value_or(QuotaLimits());
}

std::string Message(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  return std::string(status.message());
}

TEST(QuotaLedger, ARefusalSaysWhoseWhatAndWhatToDo) {
  const auto ledger = QuotaLedger::Make();
  ledger->SetLimits(Limits("sessions=1,members=2"),
                    Limits("members=1,memory=500", QuotaOwner::kSession));
  const QuotaHolder own = {.name = "team-a", .own = Limits("sessions=1,memory=100")};
  const QuotaHolder other = {.name = "certificate b"};
  auto a = ledger->BeginSession(own, "s", 60);
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_EQ(Message(ledger->BeginSession(own, "t", 1).status()),
            "team-a has 1 of 1 sessions; end one, or raise sessions= in its line of the tokens "
            "file [GW214]");
  a->session = QuotaLedger::Use();
  EXPECT_EQ(Message(ledger->BeginSession(own, "t", 50).status()),
            "team-a has sessions that reserve 60 of 100 bytes, and another would reserve 50; end "
            "one, or raise memory= in its line of the tokens file [GW214]");
  EXPECT_THAT(Message(ledger->BeginSession(other, "t", 501).status()),
              HasSubstr("session \"t\" would reserve 501 of 500 bytes"));
  const auto member = ledger->AddMember(other, "s");
  ASSERT_TRUE(member.ok()) << member.status();
  EXPECT_EQ(Message(ledger->AddMember(own, "s").status()),
            "session \"s\" has 1 of 1 members; wait until a member leaves, or raise members= in "
            "session_quota [GW214]");
  const auto second = ledger->AddMember(other, "t");
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(Message(ledger->AddMember(other, "u").status()),
            "certificate b has 2 of 2 members; wait until a member leaves, or raise members= in "
            "identity_quota [GW214]");
  EXPECT_EQ(ledger->refusals(QuotaKind::kSessions), 1);
  EXPECT_EQ(ledger->refusals(QuotaKind::kMemory), 2);
  EXPECT_EQ(ledger->refusals(QuotaKind::kMembers), 2);
}

TEST(QuotaLedger, ALaneTakesAStreamIfThereIsOne) {
  const auto ledger = QuotaLedger::Make();
  ledger->SetLimits(Limits("streams=3"), {});
  const auto first = ledger->AddMember({.name = "a"}, "s");
  const auto second = ledger->AddMember({.name = "a"}, "s");
  {
    EXPECT_FALSE(ledger->AddLane({.name = "a"}, "s", /*spare=*/1).has_value());
    const auto lane = ledger->AddLane({.name = "a"}, "s", /*spare=*/0);
    EXPECT_TRUE(lane.has_value());
    EXPECT_FALSE(ledger->AddLane({.name = "a"}, "s", /*spare=*/0).has_value());
    EXPECT_THAT(Message(ledger->AddMember({.name = "a"}, "s").status()),
                HasSubstr("3 of 3 streams"));
  }
  EXPECT_TRUE(ledger->AddLane({.name = "a"}, "s", /*spare=*/0).has_value());
  EXPECT_EQ(ledger->refusals(QuotaKind::kStreams), 1);
}

// A bucket that holds 10 s, compared with a count of what could have come in.
TEST(QuotaLedger, JoinsAreLimitedToTheirRateAfterABurst) {
  const auto ledger = QuotaLedger::Make();
  ledger->SetLimits(Limits("joins=5"), {});
  int admitted = 0;
  for (int ms = 0; ms < 4000; ++ms) {
    if (ledger->AdmitJoin({.name = "a"}, kNow + absl::Milliseconds(ms)).ok()) ++admitted;
  }
  EXPECT_EQ(admitted, 50 + 5 * 4 - 1);  // the last token comes at 4 s
  EXPECT_EQ(ledger->refusals(QuotaKind::kJoins), 4000 - admitted);
  EXPECT_EQ(Message(ledger->AdmitJoin({.name = "a"}, kNow + absl::Milliseconds(3999))),
            "a has joins faster than its 5 a second; try again later, or raise joins= in "
            "identity_quota [GW214]");
  EXPECT_TRUE(ledger->AdmitJoin({.name = "b"}, kNow).ok());
  // However long it waits, a burst is 10 s of its rate.
  admitted = 0;
  while (ledger->AdmitJoin({.name = "a"}, kNow + absl::Hours(5)).ok()) ++admitted;
  EXPECT_EQ(admitted, 50);
}

TEST(QuotaLedger, JoinsOfASessionAreLimitedWhileItIsThere) {
  const auto ledger = QuotaLedger::Make();
  ledger->SetLimits({}, Limits("joins=1", QuotaOwner::kSession));
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(ledger->AdmitJoinTo("s", kNow).ok());
  EXPECT_EQ(ledger->sessions(), 0);
  const auto member = ledger->AddMember({.name = "a"}, "s");
  int admitted = 0;
  while (ledger->AdmitJoinTo("s", kNow).ok()) ++admitted;
  EXPECT_EQ(admitted, 10);
  EXPECT_THAT(Message(ledger->AdmitJoinTo("s", kNow)), HasSubstr("session \"s\" has joins faster"));
  EXPECT_TRUE(ledger->AdmitJoinTo("t", kNow).ok());
}

TEST(QuotaLedger, ALowerLimitTakesNothing) {
  const auto ledger = QuotaLedger::Make();
  auto first = ledger->AddMember({.name = "a"}, "s");
  auto second = ledger->AddMember({.name = "a"}, "s");
  ledger->SetLimits(Limits("members=1"), {});
  EXPECT_THAT(Message(ledger->AddMember({.name = "a"}, "s").status()), HasSubstr("has 2 of 1"));
  *first = QuotaLedger::Use();
  EXPECT_FALSE(ledger->AddMember({.name = "a"}, "s").ok());
  *second = QuotaLedger::Use();
  EXPECT_TRUE(ledger->AddMember({.name = "a"}, "s").ok());
}

TEST(QuotaLedger, IdleIdentitiesAreForgotten) {
  const auto ledger = QuotaLedger::Make();
  ledger->SetLimits(Limits("joins=100"), {});
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(ledger->AdmitJoin({.name = absl::StrCat(i)}, kNow).ok());
  }
  const auto member = ledger->AddMember({.name = "7"}, "s");
  ledger->Tick(kNow + absl::Seconds(9));
  EXPECT_EQ(ledger->identities(), 1000);
  ledger->Tick(kNow + absl::Seconds(10));
  EXPECT_EQ(ledger->identities(), 1);
  EXPECT_THAT(ledger->used_by("7"), ElementsAre(0, 1, 0, 1, 0));
}

TEST(QuotaLedger, TheNumberOfIdentitiesIsBounded) {
  const auto ledger = QuotaLedger::Make();
  ledger->SetLimits(Limits("joins=1"), {});
  for (std::size_t i = 0; i < QuotaLedger::kMostIdentities; ++i) {
    ASSERT_TRUE(ledger->AdmitJoin({.name = absl::StrCat(i)}, kNow).ok());
  }
  EXPECT_THAT(Message(ledger->AdmitJoin({.name = "x"}, kNow)), HasSubstr("one identity too many"));
  EXPECT_THAT(Message(ledger->AddMember({.name = "x"}, "s").status()), HasSubstr("too many"));
  EXPECT_TRUE(ledger->AdmitJoin({.name = "0"}, kNow).ok());
  ledger->Tick(kNow + absl::Seconds(10));
  EXPECT_TRUE(ledger->AdmitJoin({.name = "x"}, kNow + absl::Seconds(10)).ok());
}

// What somebody holds in the test's own books.
struct Held {
  std::string identity;
  std::string session;
  QuotaLedger::Amounts amounts{};
  QuotaLedger::Use use;
};

// The books are kept apart from the ledger: a list of what is held, added up anew each time.
class Books {
 public:
  explicit Books(std::uint64_t seed) : random_(seed) {}

  void Step() {
    const std::string identity = absl::StrCat("i", Below(3));
    const std::string session = absl::StrCat("s", Below(4));
    switch (Below(6)) {
      case 0: {
        const std::uint64_t bytes = Below(60);
        auto begun = ledger_->BeginSession({.name = identity}, session, bytes);
        Expect(begun.ok(), identity, session, {1, 0, bytes, 0, 0});
        if (!begun.ok()) return;
        Keep(identity, session, {1, 0, 0, 0, 0}, std::move(begun->session));
        Keep(identity, session, {0, 0, bytes, 0, 0}, std::move(begun->memory));
        return;
      }
      case 1:
      case 2: {
        auto member = ledger_->AddMember({.name = identity}, session);
        Expect(member.ok(), identity, session, {0, 1, 0, 1, 0});
        if (member.ok()) Keep(identity, session, {0, 1, 0, 1, 0}, *std::move(member));
        return;
      }
      case 3: {
        const std::uint64_t spare = Below(3);
        auto lane = ledger_->AddLane({.name = identity}, session, spare);
        Expect(lane.has_value(), identity, session, {0, 0, 0, 1 + spare, 0});
        if (lane) Keep(identity, session, {0, 0, 0, 1, 0}, *std::move(lane));
        return;
      }
      default:
        if (held_.empty()) return;
        std::swap(held_[Below(held_.size())], held_.back());
        held_.pop_back();
    }
  }

  void Compare() const {
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(ledger_->used_by(absl::StrCat("i", i)), Sum(absl::StrCat("i", i), ""));
      EXPECT_EQ(ledger_->used_in(absl::StrCat("s", i)), Sum("", absl::StrCat("s", i)));
    }
  }

  void Clear() { held_.clear(); }
  const QuotaLedger& ledger() const { return *ledger_; }

  void SetLimits() {
    identity_ = Limits(absl::StrCat("sessions=", 1 + Below(4), ",members=", 1 + Below(9),
                                    ",memory=", 1 + Below(150), ",streams=", 1 + Below(12)));
    session_ = Limits(absl::StrCat("members=", 1 + Below(6), ",memory=", 1 + Below(60),
                                   ",streams=", 1 + Below(9)),
                      QuotaOwner::kSession);
    ledger_->SetLimits(identity_, session_);
  }

 private:
  std::uint64_t Below(std::uint64_t end) {
    return std::uniform_int_distribution<std::uint64_t>(0, end - 1)(random_);
  }

  QuotaLedger::Amounts Sum(const std::string& identity, const std::string& session) const {
    QuotaLedger::Amounts sum{};
    for (const Held& one : held_) {
      const bool counts = identity.empty() ? one.session == session : one.identity == identity;
      for (std::size_t i = 0; counts && i < sum.size(); ++i) sum[i] += one.amounts[i];
    }
    return sum;
  }

  void Expect(bool taken, const std::string& identity, const std::string& session,
              const QuotaLedger::Amounts& more) const {
    const QuotaLedger::Amounts own = Sum(identity, "");
    const QuotaLedger::Amounts in = Sum("", session);
    bool fits = true;
    for (std::size_t i = 0; i < more.size(); ++i) {
      // A session's memory counts by itself, not with that of the one before.
      const std::uint64_t before = i == static_cast<std::size_t>(QuotaKind::kMemory) ? 0 : in[i];
      fits = fits && (more[i] == 0 || (own[i] + more[i] <= identity_.values[i] &&
                                       before + more[i] <= session_.values[i]));
    }
    EXPECT_EQ(taken, fits);
  }

  void Keep(const std::string& identity, const std::string& session,
            const QuotaLedger::Amounts& amounts, QuotaLedger::Use use) {
    held_.push_back(
        {.identity = identity, .session = session, .amounts = amounts, .use = std::move(use)});
  }

  std::mt19937_64 random_;
  std::shared_ptr<QuotaLedger> ledger_ = QuotaLedger::Make();
  QuotaLimits identity_;
  QuotaLimits session_;
  std::vector<Held> held_;
};

TEST(QuotaLedger, AgreesWithARecountAfterAnySequence) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Books books(seed);
    for (int step = 0; step < 500; ++step) {
      if (step % 50 == 0) books.SetLimits();
      books.Step();
      books.Compare();
      if (::testing::Test::HasFailure()) return;
    }
    books.Clear();
    EXPECT_EQ(books.ledger().identities(), 0);
    EXPECT_EQ(books.ledger().sessions(), 0);
  }
}

TEST(QuotaLedger, ThreadsNeverExceedALimitAndReturnAll) {
  const auto ledger = QuotaLedger::Make();
  ledger->SetLimits(Limits("members=3"), {});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&ledger, t] {
      for (int i = 0; i < 2000; ++i) {
        const auto use = ledger->AddMember({.name = "a"}, absl::StrCat("s", t));
        EXPECT_LE(ledger->used_by("a")[1], 3);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(ledger->used_by("a"), Each(0));
  EXPECT_EQ(ledger->sessions(), 0);
}

}  // namespace
}  // namespace gradwire::server
