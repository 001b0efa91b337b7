#include "client/examples/child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace demo {
namespace {

constexpr std::size_t kLogTail = 2000;

absl::Status SystemError(const std::string& what) {
  return absl::InternalError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// What the child does between fork and exec: system calls only, since other threads may have held
// locks.
[[noreturn]] void Execute(char* const* words, int input, int log, bool share_stdout,
                          int signal_on_parent_death, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, signal_on_parent_death);
  if (getppid() != parent) _exit(127);  // it died before prctl
  std::signal(SIGPIPE, SIG_DFL);
  dup2(input, STDIN_FILENO);
  dup2(log, STDERR_FILENO);
  if (!share_stdout) dup2(log, STDOUT_FILENO);
  execv(words[0], words);
  for (const char* text : {"cannot run ", static_cast<const char*>(words[0]), ": ",
                           static_cast<const char*>(std::strerror(errno)), "\n"}) {
    if (write(STDERR_FILENO, text, std::strlen(text)) < 0) break;
  }
  _exit(127);
}

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::Start(const Command& command) {
  std::vector<char*> words;
  for (const std::string& word : command.words) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);

  const int log = open(command.log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (log < 0) return SystemError(absl::StrCat("cannot write ", command.log));
  std::array<int, 2> input{};
  if (pipe2(input.data(), O_CLOEXEC) != 0) {
    close(log);
    return SystemError("pipe");
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    Execute(words.data(), input[0], log, command.share_stdout, command.signal_on_parent_death,
            parent);
  }
  close(log);
  close(input[0]);
  if (pid < 0) {
    close(input[1]);
    return SystemError("fork");
  }
  return ChildProcess(pid, input[1], command.log);
}

ChildProcess::ChildProcess(pid_t pid, int input, std::string log)
    : pid_(pid), input_(input), log_(std::move(log)) {}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      input_(std::exchange(other.input_, -1)),
      log_(std::move(other.log_)),
      ended_(std::exchange(other.ended_, true)),
      wait_status_(other.wait_status_) {}

ChildProcess::~ChildProcess() {
  Stop();
  CloseInput();
}

std::optional<std::string> ChildProcess::Ended() {
  if (!ended_ && waitpid(pid_, &wait_status_, WNOHANG) == pid_) ended_ = true;
  if (!ended_) return std::nullopt;
  if (WIFSIGNALED(wait_status_)) {
    return absl::StrCat("killed by signal ", WTERMSIG(wait_status_));
  }
  return absl::StrCat("exited with ", WEXITSTATUS(wait_status_));
}

void ChildProcess::CloseInput() {
  if (input_ >= 0) close(std::exchange(input_, -1));
}

void ChildProcess::Stop(std::chrono::milliseconds grace) {
  if (ended_ || Ended()) return;
  kill(pid_, SIGTERM);
  const auto deadline = std::chrono::steady_clock::now() + grace;
  while (!Ended() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (ended_) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, &wait_status_, 0) < 0 && errno == EINTR) {
  }
  ended_ = true;
}

std::string ChildProcess::LogTail() const {
  std::ifstream file(log_);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return text.substr(text.size() - std::min(text.size(), kLogTail));
}

}  // namespace demo
