#include "tests/bench/process_group.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <utility>

namespace gradwire::bench {
namespace {

constexpr int kAnswerTimeoutMs = 60'000;

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "bench: %s\n", what.c_str());
  std::exit(1);
}

}  // namespace

Child::Child(const std::vector<std::string>& argv) : name_(argv.at(0)) {
  int in[2];
  int out[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) Die("no pipe");
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  pid_ = fork();
  if (pid_ < 0) Die("cannot fork");
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  to_ = in[1];
  from_ = out[0];
}

Child::Child(Child&& other) noexcept
    : name_(std::move(other.name_)),
      pid_(std::exchange(other.pid_, -1)),
      to_(std::exchange(other.to_, -1)),
      from_(std::exchange(other.from_, -1)),
      buffered_(std::move(other.buffered_)) {}

Child::~Child() {
  if (to_ >= 0) close(to_);
  if (from_ >= 0) close(from_);
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void Child::WriteLine(const std::string& line) {
  const std::string text = line + "\n";
  if (write(to_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    Die(name_ + " does not take its orders");
  }
}

std::string Child::ReadLine() {
  for (;;) {
    const std::size_t end = buffered_.find('\n');
    if (end != std::string::npos) {
      std::string line = buffered_.substr(0, end);
      buffered_.erase(0, end + 1);
      return line;
    }
    pollfd ready{.fd = from_, .events = POLLIN, .revents = 0};
    char bytes[512];
    if (poll(&ready, 1, kAnswerTimeoutMs) <= 0) Die(name_ + " says nothing");
    const ssize_t got = read(from_, bytes, sizeof bytes);
    if (got <= 0) Die(name_ + " ended");
    buffered_.append(bytes, static_cast<std::size_t>(got));
  }
}

bool Child::HasLine() {
  if (buffered_.find('\n') != std::string::npos) return true;
  pollfd ready{.fd = from_, .events = POLLIN, .revents = 0};
  return poll(&ready, 1, 0) > 0;
}

double Child::CpuSeconds() const {
  clockid_t clock{};
  timespec time{};
  if (clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &time) != 0) {
    Die(name_ + " has no CPU clock");
  }
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double RunOnce(std::vector<Child>& children) {
  const auto begin = std::chrono::steady_clock::now();
  for (Child& child : children) child.WriteLine("go");
  for (Child& child : children) child.ReadLine();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void AnswerParent(const std::function<std::string()>& run) {
  std::cout << "ready" << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) std::cout << "done" << run() << std::endl;
}

}  // namespace gradwire::bench
