#include "tests/bench/ladder/sweep.h"

#include <cstdio>
#include <utility>

#include "tests/bench/ladder/cases.h"
#include "tests/bench/ladder/limited_link.h"
#include "tests/bench/ladder/table.h"

namespace gradwire::bench {
namespace {

using Cases = std::vector<Case>;

std::string Size(std::size_t bytes) {
  if (bytes == kChunk) return "1M-4K";
  return bytes < kMiB ? std::to_string(bytes / kKiB) + "K" : std::to_string(bytes / kMiB) + "M";
}

void Append(std::vector<Row>& rows, const std::vector<Row>& more) {
  rows.insert(rows.end(), more.begin(), more.end());
}

std::string Key(const Case& of) { return of.rung + " " + of.transport + " " + of.what; }

// BDP probe and channel arguments, for each API and message, over one transport in one direction.
// The ratio is to gRPC's defaults.
Cases ChannelCases(const std::string& transport, bool duplex, std::size_t message) {
  Cases cases;
  for (const std::string api : {"cq", "callback"}) {
    std::string defaults;
    for (const auto& [bulk, probe] :
         {std::pair{false, true}, {false, false}, {true, true}, {true, false}}) {
      Case made = GrpcCase("channel", transport, api, duplex);
      made.what += " " + Size(message) + (bulk ? " bulk" : " default") +
                   (probe ? " probe on" : " probe off");
      if (defaults.empty()) defaults = Key(made);
      made.below = defaults;
      cases.push_back(Both(made, [&, on = probe, args = bulk](ChildSettings& settings) {
        settings.message_bytes = message;
        settings.bytes = 128 * kMiB;
        settings.bulk = args;
        settings.bdp_probe = on;
      }));
    }
  }
  return cases;
}

std::vector<Row> Channel(const Plan& plan) {
  std::vector<Row> rows;
  for (const std::string transport : {"tcp", "unix"}) {
    for (const bool duplex : {false, true}) {
      std::vector<Row> of_table;
      for (const std::size_t message : {256 * kKiB, 512 * kKiB, kChunk, 2 * kMiB, 4 * kMiB}) {
        Append(of_table, Compare(ChannelCases(transport, duplex, message), plan));
      }
      PrintRows("channel: transport, arguments, BDP probe, message and API; " + transport +
                    (duplex ? ", there and back" : ", one way"),
                of_table);
      Append(rows, of_table);
    }
  }
  return rows;
}

std::vector<Row> Threads(const Plan& plan) {
  std::vector<Row> rows;
  for (const std::size_t members : {2U, 4U}) {
    for (const std::string transport : {"tcp", "unix"}) {
      Cases cases;
      for (const std::size_t queues : {1U, 2U, 4U}) {
        Case made = GrpcCase("threads", transport, "cq", true);
        made.what += ", " + std::to_string(queues) + (queues == 1 ? " thread" : " threads");
        made.members = members;
        made.server.queues = queues;
        made.client.bytes = 64 * kMiB;
        made.below = cases.empty() ? Key(made) : Key(cases[0]);
        cases.push_back(made);
      }
      Append(rows, Compare(cases, plan));
    }
  }
  PrintRows("threads: completion queues of the server, one thread each", rows);
  return rows;
}

std::vector<Row> Malloc(const Plan& plan) {
  std::vector<Row> rows;
  for (const bool duplex : {false, true}) {
    for (const std::string transport : {"tcp", "unix"}) {
      for (const std::size_t message : {kChunk, 4 * kMiB}) {
        Cases cases;
        for (const auto& [name, server, client] : {std::tuple{"default", false, false},
                                                   {"server pinned", true, false},
                                                   {"both pinned", true, true}}) {
          Case made = GrpcCase("malloc", transport, "cq", duplex);
          made.what += " " + Size(message) + " " + name;
          made.server.pinned_malloc = server;
          made.client.pinned_malloc = client;
          made.below = cases.empty() ? Key(made) : Key(cases[0]);
          cases.push_back(Both(made, [message](ChildSettings& settings) {
            settings.message_bytes = message;
            settings.bytes = 128 * kMiB;
          }));
        }
        Append(rows, Compare(cases, plan));
      }
    }
  }
  PrintRows("malloc: thresholds", rows);
  return rows;
}

std::vector<Row> Latency(const Plan& plan) {
  std::vector<Row> rows;
  for (const std::string api : {"cq", "callback"}) {
    for (const std::string transport : {"tcp", "unix"}) {
      Cases cases;
      for (const std::string beside : {"", "same", "own"}) {
        Case made = GrpcCase("latency", transport, api, true);
        made.what =
            api + (beside.empty() ? ", alone"
                                  : ", beside bulk on " +
                                        std::string(beside == "same" ? "the same" : "its own"));
        made.client.role = "grpc-latency";
        made.client.bytes = 4 * kKiB;
        made.client.message_bytes = 4 * kKiB;
        made.server.queues = 2;
        made.below = cases.empty() ? Key(made) : Key(cases[0]);
        cases.push_back(
            Both(made, [&beside](ChildSettings& settings) { settings.beside = beside; }));
      }
      Append(rows, Compare(cases, plan));
    }
  }
  PrintRows("latency: 4 KiB there and back, with bulk on the same connection or on its own", rows);
  return rows;
}

Cases LinkCases(bool duplex) {
  Cases cases = {RawCase("link", "tcp", duplex)};
  cases[0].what += ", raw socket";
  const std::string raw = cases[0].below = Key(cases[0]);
  for (const std::size_t members : {1U, 2U}) {
    for (const std::size_t connections : {1U, 2U, 4U}) {
      Case made = GrpcCase("link", "tcp", "cq", duplex);
      made.what += ", connections: " + std::to_string(connections);
      made.members = members;
      made.below = raw;
      cases.push_back(Both(
          made, [connections](ChildSettings& settings) { settings.connections = connections; }));
    }
  }
  return cases;
}

std::vector<Row> Link(const Plan& plan) {
  const LimitedLink link("1gbit");
  if (!link.problem().empty()) {
    std::printf("\nlink: left out: %s\n", link.problem().c_str());
    return {};
  }
  std::vector<Row> rows;
  for (const bool duplex : {false, true}) {
    Cases cases = LinkCases(duplex);
    for (Case& made : cases) {
      made.server_prefix = link.AtServer();
      made.client_prefix = link.AtClient();
      made.listen = link.server_address() + ":0";
      made = Both(made, [](ChildSettings& settings) { settings.bytes = 32 * kMiB; });
    }
    Append(rows, Compare(cases, plan));
  }
  PrintRows("link: 1 Gbit/s each way between namespaces; connections of each member", rows);
  return rows;
}

constexpr std::pair<const char*, std::vector<Row> (*)(const Plan&)> kQuestions[] = {
    {"channel", Channel},
    {"threads", Threads},
    {"malloc", Malloc},
    {"latency", Latency},
    {"link", Link}};

}  // namespace

std::vector<std::string> SweepQuestions() {
  std::vector<std::string> names;
  for (const auto& [name, answer] : kQuestions) names.emplace_back(name);
  return names;
}

std::vector<Row> Sweep(const Plan& plan, const std::string& question) {
  std::vector<Row> rows;
  for (const auto& [name, answer] : kQuestions) {
    if (question == "all" || question == name) Append(rows, answer(plan));
  }
  return rows;
}

}  // namespace gradwire::bench
