// Child processes that do not outlive their parent.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace demo {

struct Command {
  std::vector<std::string> words;  // words[0] is the program's path
  std::string log;                 // file that takes stderr, and stdout unless it is shared
  bool share_stdout = false;       // write to this process's stdout
  int signal_on_parent_death = 0;  // sent when this process dies, however it does
};

// Start it from the main thread: to the kernel, a parent's death is that of the starting thread.
class ChildProcess {
 public:
  static absl::StatusOr<ChildProcess> Start(const Command& command);

  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();  // stops it

  // "exited with 1", "killed by signal 9", or nothing while it runs.
  std::optional<std::string> Ended();
  bool succeeded() const { return ended_ && wait_status_ == 0; }

  // Its stdin ends.
  void CloseInput();

  // SIGTERM, and SIGKILL if that did not end it within `grace`.
  void Stop(std::chrono::milliseconds grace = std::chrono::seconds(5));

  // The end of its log.
  std::string LogTail() const;

 private:
  ChildProcess(pid_t pid, int input, std::string log);

  pid_t pid_;
  int input_;  // the writing end of its stdin, or -1
  std::string log_;
  bool ended_ = false;
  int wait_status_ = 0;
};

}  // namespace demo
