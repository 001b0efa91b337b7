// gradwired: the daemon.
#include <malloc.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <iostream>
#include <memory>
#include <utility>

#include "base/error_code.h"
#include "proto/wire/process_setup.h"
#include "server/daemon/command_line.h"
#include "server/daemon/config_show.h"
#include "server/daemon/exit_codes.h"
#include "server/daemon/logging.h"
#include "server/daemon/reload.h"
#include "server/daemon/server.h"
#include "server/net/system_shares.h"
#include "server/rpc/clock.h"

namespace gradwire::server {
namespace {

constexpr std::int64_t kPollNanoseconds = 100'000'000;
// Polls between two trims. One takes some milliseconds, during which other threads may have to wait
// for memory.
constexpr int kPollsPerTrim = 10;
// gRPC takes up to a second to free what a connection that was cut has left.
constexpr int kTrimsAfterCut = 3;
// Time for members to receive the error of an aborted session.
constexpr absl::Duration kLastWords = absl::Seconds(2);

// glibc would give every chunk's memory back to the kernel and fault it in again for the next one.
void KeepMemory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
  mallopt(M_TOP_PAD, 16 << 20);
  // Freed memory stays in its arena: with few of them, other threads can use it too.
  mallopt(M_ARENA_MAX, 4);
}

// Up to the hard limit; with less, the daemon has fewer connections.
void RaiseDescriptorLimit(const ServerOptions& options) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = DescriptorsWanted(options.AllConnections(), options.max_sessions);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Threads inherit the mask, so it is set before any of them starts, and only sigtimedwait of the
// main thread takes the signals.
sigset_t BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // A write to a closed socket then fails with EPIPE and does not end the daemon.
  std::signal(SIGPIPE, SIG_IGN);
  return signals;
}

// The signal that comes within 100 ms; 0: none.
int NextSignal(const sigset_t& signals) {
  const timespec timeout{.tv_sec = 0, .tv_nsec = kPollNanoseconds};
  return std::max(sigtimedwait(&signals, nullptr, &timeout), 0);
}

// Whether the parent closed its end of standard input, or is gone. Reads what else comes, and drops
// it.
bool InputEnded() {
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  if (poll(&input, 1, 0) <= 0) return false;
  std::array<char, 256> dropped;
  return read(STDIN_FILENO, dropped.data(), dropped.size()) <= 0;
}

// Gives back what KeepMemory kept, when nobody uses it: after the last session, and after attacks,
// which leave more freed memory than training needs.
class Trimming {
 public:
  // After each poll.
  void Poll(bool busy, std::uint64_t connections_cut) {
    const bool was_busy = std::exchange(busy_, busy);
    if (std::exchange(cut_, connections_cut) != connections_cut) trims_ = kTrimsAfterCut;
    ++polls_;
    const bool due = trims_ > 0 && polls_ >= kPollsPerTrim;
    if (!due && (!was_busy || busy)) return;
    malloc_trim(0);
    trims_ = std::max(trims_ - 1, 0);
    polls_ = 0;
  }

 private:
  bool busy_ = false;
  std::uint64_t cut_ = 0;
  int trims_ = 0;
  int polls_ = 0;
};

void ServeUntilTold(Server& server, const sigset_t& signals, const Flags& flags,
                    Configuration& configuration) {
  Trimming trimming;
  while (!(configuration.options.stop_on_eof && InputEnded())) {
    const int signal = NextSignal(signals);
    if (signal == SIGHUP) {
      Reload(flags, server, configuration);
    } else if (signal != 0) {
      return;
    }
    trimming.Poll(!server.idle(), server.connections_cut());
  }
}

int Drain(Server& server, absl::Duration timeout, const sigset_t& signals) {
  spdlog::info("draining: {} session(s) may take {} to finish", server.sessions(),
               absl::FormatDuration(timeout));
  server.BeginDrain();
  const absl::Time deadline = MonotonicNow() + timeout;
  while (!server.idle()) {
    // NextSignal waits for 100 ms, so the loop does not spin.
    const int signal = NextSignal(signals);
    if (signal != 0 && signal != SIGHUP) {
      spdlog::warn("stopped by a second signal");
      server.Shutdown(absl::ZeroDuration());
      return kExitCut;
    }
    if (MonotonicNow() < deadline) continue;
    spdlog::warn("drain timed out: aborting {} session(s)", server.sessions());
    server.Shutdown(kLastWords);
    return kExitCut;
  }
  server.Shutdown(kLastWords);
  spdlog::info("drained");
  return kExitOk;
}

int Main(int argc, char** argv) {
  const CommandLine line = ParseCommandLine(argc, argv);
  if (line.exit) return line.exit_code;
  Configuration configuration = line.configuration;
  const ServerOptions& options = configuration.options;
  KeepMemory();
  wire::SkipDeadlockDetection();
  SetUpLog(options.log_level, options.log_format);
  // Before the server, which derives its limits from this one (ShareOut).
  RaiseDescriptorLimit(options);
  const sigset_t signals = BlockSignals();
  const absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options);
  if (!server.ok()) {
    std::cerr << "gradwired: "
              << CodedText(ErrorCode::kDaemonStart, std::string(server.status().message())) << "\n";
    return StartExitCode(server.status());
  }
  std::cout << "gradwired " << GRADWIRE_VERSION << "\n";
  for (const std::string& address : (*server)->addresses())
    std::cout << "  grpc  " << address << "\n";
  for (const std::string& address : (*server)->admin_addresses())
    std::cout << "  admin " << address << "\n";
  for (const std::string& address : (*server)->http_addresses())
    std::cout << "  http  http://" << address << "/\n";
  std::cout << std::flush;
  (*server)->SetConfigurationText(ShowYaml(configuration, true));
  ServeUntilTold(**server, signals, line.flags, configuration);
  return Drain(**server, options.drain_timeout, signals);
}

}  // namespace
}  // namespace gradwire::server

int main(int argc, char** argv) { return gradwire::server::Main(argc, argv); }
