// Open questions about gRPC's settings, each answered by a table.
#pragma once

#include <string>
#include <vector>

#include "tests/bench/ladder/compare.h"

namespace gradwire::bench {

// Questions by name.
std::vector<std::string> SweepQuestions();

// One of them, or "all". Prints the tables.
std::vector<Row> Sweep(const Plan& plan, const std::string& question);

}  // namespace gradwire::bench
