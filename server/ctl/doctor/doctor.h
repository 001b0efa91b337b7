// `gradwirectl doctor` and `gradwirectl bench`: the commands, and what they print.
#pragma once

#include <string>
#include <vector>

#include "server/ctl/calls.h"
#include "server/ctl/doctor/bench.h"

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

// Each prints to standard output, as a table or as JSON, and returns an exit code: 0; 1 if a check
// or a measurement failed; 2 for a wrong model, shape or hook; 69 if no daemon answers.
int Doctor(const Target& target, const ModelFlags& flags, bool json);
int RunBench(const Target& target, const ModelFlags& flags, bool json);

}  // namespace gradwire::ctl
