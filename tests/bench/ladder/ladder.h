// The rungs from memcpy to gRPC with TLS, and a hand-written aggregator.
#pragma once

#include <string>
#include <vector>

#include "tests/bench/ladder/compare.h"

namespace gradwire::bench {

// Prints the tables. `api` is cq, callback or both.
std::vector<Row> ClimbLadder(const Plan& plan, const std::string& api);

}  // namespace gradwire::bench
