// A daemon that has served many sessions holds no more than it did after the first few; sessions
// that share one core take turns.
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "tests/testing/gradients.h"
#include "tests/testing/process.h"
#include "tests/testing/ranks.h"

namespace gradwire {
namespace {

using ::gradwire::testing::Eventually;
using ::gradwire::testing::ExpectAllOk;
using ::gradwire::testing::ExpectedReduction;
using ::gradwire::testing::Gradients;
using ::gradwire::testing::MakeParameter;
using ::gradwire::testing::OpenDescriptors;
using ::gradwire::testing::Process;
using ::gradwire::testing::ResidentBytes;
using ::gradwire::testing::RunRanks;

// A sanitizer's own allocator keeps what was freed.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kAllowedGrowth = std::size_t{256} << 20;
#else
constexpr std::size_t kAllowedGrowth = std::size_t{8} << 20;
#endif

// GRADWIRE_TEST_SESSIONS=1000 makes a long run of it.
int Sessions() {
  const char* number = std::getenv("GRADWIRE_TEST_SESSIONS");
  return number == nullptr ? 100 : std::atoi(number);
}

void RunSession(const std::string& address, int number) {
  const ClientOptions options{.address = address,
                              .session = "number-" + std::to_string(number),
                              .world_size = 4,
                              .parameters = {MakeParameter("w", 50'000)}};
  ExpectAllOk(RunRanks(options, [&](Client& client, int rank) -> absl::Status {
    Gradients gradients(options.parameters);
    gradients.Fill(rank, 0);
    GradBucket bucket = gradients.Bucket();
    if (absl::Status status = client.AllReduce(bucket).Wait(); !status.ok()) return status;
    if (absl::Status status = client.EndStep().status(); !status.ok()) return status;
    // Every other session ends without a Leave by its members.
    return number % 2 == 0 ? client.Leave() : absl::OkStatus();
  }));
}

TEST(ManySessions, LeaveNothingBehind) {
  const gradwire::testing::TemporaryFolder folder;
  const std::string address = "unix:" + folder / "daemon.sock";
  const auto daemon = Process::Start(
      {GRADWIRE_DAEMON, "--listen", address, "--log-level", "warning"}, folder / "daemon.log");
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  const pid_t pid = (*daemon)->pid();
  const int warm_up = 30;
  for (int i = 0; i < warm_up; ++i) RunSession(address, i);
  // Connections close a moment after their last stream.
  std::size_t descriptors = 0;
  const auto settled = [&] {
    const std::size_t before = OpenDescriptors(pid);
    usleep(500'000);
    descriptors = OpenDescriptors(pid);
    return before == descriptors;
  };
  ASSERT_TRUE(Eventually(settled));
  const std::size_t resident = ResidentBytes(pid);
  const std::size_t own_descriptors = OpenDescriptors(getpid());
  for (int i = 0; i < Sessions(); ++i) RunSession(address, warm_up + i);
  EXPECT_TRUE(Eventually([&] { return OpenDescriptors(pid) <= descriptors; }))
      << descriptors << " descriptors became " << OpenDescriptors(pid);
  EXPECT_TRUE(Eventually([&] { return ResidentBytes(pid) <= resident + kAllowedGrowth; }))
      << resident << " bytes became " << ResidentBytes(pid);
  EXPECT_TRUE(Eventually([&] { return OpenDescriptors(getpid()) <= own_descriptors; }));
  RecordProperty("resident_before", std::to_string(resident));
  RecordProperty("resident_after", std::to_string(ResidentBytes(pid)));
  std::cout << Sessions() << " sessions: resident " << resident << " -> " << ResidentBytes(pid)
            << " bytes, descriptors " << descriptors << " -> " << OpenDescriptors(pid) << "\n";
}

// Sessions take turns, and nobody is declared lost for it.
TEST(ManySessions, ShareOneCore) {
  constexpr int kSessions = 20;
  const gradwire::testing::TemporaryFolder folder;
  const std::string address = "unix:" + folder / "daemon.sock";
  const auto daemon =
      Process::Start({"/usr/bin/taskset", "--cpu-list", std::to_string(sched_getcpu()),
                      GRADWIRE_DAEMON, "--listen", address, "--log-level", "warning"},
                     folder / "daemon.log");
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  std::vector<std::thread> sessions;
  for (int number = 0; number < kSessions; ++number) {
    sessions.emplace_back([&, number] {
      const ClientOptions options{.address = address,
                                  .session = "number-" + std::to_string(number),
                                  .world_size = 2,
                                  .parameters = {MakeParameter("w", 50'000)}};
      ExpectAllOk(RunRanks(options, [&](Client& client, int rank) -> absl::Status {
        for (int step = 0; step < 20; ++step) {
          Gradients gradients(options.parameters);
          gradients.Fill(rank, step);
          GradBucket bucket = gradients.Bucket();
          if (absl::Status status = client.AllReduce(bucket).Wait(); !status.ok()) return status;
          EXPECT_TRUE(gradients.bytes() == *ExpectedReduction({}, options.parameters, 2, step))
              << "session " << number << " rank " << rank << " step " << step;
          const auto verdict = client.EndStep();
          if (!verdict.ok()) return verdict.status();
          EXPECT_EQ(*verdict, Verdict::kApply);
        }
        return client.Leave();
      }));
    });
  }
  for (std::thread& session : sessions) session.join();
  EXPECT_THAT((*daemon)->Log(), ::testing::Not(::testing::HasSubstr("lost")));
}

}  // namespace
}  // namespace gradwire
