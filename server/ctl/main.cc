// gradwirectl: queries a daemon's status, and exports and imports the state of sessions.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/printable.h"
#include "proto/wire/process_setup.h"
#include "server/ctl/calls.h"
#include "server/ctl/doctor/doctor.h"
#include "server/ctl/explain.h"
#include "server/ctl/files.h"
#include "server/ctl/report.h"
#include "server/ctl/yaml.h"
#include "server/daemon/exit_codes.h"

namespace gradwire::ctl {
namespace {

using server::kExitFailed;
using server::kExitOk;
using server::kExitUnavailable;
using server::kExitUsage;

constexpr std::chrono::seconds kRefresh(1);
constexpr double kStateSeconds = 60;

struct Flags {
  std::string address = "127.0.0.1:29610";
  std::string format = "table";
  std::string service;
  std::string session;
  std::string file;
  std::string reason;
  std::string code;
  tls::Files tls = {};
  std::string token_file;
  double timeout_s = 5;
  ModelFlags model = {.hooks = DefaultHooks()};
  bool watch = false;

  Target target() const {
    return {.address = address,
            .tls = tls,
            .token_file = token_file,
            .timeout = absl::Seconds(timeout_s)};
  }
  // A state takes longer than an answer.
  Target state_target() const {
    return {.address = address,
            .tls = tls,
            .token_file = token_file,
            .timeout = absl::Seconds(std::max(timeout_s, kStateSeconds))};
  }
  bool table() const { return format == "table"; }
  // JSON in the format that was asked for.
  std::string Document(const std::string& json) const {
    return format == "yaml" ? ToYaml(json) : json;
  }
};

// What this machine refused, for example to write a file.
int FailedHere(const absl::Status& status) {
  PrintFailure(ErrorCode::kCtl, std::string(status.message()));
  return kExitFailed;
}

// What the daemon answered, or that it did not.
int Failed(const Flags& flags, const absl::Status& status) {
  const bool unreachable = status.code() == absl::StatusCode::kUnavailable ||
                           status.code() == absl::StatusCode::kDeadlineExceeded;
  PrintFailure(
      unreachable ? ErrorCode::kNoDaemon : ErrorCode::kCtl,
      absl::StrCat(unreachable ? "no daemon answers at " : "", flags.address, ": ",
                   Printable(std::string(status.message())),
                   unreachable ? "; --address or GRADWIRE_ADDRESS names another daemon" : ""));
  // Scripts distinguish a daemon that does not answer from one that refuses.
  return unreachable ? kExitUnavailable : kExitFailed;
}

int Status(const Flags& flags) {
  // A file or a pipe gets no escape sequences.
  const bool redraw = flags.watch && flags.table() && isatty(STDOUT_FILENO) == 1;
  while (true) {
    const auto server = GetServer(flags.target());
    if (!server.ok()) return Failed(flags, server.status());
    const auto sessions = ListSessions(flags.target());
    if (!sessions.ok()) return Failed(flags, sessions.status());
    if (redraw) std::cout << "\x1b[H\x1b[2J";
    std::cout << (flags.table() ? StatusTable(*server, *sessions)
                                : flags.Document(StatusJson(*server, *sessions)))
              << std::flush;
    if (!flags.watch) return kExitOk;
    std::this_thread::sleep_for(kRefresh);
  }
}

int ShowSessions(const Flags& flags) {
  const auto sessions = ListSessions(flags.target());
  if (!sessions.ok()) return Failed(flags, sessions.status());
  std::cout << (flags.table() ? SessionsTable(*sessions) : flags.Document(SessionsJson(*sessions)));
  return kExitOk;
}

int Evict(const Flags& flags) {
  const absl::Status evicted = EvictSession(flags.target(), flags.session, flags.reason);
  if (!evicted.ok()) return Failed(flags, evicted);
  std::cout << "ended session " << flags.session << "\n";
  return kExitOk;
}

int SayWhy(const Flags& flags) {
  const auto sessions = ListSessions(flags.target());
  if (!sessions.ok()) return Failed(flags, sessions.status());
  std::cout << Why(*sessions);
  return kExitOk;
}

int ShowSession(const Flags& flags) {
  const auto session = GetSession(flags.target(), flags.session);
  if (!session.ok()) return Failed(flags, session.status());
  std::cout << (flags.table() ? SessionTable(*session) : flags.Document(SessionJson(*session)));
  return kExitOk;
}

int Export(const Flags& flags) {
  const auto state = ExportState(flags.state_target(), flags.session);
  if (!state.ok()) return Failed(flags, state.status());
  if (absl::Status written = WriteFile(flags.file, *state); !written.ok()) {
    return FailedHere(written);
  }
  std::cout << "exported the state of session " << flags.session << ", " << state->size()
            << " bytes, to " << flags.file << "\n";
  return kExitOk;
}

int Import(const Flags& flags) {
  const auto state = ReadFile(flags.file);
  if (!state.ok()) return FailedHere(state.status());
  const auto iteration = ImportState(flags.state_target(), flags.session, *state);
  if (!iteration.ok()) return Failed(flags, iteration.status());
  std::cout << "imported " << flags.file << ", " << state->size() << " bytes, into session "
            << flags.session << "; its iteration is " << *iteration << "\n";
  return kExitOk;
}

int Health(const Flags& flags) {
  const auto serving = IsServing(flags.target(), flags.service);
  if (!serving.ok()) return Failed(flags, serving.status());
  std::cout << (*serving ? "serving\n" : "not serving\n");
  return *serving ? kExitOk : kExitFailed;
}

// Succeeds without a daemon too, since the tool's own version is known.
int Version(const Flags& flags) {
  std::cout << "gradwirectl " << GRADWIRE_VERSION << "\n";
  const auto server = GetServer(flags.target());
  if (server.ok())
    std::cout << "gradwired   " << server->version() << "  " << flags.address << "\n";
  return kExitOk;
}

// CLI11 only says that a subcommand is missing, neither which are allowed nor what was given.
int RefuseCommandLine(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* lacking = &app;
  while (!lacking->get_subcommands().empty()) lacking = lacking->get_subcommands().front();
  const auto all = lacking->get_subcommands([](const CLI::App*) { return true; });
  const bool lacks_command = error.get_name() == "RequiredError" && !all.empty();
  if (!lacks_command) return app.exit(error) == 0 ? kExitOk : kExitUsage;
  const std::vector<std::string> given = app.remaining(true);
  const auto append_name = [](std::string* out, const CLI::App* one) { *out += one->get_name(); };
  std::cerr << CodedText(
                   ErrorCode::kCtlUsage,
                   absl::StrCat(lacking->get_name(), ": ",
                                given.empty() ? "no command"
                                              : absl::StrCat("no command \"", given.front(), "\""),
                                "; allowed: ", absl::StrJoin(all, ", ", append_name)))
            << "\n";
  return kExitUsage;
}

std::string FailureMessage(const CLI::App* /*app*/, const CLI::Error& error) {
  return absl::StrCat(CodedText(ErrorCode::kCtlUsage, error.what()),
                      "\nRun with --help for more information.\n");
}

void AddGlobalOptions(CLI::App& app, Flags& flags) {
  app.add_option("--address", flags.address, "The daemon: host:port or unix:/path")
      ->envname("GRADWIRE_ADDRESS");
  app.add_option("--tls-ca", flags.tls.ca, "Authorities of the daemon's certificate; turns on TLS")
      ->envname("GRADWIRE_TLS_CA");
  app.add_option("--tls-cert", flags.tls.cert, "This tool's certificate, for a daemon that asks")
      ->envname("GRADWIRE_TLS_CERT");
  app.add_option("--tls-key", flags.tls.key, "The certificate's private key")
      ->envname("GRADWIRE_TLS_KEY");
  app.add_option("--token-file", flags.token_file, "File with the token that the daemon asks for")
      ->envname("GRADWIRE_TOKEN_FILE");
  app.add_option("--timeout", flags.timeout_s, "Seconds for each call")
      ->envname("GRADWIRE_TIMEOUT")
      ->check(CLI::Range(0.001, 3600.0));
  app.add_option("-o,--output", flags.format, "table, json or yaml")
      ->check(CLI::IsMember({"table", "json", "yaml"}));
}

void AddModelOptions(CLI::App& command, ModelFlags& flags) {
  command.add_option("--model", flags.model, "gpt2, mlp or resnet18: whose gradients to send");
  command.add_option("--shapes", flags.shapes,
                     "Shapes of a model of one's own, such as 64x3x7x7,64,12*768x768");
  command
      .add_option("--hooks", flags.hooks,
                  "Hooks, each as a word such as power_sgd,matrix_approximation_rank=4")
      ->expected(1, 32);
  command.add_option("--members", flags.members, "Members of the session")
      ->check(CLI::Range(1, 64));
}

int Main(int argc, const char* const* argv) {
  wire::SkipDeadlockDetection();
  Flags flags;
  CLI::App app("Queries the status of a gradwired.", "gradwirectl");
  app.set_version_flag("--version", absl::StrCat("gradwirectl ", GRADWIRE_VERSION));
  app.option_defaults()->always_capture_default();
  app.failure_message(FailureMessage);
  app.require_subcommand(1);
  // Global options may also follow the subcommand.
  app.fallthrough();
  AddGlobalOptions(app, flags);
  CLI::App* status =
      app.add_subcommand("status", "Show sessions, members, and what each session waits for");
  status->add_flag("-w,--watch", flags.watch, "Refresh once a second");
  CLI::App* sessions =
      app.add_subcommand("sessions", "List the sessions, and those that ended recently");
  CLI::App* why = app.add_subcommand(
      "why", "Say what each session waits for, who keeps it waiting, and why others failed");
  CLI::App* session = app.add_subcommand("session", "Show, end, export or import one session")
                          ->require_subcommand(1);
  CLI::App* get = session->add_subcommand("get", "Show everything about one session");
  get->add_option("NAME", flags.session, "The session")->required();
  CLI::App* evict = session->add_subcommand("evict", "End it at once; its members get an error");
  evict->add_option("NAME", flags.session, "The session")->required();
  evict->add_option("--reason", flags.reason, "A sentence for the members");
  CLI::App* write =
      session->add_subcommand("export", "Write its state to a file, between two steps");
  CLI::App* read = session->add_subcommand(
      "import", "Load its state from a file, while all members wait between two steps");
  for (CLI::App* one : {write, read}) {
    one->add_option("NAME", flags.session, "The session")->required();
    one->add_option("FILE", flags.file, "The safetensors file")->required();
  }
  CLI::App* health =
      app.add_subcommand("health", "Exit with 0 if serving, 1 if not, 69 without an answer");
  health->add_option("--service", flags.service,
                     "The service to check instead of the whole daemon");
  CLI::App* doctor = app.add_subcommand(
      "doctor", "Check the way to the daemon, and predict the step time of each hook");
  CLI::App* bench =
      app.add_subcommand("bench", "Train with members of its own, and measure each hook's steps");
  for (CLI::App* one : {doctor, bench}) AddModelOptions(*one, flags.model);
  bench->add_option("--steps", flags.model.steps, "Measured steps for each hook")
      ->check(CLI::Range(1, 100000));
  CLI::App* explain =
      app.add_subcommand("explain", "Say what an error's code means and what to do");
  explain->add_option("CODE", flags.code, "Such as GW203; without it, all codes are listed");
  CLI::App* version =
      app.add_subcommand("version", "Show the versions of this tool and of the daemon");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return RefuseCommandLine(app, error);
  }
  if (status->parsed()) return Status(flags);
  if (sessions->parsed()) return ShowSessions(flags);
  if (evict->parsed()) return Evict(flags);
  if (why->parsed()) return SayWhy(flags);
  if (get->parsed()) return ShowSession(flags);
  if (write->parsed()) return Export(flags);
  if (read->parsed()) return Import(flags);
  if (health->parsed()) return Health(flags);
  if (explain->parsed()) return Explain(flags.code);
  const Print print = [&flags](const std::string& json) { std::cout << flags.Document(json); };
  const Print document = flags.table() ? Print() : print;
  if (doctor->parsed()) return Doctor(flags.target(), flags.model, document);
  if (bench->parsed()) return RunBench(flags.target(), flags.model, document);
  return version->parsed() ? Version(flags) : kExitUsage;
}

}  // namespace
}  // namespace gradwire::ctl

int main(int argc, char** argv) { return gradwire::ctl::Main(argc, argv); }
