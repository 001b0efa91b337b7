#include "server/net/system_shares.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstddef>

namespace gradwire::server {
namespace {

// Two for each connection and each offer that waits, one for each session's results; the rest is
// for libraries, logs and listeners.
std::size_t Descriptors(const SystemShares& shares) {
  return 2 * static_cast<std::size_t>(shares.connections) + 2 * shares.pending_offers +
         shares.shared_sessions;
}

TEST(SystemSharesTest, WhatMembersCanTakeFitsTheDescriptors) {
  for (const std::size_t descriptors : {128U, 256U, 1024U, 4096U, 20'000U, 1U << 20}) {
    for (const int connections : {1, 40, 4096, 1'000'000}) {
      for (const int sessions : {1, 256, 1'000'000}) {
        const SystemShares shares =
            ShareOut({.descriptors = descriptors, .mappings = 65530}, connections, sessions);
        EXPECT_LE(Descriptors(shares) + 64, descriptors)
            << descriptors << " descriptors, " << connections << " connections, " << sessions
            << " sessions";
        EXPECT_GE(shares.connections, 1);
        EXPECT_LE(shares.connections, connections);
        EXPECT_GE(shares.pending_offers, 1U);
        EXPECT_GE(shares.shared_sessions, 1U);
      }
    }
  }
}

TEST(SystemSharesTest, WithWhatIsWantedNothingIsCutDown) {
  for (const int connections : {1, 40, 4096, 1'000'000}) {
    for (const int sessions : {1, 256, 100'000}) {
      const SystemShares shares =
          ShareOut({.descriptors = DescriptorsWanted(connections, sessions), .mappings = 65530},
                   connections, sessions);
      EXPECT_EQ(shares.connections, connections);
      EXPECT_EQ(shares.shared_sessions, static_cast<std::size_t>(sessions));
    }
  }
}

TEST(SystemSharesTest, AProcessWithHardlyAnyDescriptorStillServes) {
  const SystemShares shares = ShareOut({.descriptors = 0, .mappings = 0}, 4096, 256);
  EXPECT_EQ(shares.connections, 1);
  EXPECT_EQ(shares.pending_offers, 1U);
}

TEST(SystemSharesTest, HalfOfTheMappingsStayForTheProcess) {
  EXPECT_EQ(ShareOut({.descriptors = 1024, .mappings = 65530}, 1, 1).segments, 32765U);
}

TEST(SystemSharesTest, ReadsWhatThisProcessHas) {
  rlimit original{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &original), 0);
  const rlimit low{.rlim_cur = 500, .rlim_max = original.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_EQ(ReadSystemLimits().descriptors, 500U);
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &original), 0);
  EXPECT_GT(ReadSystemLimits().mappings, 0U);
}

}  // namespace
}  // namespace gradwire::server
