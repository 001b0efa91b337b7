// What the benchmark makes on the machine and takes away when it ends, also when it ends early.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace gradwire::bench {

// Runs when the process exits, the last one first. SIGINT and SIGTERM end the process that way from
// the first call on.
void AtExit(std::function<void()> take_away);

// Exits if one of these signals came.
void StopIfTold();

// A new folder with all that will be in it.
std::string TemporaryFolder();

// Runs a program without its output, for 20 s at most; whether it succeeded.
bool RunCommand(const std::vector<std::string>& argv);

}  // namespace gradwire::bench
