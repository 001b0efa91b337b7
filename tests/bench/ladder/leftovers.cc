#include "tests/bench/ladder/leftovers.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace gradwire::bench {
namespace {

volatile std::sig_atomic_t told_to_stop = 0;

std::vector<std::function<void()>>& Leftovers() {
  static auto* const leftovers = new std::vector<std::function<void()>>;
  return *leftovers;
}

void TakeAway() {
  for (auto it = Leftovers().rbegin(); it != Leftovers().rend(); ++it) (*it)();
}

void CatchSignals() {
  struct sigaction action {};
  action.sa_handler = [](int) { told_to_stop = 1; };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
}

}  // namespace

void AtExit(std::function<void()> take_away) {
  if (Leftovers().empty()) {
    CatchSignals();
    std::atexit(TakeAway);
  }
  Leftovers().push_back(std::move(take_away));
}

void StopIfTold() {
  if (told_to_stop == 0) return;
  std::fprintf(stderr, "bench: interrupted\n");
  std::exit(1);
}

std::string TemporaryFolder() {
  char folder[] = "/tmp/gradwire-ladder-XXXXXX";
  if (mkdtemp(folder) == nullptr) {
    std::perror("bench: no temporary folder");
    std::exit(1);
  }
  AtExit([path = std::string(folder)] {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  });
  return folder;
}

bool RunCommand(const std::vector<std::string>& argv) {
  std::vector<std::string> words = {"timeout", "20"};
  words.insert(words.end(), argv.begin(), argv.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t quiet;
  posix_spawn_file_actions_init(&quiet);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    posix_spawn_file_actions_addopen(&quiet, fd, "/dev/null", O_RDWR, 0);
  }
  pid_t pid = 0;
  const int failed = posix_spawnp(&pid, "timeout", &quiet, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&quiet);
  int status = 0;
  return failed == 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) &&
         WEXITSTATUS(status) == 0;
}

}  // namespace gradwire::bench
