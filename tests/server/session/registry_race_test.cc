// What the registry does without its lock, met by others at the worst moment.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/hooks/registry.h"
#include "tests/server/session/stuck_session.h"

namespace gradwire::server {
namespace {

using ::testing::HasSubstr;

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

SessionOptions OptionsOf(const std::string& name, int world_size) {
  SessionOptions options;
  options.name = name;
  options.world_size = world_size;
  options.manifest = {ParameterSpec{.name = "w", .shape = {1024}, .dtype = DType::kFloat32}};
  return options;
}

JoinAsk Ask(int rank, std::uint64_t start_id, int world_size) {
  return {.world_size = world_size,
          .rank = rank,
          .start_id = start_id,
          .spec = {},
          .manifest = OptionsOf("", 1).manifest};
}

// Stops the first `stopped` makers of hooks until the gate is open.
Registry::HookMaker MakerBehind(Gate& gate, int stopped) {
  const auto left = std::make_shared<std::atomic<int>>(stopped);
  return [&gate, left](const HookSpec& spec, SharedManifest manifest) {
    if (left->fetch_sub(1) > 0) gate.Pass();
    return MakeCoordinatorHook(spec, manifest);
  };
}

TEST(RegistryRaceTest, TwoJoinsThatCreateASessionAtOnceMeetInOne) {
  Gate gate;
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 4}, MakerBehind(gate, 2));
  std::vector<absl::StatusOr<Registry::Joined>> joined(2);
  {
    Beside a([&] { joined[0] = registry.Join(OptionsOf("s", 2), Ask(-1, 1, 2), kNow); });
    Beside b([&] { joined[1] = registry.Join(OptionsOf("s", 2), Ask(-1, 2, 2), kNow); });
    EXPECT_TRUE(gate.Arrived(2)) << "both create it";
    gate.Open();
  }
  ASSERT_TRUE(joined[0].ok()) << joined[0].status();
  ASSERT_TRUE(joined[1].ok()) << joined[1].status();
  EXPECT_EQ(joined[0]->member.session, joined[1]->member.session);
  EXPECT_NE(joined[0]->member.rank, joined[1]->member.rank);
  EXPECT_EQ(registry.sessions(), 1u);
  EXPECT_EQ(registry.reserved_bytes(), OptionsOf("s", 2).ReservedBytes());
  for (int i : {0, 1}) {
    const auto at = static_cast<std::size_t>(i);
    EXPECT_EQ(registry.Find(joined[at]->token, at + 1)->rank, joined[at]->member.rank);
  }
}

TEST(RegistryRaceTest, SessionsThatAreCreatedAtOnceDoNotExceedTheMemory) {
  constexpr std::size_t kSessions = 12;
  constexpr std::size_t kRoom = 5;
  const std::size_t each = OptionsOf("s", 1).ReservedBytes();
  Gate gate;
  Registry registry({.memory_bytes = kRoom * each + each / 2, .max_sessions = kSessions},
                    MakerBehind(gate, static_cast<int>(kSessions)));
  std::vector<absl::StatusOr<Registry::Joined>> joined(kSessions);
  {
    std::vector<std::unique_ptr<Beside>> joins;
    for (std::size_t i = 0; i < kSessions; ++i) {
      joins.push_back(std::make_unique<Beside>([&, i] {
        joined[i] = registry.Join(OptionsOf("s" + std::to_string(i), 1), Ask(0, 1, 1), kNow);
      }));
    }
    EXPECT_TRUE(gate.Arrived(static_cast<int>(kSessions)));
    gate.Open();
  }
  std::size_t taken = 0;
  for (const auto& one : joined) {
    taken += one.ok() ? 1U : 0U;
    EXPECT_TRUE(one.ok() || absl::IsResourceExhausted(one.status())) << one.status();
  }
  EXPECT_EQ(taken, kRoom);
  EXPECT_EQ(registry.sessions(), kRoom);
  EXPECT_EQ(registry.reserved_bytes(), kRoom * each);
}

TEST(RegistryRaceTest, SessionsThatAreCreatedAtOnceDoNotExceedTheirNumber) {
  Gate gate;
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 1}, MakerBehind(gate, 2));
  std::vector<absl::StatusOr<Registry::Joined>> joined(2);
  {
    Beside a([&] { joined[0] = registry.Join(OptionsOf("a", 1), Ask(0, 1, 1), kNow); });
    Beside b([&] { joined[1] = registry.Join(OptionsOf("b", 1), Ask(0, 1, 1), kNow); });
    EXPECT_TRUE(gate.Arrived(2));
    gate.Open();
  }
  EXPECT_NE(joined[0].ok(), joined[1].ok());
  EXPECT_EQ(registry.sessions(), 1u);
}

