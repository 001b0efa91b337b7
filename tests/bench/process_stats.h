// What the kernel says of another process.
#pragma once

#include <cstddef>

namespace gradwire::bench {

struct Memory {
  std::size_t resident = 0;  // bytes, now
  std::size_t peak = 0;      // the most that was resident since the process began
};

// All zeros when there is no such process.
Memory MemoryOf(int pid);

}  // namespace gradwire::bench
