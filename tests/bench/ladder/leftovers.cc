#include "tests/bench/ladder/leftovers.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
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

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

void TakeAway() {
  for (const int signal : kSignals) std::signal(signal, SIG_IGN);  // the commands inherit it
  for (auto it = Leftovers().rbegin(); it != Leftovers().rend(); ++it) (*it)();
}

void CatchSignals() {
  struct sigaction action {};
  action.sa_handler = [](int) { told_to_stop = 1; };
  for (const int signal : kSignals) sigaction(signal, &action, nullptr);
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
  std::vector<std::string> words = {"timeout", "--signal=KILL", "20"};
  words.insert(words.end(), argv.begin(), argv.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t quiet;
  posix_spawn_file_actions_init(&quiet);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    posix_spawn_file_actions_addopen(&quiet, fd, "/dev/null", O_RDWR, 0);
  }
  // A group of its own: what interrupts the benchmark does not interrupt its taking away.
  posix_spawnattr_t apart;
  posix_spawnattr_init(&apart);
  posix_spawnattr_setflags(&apart, POSIX_SPAWN_SETPGROUP);
  pid_t pid = 0;
  const int failed = posix_spawnp(&pid, "timeout", &quiet, &apart, arguments.data(), environ);
  posix_spawnattr_destroy(&apart);
  posix_spawn_file_actions_destroy(&quiet);
  if (failed != 0) return false;
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return false;
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace gradwire::bench
