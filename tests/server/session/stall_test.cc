// One session's work does not delay what has nothing to do with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "gradwire/hooks/registry.h"
#include "tests/server/session/stuck_session.h"

namespace gradwire::server {
namespace {

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

SessionOptions OptionsOf(const std::string& name) {
  SessionOptions options;
  options.name = name;
  options.world_size = 2;
  options.manifest = {ParameterSpec{.name = "w", .shape = {64}, .dtype = DType::kFloat32}};
  return options;
}

JoinAsk Ask(std::uint64_t start_id) {
  return {.world_size = 2,
          .rank = -1,
          .start_id = start_id,
          .spec = {},
          .manifest = OptionsOf("").manifest};
}

TEST(StallTest, TheRegistryNeedsNoSessionsLock) {
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 4});
  StuckSession stuck(registry, OptionsOf(""), kNow);
  Beside count([&] { EXPECT_EQ(registry.sessions(), 1u); });
  EXPECT_TRUE(count.InTime()) << "to count the sessions";
  Beside idle([&] { EXPECT_FALSE(registry.idle()); });
  EXPECT_TRUE(idle.InTime()) << "to ask whether one runs";
  Beside join([&] { EXPECT_TRUE(registry.Join(OptionsOf("other"), Ask(1), kNow).ok()); });
  EXPECT_TRUE(join.InTime()) << "to join another session";
  Beside find([&] { EXPECT_TRUE(registry.Find(stuck.token(), StuckSession::kStartId).ok()); });
  EXPECT_TRUE(find.InTime()) << "to look up a token";
  Beside drain([&] { registry.BeginDrain(); });
  EXPECT_TRUE(drain.InTime()) << "to begin a drain";
  stuck.Release();
}

TEST(StallTest, AFullRegistryRefusesAtOnce) {
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 1});
  StuckSession stuck(registry, OptionsOf(""), kNow);
  Beside join([&] {
    EXPECT_EQ(registry.Join(OptionsOf("other"), Ask(1), kNow).status().code(),
              absl::StatusCode::kResourceExhausted);
  });
  EXPECT_TRUE(join.InTime());
  stuck.Release();
}

TEST(StallTest, AListThatWaitsForASessionHoldsUpNobody) {
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 4});
  StuckSession stuck(registry, OptionsOf(""), kNow);
  Beside list([&] { EXPECT_EQ(registry.List(kNow).size(), 1u); });
  Beside find([&] {
    // Meanwhile the list comes as far as it can.
    for (int i = 0; i < 20'000; ++i) EXPECT_FALSE(registry.Find("guess", 1).ok());
  });
  EXPECT_TRUE(find.InTime());
  stuck.Release();
}

TEST(StallTest, AHookIsMadeWithoutTheRegistrysLock) {
  Registry* registry = nullptr;
  std::optional<bool> free;
  std::unique_ptr<Beside> count;
  Registry real({.memory_bytes = 1 << 30, .max_sessions = 4},
                [&](const HookSpec& spec, SharedManifest manifest) {
                  count = std::make_unique<Beside>([&] { registry->sessions(); });
                  free = count->InTime();
                  return MakeCoordinatorHook(spec, manifest);
                });
  registry = &real;
  EXPECT_TRUE(real.Join(OptionsOf("a"), Ask(1), kNow).ok());
  EXPECT_EQ(free, true);
}

}  // namespace
}  // namespace gradwire::server
