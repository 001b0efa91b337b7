// All-reduce by several means in one run, taking turns: torch + gloo, a plain gRPC echo of the same
// bytes, Gradwire over TCP, a unix socket and shared memory.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "tests/bench/ladder/compare.h"

namespace gradwire::bench {

struct ContestOptions {
  std::string self;    // this program, for children
  std::string daemon;  // gradwired
  std::string gloo;    // gloo_member.py; empty: torch is left out
  std::string python = "/usr/bin/python3";
  std::string folder;  // for sockets
  std::size_t mebibytes = 25;
  int repetitions = 9;
};

// A ratio that users judge by: time of the one over time of the other, run by run.
struct Ratio {
  std::string what;
  int members = 0;
  Spread ratio;
};

struct Contest {
  std::vector<Row> rows;
  std::vector<Ratio> ratios;
};

// L7 and L8: rounds of `mebibytes`, hooks no and fp16.
Contest CompareBulk(const ContestOptions& options, int members);

// L9: rounds of 4 KiB within this host, alone and beside bulk.
std::vector<Row> MeasureTiny(const ContestOptions& options, int members);
// All members at one end of a link of `rate`, as tc takes it, the daemon at the other. No rows, and
// a line that says why, where no link can be made.
std::vector<Row> MeasureTinyOnLink(ContestOptions options, int members, const std::string& rate);

}  // namespace gradwire::bench
