#include "server/session/sum_threads.h"

#include <atomic>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace gradwire::server {
namespace {

// How often each task ran.
std::vector<int> RunAll(SumThreads& threads, std::size_t count) {
  std::vector<int> ran(count);
  threads.Run(count, [&](std::size_t i) { ++ran[i]; });
  return ran;
}

TEST(SumThreads, RunsEachTaskOnce) {
  for (const std::size_t number : {0U, 1U, 3U}) {
    SumThreads threads(number);
    for (const std::size_t count : {0U, 1U, 2U, 100U}) {
      EXPECT_EQ(RunAll(threads, count), std::vector<int>(count, 1)) << number << " threads";
    }
  }
}

TEST(SumThreads, ServesSeveralCallersAtOnce) {
  SumThreads threads(2);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (std::size_t round = 0; round < 200; ++round) {
        if (RunAll(threads, round % 7) != std::vector<int>(round % 7, 1)) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

// Two tasks that wait for each other end only if two threads run them.
TEST(SumThreads, OthersHelp) {
  SumThreads threads(1);
  std::atomic<int> here = 0;
  threads.Run(2, [&](std::size_t) {
    ++here;
    while (here < 2) std::this_thread::yield();
  });
  EXPECT_EQ(here, 2);
}

}  // namespace
}  // namespace gradwire::server
