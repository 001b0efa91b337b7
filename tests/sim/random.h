// The one source of chance in the simulation (splitmix64): a seed gives the same run everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace gradwire::sim {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t Next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }
  std::size_t Below(std::size_t limit) { return static_cast<std::size_t>(Next() % limit); }
  int Between(int low, int high) {
    return low + static_cast<int>(Below(static_cast<std::size_t>(high - low) + 1));
  }
  bool Percent(int percent) { return Between(1, 100) <= percent; }
  absl::Duration Between(absl::Duration low, absl::Duration high) {
    const auto width = static_cast<std::size_t>(absl::ToInt64Microseconds(high - low));
    return low + absl::Microseconds(static_cast<std::int64_t>(Below(width + 1)));
  }
  template <class T>
  void Shuffle(std::vector<T>& items) {
    for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[Below(i)]);
  }

 private:
  std::uint64_t state_;
};

// A number that depends on all the arguments, for data that is made up on the spot.
template <class... Ts>
std::uint64_t Mix(std::uint64_t seed, Ts... values) {
  ((seed = Random(seed ^ (static_cast<std::uint64_t>(values) * 0xD6E8FEB86659FD93U)).Next()), ...);
  return seed;
}

}  // namespace gradwire::sim
