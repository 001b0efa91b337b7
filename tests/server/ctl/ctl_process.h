// gradwirectl as a process, for tests of what it answers.
#pragma once

#include <sys/wait.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/testing/process.h"

namespace gradwire::ctl {

struct Answer {
  int exit_code = -1;
  std::string text;  // of standard output and standard error
};

inline Answer RunProgram(const std::vector<std::string>& words) {
  const testing::TemporaryFolder folder;
  const auto process = testing::Process::Start(words, folder / "log");
  if (!process.ok()) return {.text = process.status().ToString()};
  const std::optional<int> status = (*process)->Wait(absl::Seconds(60));
  if (!status || !WIFEXITED(*status)) return {.text = "did not exit"};
  return {.exit_code = WEXITSTATUS(*status), .text = (*process)->Log()};
}

// Without standard error.
inline Answer CtlOutput(std::vector<std::string> words) {
  words.insert(words.begin(), {"/bin/sh", "-c", "exec \"$@\" 2>/dev/null", "sh", GRADWIRE_CTL});
  return RunProgram(words);
}

inline Answer Ctl(std::vector<std::string> words) {
  words.insert(words.begin(), GRADWIRE_CTL);
  return RunProgram(words);
}

}  // namespace gradwire::ctl
