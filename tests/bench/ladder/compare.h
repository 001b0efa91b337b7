// Measures cases against each other: all their processes are there at once, and the cases take
// turns, run by run, so that what disturbs the machine disturbs them alike.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/bench/ladder/child_settings.h"
#include "tests/bench/spread.h"

namespace gradwire::bench {

struct Case {
  std::string rung;
  std::string what;
  std::string transport;  // tcp, unix or memory
  // Roles and settings of the one server and of each client. Without a server's role there is none.
  // Addresses and ranks are filled in.
  ChildSettings server = {};
  ChildSettings client = {};
  std::size_t members = 1;  // clients
  // The key of the row that the ratio is to; empty: none.
  std::string below = {};
  // Put before the command line, such as to enter a network namespace.
  std::vector<std::string> server_prefix = {};
  std::vector<std::string> client_prefix = {};
  std::string listen = "127.0.0.1:0";  // for TCP
};

struct Row {
  std::string rung;
  std::string what;
  std::string transport;
  std::size_t members = 1;
  std::size_t bytes = 0;  // of each client in one round
  // Of throughput: payload is what the clients send, once.
  std::optional<Spread> gb_per_s = {};
  std::optional<Spread> cpu_s_per_gb = {};
  std::optional<Spread> ms = {};  // of a round
  std::string below = {};
  std::optional<double> ratio_to_below = {};      // of GB/s, or of p50
  std::optional<double> cpu_ratio_to_below = {};  // of CPU seconds per GB
  // Of latency, in microseconds.
  std::optional<Spread> p50_us = {};
  std::optional<Spread> p99_us = {};

  std::string key() const { return rung + " " + transport + " " + what; }
};

struct Plan {
  std::string folder;  // for sockets
  int repetitions = 7;
};

// One row per case, in their order; one more run each, the first, is dropped. `below` is looked up
// among `known` too.
std::vector<Row> Compare(const std::vector<Case>& cases, const Plan& plan,
                         const std::vector<Row>& known = {});

}  // namespace gradwire::bench
