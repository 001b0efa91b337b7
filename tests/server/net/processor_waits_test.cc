#include "server/net/processor_waits.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace gradwire::server {
namespace {

using std::chrono::nanoseconds;

void Write(const std::filesystem::path& thread, const std::string& schedstat) {
  std::filesystem::create_directories(thread);
  std::ofstream(thread / "schedstat") << schedstat;
}

TEST(ProcessorWaitsTest, TheLongestWaitOfOneThreadSinceTheLastCall) {
  const std::filesystem::path tasks = std::filesystem::path(::testing::TempDir()) / "tasks";
  std::filesystem::remove_all(tasks);
  Write(tasks / "1", "900 1000 5\n");
  Write(tasks / "2", "900 5000 5\n");
  ProcessorWaits waits(tasks.string());
  EXPECT_EQ(waits.Longest(), nanoseconds(0)) << "nothing to compare with";
  EXPECT_EQ(waits.Longest(), nanoseconds(0));
  Write(tasks / "1", "9000 1300 6\n");
  Write(tasks / "2", "9000 5200 6\n");
  EXPECT_EQ(waits.Longest(), nanoseconds(300));
  std::filesystem::remove_all(tasks / "1");
  Write(tasks / "3", "10 250 1\n");
  Write(tasks / "4", "nonsense\n");
  EXPECT_EQ(waits.Longest(), nanoseconds(250)) << "a new thread";
  std::filesystem::remove_all(tasks);
  EXPECT_EQ(waits.Longest(), nanoseconds(0)) << "no statistics";
}

// The kernel's own: several threads share one processor.
TEST(ProcessorWaitsTest, ThreadsThatShareAProcessorWait) {
  if (!std::filesystem::exists("/proc/self/schedstat")) {
    GTEST_SKIP() << "this kernel keeps no schedstat";
  }
  ProcessorWaits waits;
  waits.Longest();
  std::atomic<bool> over = false;
  const auto spin = [&over, processor = static_cast<std::size_t>(sched_getcpu())] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    sched_setaffinity(0, sizeof one, &one);
    while (!over) {
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) threads.emplace_back(spin);
  nanoseconds waited{};
  const auto begin = std::chrono::steady_clock::now();
  while (waited < std::chrono::milliseconds(5) &&
         std::chrono::steady_clock::now() < begin + std::chrono::seconds(60)) {
    std::this_thread::yield();
    waited += waits.Longest();
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(waited, std::chrono::milliseconds(5));
}

}  // namespace
}  // namespace gradwire::server