TEST(RegistryRaceTest, AJoinThatFindsASessionWhichHasEndedMeanwhileMakesTheNext) {
  Gate gate;
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 4}, MakerBehind(gate, 1));
  absl::StatusOr<Registry::Joined> late;
  {
    Beside join([&] { late = registry.Join(OptionsOf("s", 1), Ask(0, 1, 1), kNow); });
    ASSERT_TRUE(gate.Arrived(1));
    // While it makes its hook, another member makes the session, which fails.
    const auto other = registry.Join(OptionsOf("s", 1), Ask(0, 2, 1), kNow);
    ASSERT_TRUE(other.ok()) << other.status();
    other->member.session->Fail(absl::AbortedError("broken"), 0);
    gate.Open();
  }
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_FALSE(late->member.session->ended());
  EXPECT_EQ(registry.Get("s"), late->member.session);
}

TEST(RegistryRaceTest, AJoinBeginsNoSessionInADrain) {
  Gate gate;
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 4}, MakerBehind(gate, 1));
  absl::StatusOr<Registry::Joined> late;
  {
    Beside join([&] { late = registry.Join(OptionsOf("s", 1), Ask(0, 1, 1), kNow); });
    ASSERT_TRUE(gate.Arrived(1));
    registry.BeginDrain();
    gate.Open();
  }
  EXPECT_EQ(late.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(registry.idle());
  EXPECT_EQ(registry.reserved_bytes(), 0u);
}

TEST(RegistryRaceTest, AJoinNeverGetsTheEndOfAnEarlierSession) {
  constexpr int kRounds = 3000;
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 4});
  std::atomic<bool> over = false;
  std::thread fails([&] {
    while (!over) {
      if (const auto session = registry.Get("s")) session->Fail(absl::AbortedError("broken"), 0);
    }
  });
  std::thread ticks([&] {
    while (!over) registry.Tick(kNow);
  });
  int taken = 0;
  for (std::uint64_t i = 1; i <= kRounds; ++i) {
    const auto joined = registry.Join(OptionsOf("s", 1), Ask(0, i, 1), kNow);
    if (joined.ok()) continue;
    ++taken;  // the session of the round before lives
    EXPECT_EQ(joined.status().code(), absl::StatusCode::kAlreadyExists) << joined.status();
  }
  over = true;
  fails.join();
  ticks.join();
  EXPECT_LT(taken, kRounds) << "nothing was tried";
  registry.FailAll(absl::AbortedError("broken"));
  registry.Tick(kNow + absl::Seconds(11));
  registry.Tick(kNow + absl::Seconds(22));
  EXPECT_EQ(registry.sessions(), 0u);
  EXPECT_EQ(registry.reserved_bytes(), 0u);
}

TEST(RegistryRaceTest, TheTokenIsTheOneOfWhoHasTheRank) {
  constexpr std::uint64_t kRounds = 2000;
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 4});
  SessionOptions options = OptionsOf("s", 2);
  options.join_timeout = absl::InfiniteDuration();
  // Keeps the session from being abandoned.
  ASSERT_TRUE(registry.Join(options, Ask(1, 1, 2), kNow).ok());
  const auto session = registry.Get("s");
  const auto stay = std::make_shared<QuietStream>();
  ASSERT_TRUE(session->Attach(1, 1, 0, stay, kNow).ok());
  absl::Time now = kNow;
  for (std::uint64_t i = 1; i <= kRounds; ++i) {
    absl::StatusOr<Registry::Joined> early;
    absl::StatusOr<Registry::Joined> late;
    std::thread first(
        [&, now] { early = registry.Join(OptionsOf("s", 2), Ask(0, 2 * i, 2), now); });
    // Once the first token was not used in time, the rank is the second's.
    while (!late.ok()) {
      session->Receive(1, stay->id(), {wire::Heartbeat{}, nullptr}, now, [] {});
      for (int tick = 0; tick < 13; ++tick) session->Tick(now += absl::Milliseconds(400));
      late = registry.Join(OptionsOf("s", 2), Ask(0, 2 * i + 1, 2), now);
    }
    first.join();
    const auto member = registry.Find(late->token, 2 * i + 1);
    ASSERT_TRUE(member.ok()) << "round " << i << ": " << member.status();
    ASSERT_TRUE(session->Leave(0, 2 * i + 1, now).ok());
  }
}

}  // namespace
}  // namespace gradwire::server
