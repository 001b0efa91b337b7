// Child processes of a test. None outlives the test.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace gradwire::testing {

class Process {
 public:
  // words[0] is the program's path. stdout and stderr go to `log`.
  static absl::StatusOr<std::unique_ptr<Process>> Start(const std::vector<std::string>& words,
                                                        const std::string& log);
  ~Process();  // kills it

  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int number) const;

  // The wait status, or nullopt if it still runs after `timeout`.
  std::optional<int> Wait(absl::Duration timeout);

  std::string Log() const;

 private:
  Process(pid_t pid, std::string log) : pid_(pid), log_(std::move(log)) {}

  const pid_t pid_;
  const std::string log_;
  std::optional<int> status_;
};

// A private folder under the system's temporary one, removed with all that is in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::size_t ResidentBytes(pid_t pid);
std::size_t OpenDescriptors(pid_t pid);

}  // namespace gradwire::testing
