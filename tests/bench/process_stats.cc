#include "tests/bench/process_stats.h"

#include <fstream>
#include <sstream>
#include <string>

namespace gradwire::bench {

Memory MemoryOf(int pid) {
  Memory memory;
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key;
    std::size_t kibibytes = 0;
    words >> key >> kibibytes;
    if (key == "VmRSS:") memory.resident = kibibytes << 10;
    if (key == "VmHWM:") memory.peak = kibibytes << 10;
  }
  return memory;
}

}  // namespace gradwire::bench
