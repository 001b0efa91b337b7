#include "server/http/process_figures.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

namespace gradwire::server {
namespace {

// Of /proc/stat: seconds since the epoch.
double BootTime() {
  std::ifstream stat("/proc/stat");
  for (std::string line; std::getline(stat, line);) {
    std::istringstream words(line);
    std::string key;
    double value = 0;
    if (words >> key >> value && key == "btime") return value;
  }
  return 0;
}

// Field 22 of /proc/self/stat: ticks since the boot. The name in field 2 may contain anything.
double StartTime() {
  std::ifstream stat("/proc/self/stat");
  std::string line;
  std::getline(stat, line);
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream words(line.substr(name_end + 1));
  constexpr int kAfterName = 22 - 2;
  std::string word;
  for (int i = 0; i < kAfterName && words >> word; ++i) {
  }
  const double ticks = std::strtod(word.c_str(), nullptr);
  return BootTime() + ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

}  // namespace

ProcessFigures ReadProcessFigures() {
  ProcessFigures figures;
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) == 0) {
    figures.cpu_seconds = Seconds(usage.ru_utime) + Seconds(usage.ru_stime);
  }
  std::uint64_t pages = 0;
  std::uint64_t resident = 0;
  if (std::ifstream("/proc/self/statm") >> pages >> resident) {
    figures.resident_bytes = resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  }
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    static_cast<void>(entry);
    ++figures.open_descriptors;
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) figures.max_descriptors = limit.rlim_cur;
  figures.start_time_seconds = StartTime();
  return figures;
}

}  // namespace gradwire::server
