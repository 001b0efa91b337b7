// gradwirectl's commands and options, and what they set.
#pragma once

#include <CLI/App.hpp>
#include <string>

#include "client/addresses.h"
#include "server/ctl/calls.h"
#include "server/ctl/digests.h"
#include "server/ctl/doctor/doctor.h"
#include "server/ctl/plan/plan.h"
#include "server/ctl/replay.h"
#include "server/ctl/several.h"

namespace gradwire::ctl {

struct Flags {
  std::string address = "127.0.0.1:29610";
  std::string format = "table";
  std::string service;
  std::string session;
  std::string file;
  std::string reason;
  std::string pause = "10m";
  std::string shell;
  std::string code;
  tls::Files tls = {};
  std::string token_file;
  double timeout_s = 5;
  int steps = 5;
  double wait_s = 60;
  ModelFlags model = {.hooks = DefaultHooks()};
  PlanFlags plan = {};
  DigestFlags digest = {};
  ReplayFlags replay = {};
  bool watch = false;

  // What the address names, of a command that takes several daemons; set by Resolve.
  client::Daemons daemons;

  // Looks the address up, if it is a name of several daemons. Unavailable: as client::Resolve.
  absl::Status Resolve();
  Target target() const;
  // All daemons.
  Targets targets() const;
  // A state takes longer than an answer.
  Targets state_targets() const;
  bool table() const { return format == "table"; }
  // JSON in the format that was asked for.
  std::string Document(const std::string& json) const;
};

// Adds all of them; parsing `app` then sets `flags`, which outlives it.
void DefineCommands(CLI::App& app, Flags& flags);

// The words of the command that was parsed: "session get".
std::string CommandOf(const CLI::App& app);

// InvalidArgument for what is neither host:port nor a unix socket. For commands that ask a daemon.
absl::Status CheckAddress(const std::string& address);
// The same for a list of them or a range, as members have it.
absl::Status CheckAddresses(const std::string& addresses);

// Prints why the command line cannot be parsed, or the help that it asks for. Returns the exit
// code.
int RefuseCommandLine(const CLI::App& app, const CLI::ParseError& error);

}  // namespace gradwire::ctl
