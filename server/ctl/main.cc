// gradwirectl: queries a daemon's status, and exports and imports the state of sessions.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/wire/process_setup.h"
#include "server/ctl/command_line.h"
#include "server/ctl/completion.h"
#include "server/ctl/explain.h"
#include "server/ctl/failures.h"
#include "server/ctl/file_commands.h"
#include "server/ctl/proofs.h"
#include "server/ctl/replay.h"
#include "server/ctl/report.h"
#include "server/daemon/exit_codes.h"

namespace gradwire::ctl {
namespace {

using server::kExitFailed;
using server::kExitOk;
using server::kExitUsage;

constexpr std::chrono::seconds kRefresh(1);

// What some of the daemons say is worth showing without the others.
int Status(const Flags& flags) {
  // A file or a pipe gets no escape sequences.
  const bool redraw = flags.watch && flags.table() && isatty(STDOUT_FILENO) == 1;
  const Targets targets = flags.targets();
  while (true) {
    const Servers all = AskServers(targets);
    if (all.servers.empty()) return AllFailed(all.failures);
    if (redraw) std::cout << "\x1b[H\x1b[2J";
    const auto& one = all.servers.front().second;
    if (flags.table()) {
      std::cout << ServersTable(all.servers, all.sessions);
    } else {
      std::cout << flags.Document(targets.size() == 1 ? StatusJson(one, all.sessions)
                                                      : ServersJson(all.servers, all.sessions));
    }
    std::cout << std::flush;
    const int code = AllFailed(all.failures);
    if (!flags.watch) return code;
    std::this_thread::sleep_for(kRefresh);
  }
}

int ShowSessions(const Flags& flags) {
  const Servers all = AskSessions(flags.targets());
  if (!all.answered) return AllFailed(all.failures);
  std::cout << (flags.table() ? SessionsTable(all.sessions)
                              : flags.Document(SessionsJson(all.sessions)));
  return AllFailed(all.failures);
}

int Evict(const Flags& flags) {
  const Done done = OnAll(flags.targets(), [&flags](const Target& target) {
    return EvictSession(target, flags.session, flags.reason);
  });
  if (done.answers == 0) return AllFailed(done.failures);
  std::cout << "ended session " << flags.session << "\n";
  return kExitOk;  // a daemon that was asked later may have heard from the members
}

int Pause(const Flags& flags) {
  absl::Duration length;
  static_cast<void>(absl::ParseDuration(flags.pause, &length));  // the command line was checked
  v1::PauseSessionResponse paused;
  const Done done = PauseAll(flags.targets(), flags.session, length, flags.reason, paused);
  if (done.answers == 0) return AllFailed(done.failures);
  std::cout << "paused session " << flags.session << " before step " << paused.step()
            << (paused.holding() ? "" : ", once the step before it has ended") << "; it goes on in "
            << absl::FormatDuration(length) << ", or after `gradwirectl session"
            << " resume " << flags.session << "`\n";
  return AllFailed(done.failures);
}

int Resume(const Flags& flags) {
  const Done done = OnAll(flags.targets(), [&flags](const Target& target) {
    return ResumeSession(target, flags.session);
  });
  if (done.answers == 0) return AllFailed(done.failures);
  std::cout << "resumed session " << flags.session << "\n";
  return AllFailed(done.failures);
}

int SayWhy(const Flags& flags) {
  const Servers all = AskSessions(flags.targets());
  if (!all.answered) return AllFailed(all.failures);
  std::cout << (flags.table() ? Why(all.sessions) : flags.Document(WhyJson(all.sessions)));
  return AllFailed(all.failures);
}

int ShowSession(const Flags& flags) {
  const AskedSession asked = AskSession(flags.targets(), flags.session);
  if (asked.answers == 0) return AllFailed(asked.failures);
  std::cout << (flags.table() ? SessionTable(asked.status)
                              : flags.Document(SessionJson(asked.status)));
  return AllFailed(asked.failures);
}

// Of several daemons, all have to serve.
int Health(const Flags& flags) {
  std::atomic<bool> serving = true;
  const Done done = OnAll(flags.targets(), [&](const Target& target) {
    const auto one = IsServing(target, flags.service);
    if (one.ok() && !*one) serving = false;
    return one.status();
  });
  if (!done.failures.empty()) return AllFailed(done.failures);
  const std::string json = absl::StrCat("{\"serving\": ", serving ? "true" : "false", "}\n");
  std::cout << (flags.table() ? absl::StrCat(serving ? "" : "not ", "serving\n")
                              : flags.Document(json));
  return serving ? kExitOk : kExitFailed;
}

// Succeeds without a daemon too, since the tool's own version is known.
int Version(const Flags& flags) {
  const auto server = GetServer(flags.target());
  const std::string theirs = server.ok() ? server->version() : "";
  if (flags.table()) {
    std::cout << "gradwirectl " << GRADWIRE_VERSION << "\n";
    if (server.ok()) std::cout << "gradwired   " << theirs << "  " << flags.address << "\n";
  } else {
    std::cout << flags.Document(VersionsJson(GRADWIRE_VERSION, theirs));
  }
  return kExitOk;
}

int Complete(const CLI::App& app, const Flags& flags) {
  std::cout << Completion(app, flags.shell);
  return kExitOk;
}

// Empty for a table.
Print PrinterOf(const Flags& flags) {
  if (flags.table()) return {};
  return [&flags](const std::string& json) { std::cout << flags.Document(json); };
}

// Checks the address that the command needs, and looks it up where that may name several daemons.
// Returns an exit code if it ends here.
std::optional<int> FindDaemons(const std::string& command, Flags& flags) {
  if (command == "explain" || command == "completion" || command == "plan" || command == "replay") {
    return std::nullopt;
  }
  const bool takes_one = command == "doctor" || command == "bench" || command == "debug bundle" ||
                         command == "version";
  absl::Status good = takes_one ? CheckAddress(flags.address) : CheckAddresses(flags.address);
  if (!good.ok()) {
    PrintFailure(ErrorCode::kCtlUsage, std::string(good.message()));
    return kExitUsage;
  }
  if (takes_one) return std::nullopt;
  if (absl::Status found = flags.Resolve(); !found.ok()) return Failed(flags.address, found);
  return std::nullopt;
}

int Main(int argc, const char* const* argv) {
  wire::SkipDeadlockDetection();
  wire::SilenceGrpc();
  Flags flags;
  CLI::App app("Queries the status of a gradwired.", "gradwirectl");
  DefineCommands(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return RefuseCommandLine(app, error);
  }
  const std::map<std::string, std::function<int()>> commands = {
      {"status", [&] { return Status(flags); }},
      {"sessions", [&] { return ShowSessions(flags); }},
      {"why", [&] { return SayWhy(flags); }},
      {"session get", [&] { return ShowSession(flags); }},
      {"session ledger", [&] { return ShowLedger(flags); }},
      {"session digest", [&] { return ShowDigests(flags); }},
      {"session evict", [&] { return Evict(flags); }},
      {"session pause", [&] { return Pause(flags); }},
      {"session resume", [&] { return Resume(flags); }},
      {"session export", [&] { return Export(flags); }},
      {"session import", [&] { return Import(flags); }},
      {"trace", [&] { return TraceSteps(flags); }},
      {"health", [&] { return Health(flags); }},
      {"doctor", [&] { return Doctor(flags.target(), flags.model, PrinterOf(flags)); }},
      {"bench", [&] { return RunBench(flags.target(), flags.model, PrinterOf(flags)); }},
      {"plan", [&] { return RunPlan(flags.plan, PrinterOf(flags)); }},
      {"replay", [&] { return RunReplay(flags.replay, PrinterOf(flags)); }},
      {"debug bundle", [&] { return WriteBundle(flags); }},
      {"completion", [&] { return Complete(app, flags); }},
      {"explain", [&] { return Explain(flags.code, PrinterOf(flags)); }},
      {"version", [&] { return Version(flags); }}};
  const std::string command = CommandOf(app);
  if (const auto exit = FindDaemons(command, flags)) return *exit;
  const auto found = commands.find(command);
  return found == commands.end() ? kExitUsage : found->second();
}

}  // namespace
}  // namespace gradwire::ctl

int main(int argc, char** argv) { return gradwire::ctl::Main(argc, argv); }
