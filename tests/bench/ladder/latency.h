// Percentiles of round trips.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace gradwire::bench {

constexpr std::size_t kSamples = 2000;
constexpr std::chrono::milliseconds kSampleTime{700};

// Makes round trips until there are 2000 or 0.7 s are over. Returns " P50 P99" in microseconds.
inline std::string SampleLatency(const std::function<void()>& round_trip,
                                 std::size_t samples = kSamples,
                                 std::chrono::milliseconds time = kSampleTime) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> taken;
  const auto end = Clock::now() + time;
  for (auto begin = Clock::now(); taken.size() < samples && begin < end;) {
    round_trip();
    const auto now = Clock::now();
    taken.push_back(std::chrono::duration<double, std::micro>(now - begin).count());
    begin = now;
  }
  std::sort(taken.begin(), taken.end());
  return " " + std::to_string(taken[taken.size() / 2]) + " " +
         std::to_string(taken[taken.size() * 99 / 100]);
}

}  // namespace gradwire::bench
