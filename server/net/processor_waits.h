// How long this process's threads wanted a processor and did not get one.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

namespace gradwire::server {

// Reads the kernel's schedstat of each thread: some 5 us each. For one thread.
class ProcessorWaits {
 public:
  explicit ProcessorWaits(std::string tasks = "/proc/self/task") : tasks_(std::move(tasks)) {}

  // The longest wait of any one thread since the last call, 0 in the first. A thread that is newer
  // counts with all that it waited. 0 where the kernel keeps no such statistics.
  std::chrono::nanoseconds Longest();

 private:
  const std::string tasks_;
  std::map<std::string, std::int64_t> waited_;  // by thread, in ns since its start
};

}  // namespace gradwire::server
