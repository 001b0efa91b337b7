// `gradwirectl doctor` and `gradwirectl bench`: the commands, and what they print.
#pragma once

#include <string>
#include <vector>

#include "server/ctl/calls.h"
#include "server/ctl/doctor/bench.h"
#include "server/ctl/report.h"

namespace gradwire::ctl {

// What the command line asks for.
struct ModelFlags {
  std::string model = "resnet18";
  std::string shapes = {};  // instead of a model
  std::vector<std::string> hooks = {};
  int members = 2;
  int steps = 20;
};

// The hooks of both commands, unless others are asked for.
std::vector<std::string> DefaultHooks();

// How long the daemon takes to answer a new connection at best, or why it does not.
absl::StatusOr<absl::Duration> Reach(const Target& target);

// Each prints to standard output, as a table or, if `print` is there, with it, and returns an exit
// code: 0; 1 if a check or a measurement failed; 2 for a wrong model, shape or hook; 69 if no
// daemon answers.
int Doctor(const Target& target, const ModelFlags& flags, const Print& print);
int RunBench(const Target& target, const ModelFlags& flags, const Print& print);

}  // namespace gradwire::ctl
