#include "server/ctl/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_code.h"
#include "base/printable.h"
#include "client/transport/dns.h"
#include "proto/tls/channel_credentials.h"
#include "server/ctl/completion.h"
#include "server/ctl/yaml.h"
#include "server/daemon/exit_codes.h"
#include "server/daemon/unexpected_word.h"

namespace gradwire::ctl {
namespace {

constexpr double kStateSeconds = 60;
constexpr std::int64_t kMostSteps = std::int64_t{1} << 62;

std::string CheckPause(const std::string& text) {
  absl::Duration length;
  if (absl::ParseDuration(text, &length) && length >= absl::Seconds(1) &&
      length <= absl::Hours(24)) {
    return "";
  }
  return absl::StrCat(text, "; allowed are 1s to 24h, such as 90s or 1h30m");
}

// One line of text, as members and logs show it.
std::string CheckReason(const std::string& text) {
  return Printable(text) == text
             ? ""
             : absl::StrCat("\"", Printable(text.substr(0, 60)),
                            "\" has control characters; allowed is one line of text");
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

void AddConnectionOptions(CLI::App& app, Flags& flags) {
  app.add_option("--address", flags.address,
                 "The daemon: host:port or unix:/path; all of a session as a list, a:1,b:1, a "
                 "range, host-{0..3}:1, or a DNS name, dns-all:///name:1?n=4")
      ->envname("GRADWIRE_ADDRESS");
  app.add_option("--tls-ca", flags.tls.ca, "Authorities of the daemon's certificate; turns on TLS")
      ->envname("GRADWIRE_TLS_CA")
      ->type_name(kFile);
  app.add_option("--tls-cert", flags.tls.cert, "This tool's certificate, for a daemon that asks")
      ->envname("GRADWIRE_TLS_CERT")
      ->type_name(kFile);
  app.add_option("--tls-key", flags.tls.key, "The certificate's private key")
      ->envname("GRADWIRE_TLS_KEY")
      ->type_name(kFile);
  app.add_option("--token-file", flags.token_file, "File with the token that the daemon asks for")
      ->envname("GRADWIRE_TOKEN_FILE")
      ->type_name(kFile);
  app.add_option("--timeout", flags.timeout_s, "Seconds for each call")
      ->envname("GRADWIRE_TIMEOUT")
      ->check(CLI::Range(0.001, 3600.0));
  app.add_option("-o,--output", flags.format, "table, json or yaml")
      ->check(CLI::IsMember({"table", "json", "yaml"}));
}

void AddSessionCommands(CLI::App& app, Flags& flags) {
  CLI::App* const session =
      app.add_subcommand("session",
                         "Show, compare, pause, resume, end, export or import one session")
          ->require_subcommand(1);
  session->add_subcommand("get", "Show everything about one session");
  session->add_subcommand("ledger",
                          "Show what became of all gradients, and whether any is missing");
  CLI::App* const digest = session->add_subcommand(
      "digest", "Show the digests of its steps, or compare them with those of another run");
  CLI::App* const evict =
      session->add_subcommand("evict", "End it at once; its members get an error");
  CLI::App* const pause = session->add_subcommand(
      "pause", "Hold it back before its next step; its members wait and get no error");
  session->add_subcommand("resume", "End a pause before its time is over");
  CLI::App* const write =
      session->add_subcommand("export", "Write its state to a file, between two steps");
  CLI::App* const read = session->add_subcommand(
      "import", "Load its state from a file, while all members wait between two steps");
  for (CLI::App* const one : session->get_subcommands([](const CLI::App*) { return true; })) {
    one->add_option("NAME", flags.session, "The session")->required();
  }
  digest->add_option("--first", flags.digest.first, "The first step to show")
      ->check(CLI::Range(std::int64_t{0}, kMostSteps));
  digest->add_option("--count", flags.digest.count, "Steps to show, at most; 0: all")
      ->check(CLI::Range(std::int64_t{0}, kMostSteps));
  digest
      ->add_option("--compare", flags.digest.compare,
                   "A file with an earlier output; exits with 1 if the runs differ")
      ->type_name(kFile);
  evict->add_option("--reason", flags.reason, "A sentence for the members")->check(CheckReason);
  pause->add_option("--for", flags.pause, "When it goes on by itself: 1s to 24h")
      ->check(CheckPause);
  pause->add_option("--reason", flags.reason, "A sentence for those who ask what it waits for")
      ->check(CheckReason);
  for (CLI::App* const one : {write, read}) {
    one->add_option("FILE", flags.file, "The safetensors file")->required()->type_name(kFile);
  }
}

void AddTrace(CLI::App& app, Flags& flags) {
  CLI::App* const trace = app.add_subcommand(
      "trace", "Record the next steps of a session, and write them in Chrome's trace event format");
  trace->add_option("SESSION", flags.session, "The session")->required();
  trace->add_option("--steps", flags.steps, "Steps to record")->check(CLI::Range(1, 100));
  trace->add_option("--wait", flags.wait_s, "Seconds for the steps")->check(CLI::Range(0.1, 600.0));
  trace->add_option("--out", flags.file, "The file; - for standard output [SESSION.trace.json]")
      ->type_name(kFile);
}

void AddPlan(CLI::App& app, PlanFlags& flags) {
  CLI::App* const plan = app.add_subcommand(
      "plan", "Predict step times of ways to arrange daemons, and recommend one; asks no daemon");
  plan->add_option("--hosts", flags.hosts, "Hosts with members, 1 to 4096");
  plan->add_option("--members-per-host", flags.members_per_host, "Members on each, 1 to 64");
  plan->add_option("--cores", flags.cores, "Cores of each host, 1 to 1024");
  plan->add_option("--link", flags.link, "The rate of each host's link, such as 100Mbit/s");
  plan->add_option("--round-trip", flags.round_trip, "Between two hosts, such as 25ms");
  plan->add_option("--model", flags.model,
                   "gpt2, mlp, resnet18, a number of parameters such as 7B, or a file with shapes")
      ->type_name(kFile);
  plan->add_option("--shapes", flags.shapes,
                   "Shapes of a model of one's own, such as 64x3x7x7,64,12*768x768");
  plan->add_option("--hook", flags.hook, "A word such as power_sgd,matrix_approximation_rank=4");
  plan->add_option("--compute", flags.compute,
                   "Seconds that a step computes, to show the time of the whole step");
  plan->add_flag("--scale", flags.scale, "Show 1 to 4096 hosts instead");
}

void AddReplay(CLI::App& app, ReplayFlags& flags) {
  CLI::App* const replay = app.add_subcommand(
      "replay", "Compute again the steps that gradwired --record has kept; asks no daemon");
  replay->add_option("PATH", flags.paths, "Recordings: their directory, or files of it")
      ->required()
      ->type_name(kFile);
  replay
      ->add_option("--compare", flags.compare,
                   "Another run's recordings: says which contribution or result differs first")
      ->type_name(kFile);
}

void AddToolCommands(CLI::App& app, Flags& flags) {
  CLI::App* const doctor = app.add_subcommand(
      "doctor", "Check the way to the daemon, and predict the step time of each hook");
  CLI::App* const bench =
      app.add_subcommand("bench", "Train with members of its own, and measure each hook's steps");
  for (CLI::App* const one : {doctor, bench}) AddModelOptions(*one, flags.model);
  bench->add_option("--steps", flags.model.steps, "Measured steps for each hook")
      ->check(CLI::Range(1, 100000));
  AddPlan(app, flags.plan);
  AddReplay(app, flags.replay);
  CLI::App* const debug =
      app.add_subcommand("debug", "Gather what a bug report needs")->require_subcommand(1);
  debug
      ->add_subcommand("bundle",
                       "Write versions, limits, sessions, the daemon's configuration and log to "
                       "one file")
      ->add_option("FILE", flags.file,
                   "The file; - is standard output; gradwire-debug-TIME.tar.gz unless given")
      ->type_name(kFile);
  app.add_subcommand("completion", "Print what completes this tool's commands in a shell")
      ->add_option("SHELL", flags.shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  app.add_subcommand("explain", "Say what an error's code means and what to do")
      ->add_option("CODE", flags.code, "Such as GW203 or 203; without it, all codes are listed")
      ->type_name(kErrorCode);
  app.add_subcommand("version", "Show the versions of this tool and of the daemon");
}

// The command that was parsed, at the end of its line of parents.
const CLI::App& LastCommand(const CLI::App& app) {
  const CLI::App* last = &app;
  while (!last->get_subcommands().empty()) last = last->get_subcommands().front();
  return *last;
}

std::string FailureMessage(const CLI::App* app, const CLI::Error& error) {
  const std::string unexpected = server::UnexpectedWord(*app);
  // "NAME is required" is said of many commands.
  const std::string command = error.get_name() == "RequiredError" ? CommandOf(*app) : "";
  const std::string problem = unexpected.empty() ? Printable(error.what()) : unexpected;
  return absl::StrCat(
      "gradwirectl: ",
      CodedText(ErrorCode::kCtlUsage, absl::StrCat(command, command.empty() ? "" : ": ", problem)),
      "\nRun with --help for more information.\n");
}

}  // namespace

Target Flags::target() const {
  return {.address = address,
          .tls = tls,
          .token_file = token_file,
          .timeout = absl::Seconds(timeout_s)};
}

absl::Status Flags::Resolve() {
  const auto say = [](const std::string& line) { std::cerr << "gradwirectl: " << line << "\n"; };
  absl::StatusOr<client::Daemons> found =
      client::Resolve(address, client::SystemDns(absl::Seconds(timeout_s), say));
  if (!found.ok()) return found.status();
  daemons = *std::move(found);
  return absl::OkStatus();
}

Targets Flags::targets() const {
  Targets targets;
  for (const std::string& one : daemons.addresses) {
    targets.push_back(target());
    targets.back().address = one;
    targets.back().host = daemons.host;
  }
  return targets;
}

Targets Flags::state_targets() const {
  Targets targets = this->targets();
  for (Target& target : targets) {
    target.timeout = absl::Seconds(std::max(timeout_s, kStateSeconds));
  }
  return targets;
}

std::string Flags::Document(const std::string& json) const {
  return format == "yaml" ? ToYaml(json) : json;
}

void DefineCommands(CLI::App& app, Flags& flags) {
  app.set_version_flag("--version", absl::StrCat("gradwirectl ", GRADWIRE_VERSION));
  app.option_defaults()->always_capture_default();
  app.failure_message(FailureMessage);
  app.require_subcommand(1);
  // Global options may also follow the subcommand.
  app.fallthrough();
  AddConnectionOptions(app, flags);
  app.add_subcommand("status", "Show sessions, members, and what each session waits for")
      ->add_flag("-w,--watch", flags.watch, "Refresh once a second");
  app.add_subcommand("sessions", "List the sessions, and those that ended recently");
  app.add_subcommand(
      "why", "Say what each session waits for, who keeps it waiting, and why others failed");
  AddSessionCommands(app, flags);
  AddTrace(app, flags);
  app.add_subcommand("health", "Exit with 0 if serving, 1 if not, 69 without an answer")
      ->add_option("--service", flags.service, "The service to check instead of the whole daemon");
  AddToolCommands(app, flags);
}

std::string CommandOf(const CLI::App& app) {
  std::vector<std::string> words;
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    words.push_back(at->get_name());
  }
  return absl::StrJoin(words, " ");
}

absl::Status CheckAddress(const std::string& address) {
  constexpr std::size_t kMostQuoted = 80;
  if (client::IsAddress(address)) return absl::OkStatus();
  return Coded(ErrorCode::kCtlUsage,
               absl::InvalidArgumentError(absl::StrCat(
                   "address is \"", Printable(address.substr(0, kMostQuoted)),
                   "\"; allowed are host:port, such as 127.0.0.1:29610 or [::1]:29610, and "
                   "unix:/path")));
}

absl::Status CheckAddresses(const std::string& addresses) {
  const auto all = client::AddressesOf(addresses);
  if (!all.ok()) {
    return Coded(ErrorCode::kCtlUsage,
                 absl::InvalidArgumentError(
                     RecodedText(ErrorCode::kCtlUsage, std::string(all.status().message()))));
  }
  for (const std::string& address : *all) {
    if (client::IsDaemonName(address)) continue;
    if (absl::Status good = CheckAddress(address); !good.ok()) return good;
  }
  return absl::OkStatus();
}

// CLI11 only says that a subcommand is missing, neither which are allowed nor what was given.
int RefuseCommandLine(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& lacking = LastCommand(app);
  const auto all = lacking.get_subcommands([](const CLI::App*) { return true; });
  const std::vector<std::string> given = app.remaining(true);
  const bool lacks_command = error.get_name() == "RequiredError" && !all.empty() &&
                             (given.empty() || !given.front().starts_with("-"));
  if (!lacks_command) return app.exit(error) == 0 ? server::kExitOk : server::kExitUsage;
  const std::string command = CommandOf(app);
  const auto append_name = [](std::string* out, const CLI::App* one) { *out += one->get_name(); };
  std::cerr << "gradwirectl: "
            << CodedText(ErrorCode::kCtlUsage,
                         absl::StrCat(command, command.empty() ? "" : ": ",
                                      given.empty() ? "no command"
                                                    : absl::StrCat("no command \"",
                                                                   Printable(given.front()), "\""),
                                      "; allowed: ", absl::StrJoin(all, ", ", append_name)))
            << "\n";
  return server::kExitUsage;
}

}  // namespace gradwire::ctl
