// The command line of `gradwired`.
#pragma once

#include "server/daemon/configuration.h"

namespace gradwire::server {

struct CommandLine {
  Flags flags;
  Configuration configuration;
  bool exit = false;  // help, version, a command's output or an error was printed
  int exit_code = 0;
};

// Reads the command line, the environment and the file. Runs the commands of `gradwired config`.
CommandLine ParseCommandLine(int argc, const char* const* argv);

}  // namespace gradwire::server
