// Steers the emulated GPU, and says what it found.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace gradwire::emulation {

// In which order the threads of a block run between two barriers. A barrier that is missing gives
// wrong results in one of the first two.
enum class Order { kForward, kBackward };

struct Settings {
  Order threads = Order::kForward;
  // Work runs when it is enqueued: as early as CUDA allows. Otherwise as late: only what must run
  // for somebody who waits.
  bool eager = false;
  // How often a query says "not ready" before it lets the work happen.
  int unready_queries = 2;
  // No query ever says that work is complete.
  bool stuck = false;
  // ---- Faults
  int devices = 1;
  int driver_version = 13000;
  int fail_allocation = 0;  // the n-th from now is out of memory
  bool lost = false;        // every call fails
};

struct Counts {
  std::size_t launches = 0;
  std::size_t allocations = 0;  // of device memory and of pinned memory
  std::size_t live_bytes = 0;   // of device memory, as of the calls
};

// A new GPU, with nothing on it. Everything that was made on the former one is gone.
void Reset();

// As the first member of a fixture: the others are made on a new GPU.
struct NewGpu {
  NewGpu() { Reset(); }
};

Settings& settings();
Counts counts();

// What no GPU would forgive, or not reliably: a barrier or a shuffle that not all threads reach, an
// access outside of live memory, waits for the whole device.
const std::vector<std::string>& violations();

}  // namespace gradwire::emulation
