// Sessions of two members that differ in one option, each with a daemon of its own. They take turns
// with a session that has everything off.
#pragma once

#include <string>
#include <vector>

#include "tests/bench/options/load.h"
#include "tests/bench/spread.h"

namespace gradwire::bench {

struct ContestOptions {
  std::string self;    // this program, for children
  std::string daemon;  // gradwired
  std::string folder;  // for sockets and recordings
  int repetitions = 7;
};

// What an option costs. The turns before it, of the session with everything off, are what it is
// compared with, pair by pair.
struct Price {
  std::string option;
  Spread ms;             // of a step
  Spread daemon_cpu_ms;  // for a step, with what the daemon does after it
  Spread ratio;
  Spread added_ms;
  double predicted_ms = 0;  // what it was expected to add before anybody measured it
};

// The first one is that of everything off: all its turns.
std::vector<Price> MeasurePrices(const ContestOptions& options, const Load& load);

}  // namespace gradwire::bench
