#include "tests/bench/process_stats.h"

#include <unistd.h>

#include <cstdint>
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

double CpuSecondsOf(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  // The name, in brackets, may have spaces; the state comes after it, utime eleven words later.
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream words(line.substr(name_end + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) words >> skipped;
  std::int64_t user = 0;
  std::int64_t system = 0;
  words >> user >> system;
  return static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace gradwire::bench
