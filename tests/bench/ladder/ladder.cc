#include "tests/bench/ladder/ladder.h"

#include <cstdio>

#include "tests/bench/ladder/cases.h"
#include "tests/bench/ladder/certificates.h"
#include "tests/bench/ladder/table.h"

namespace gradwire::bench {
namespace {

using Cases = std::vector<Case>;

constexpr const char* kColdCopy = "L0 memory 25 MiB cold, 1 thread";

// The rung without gRPC that a rung over this transport stands on.
std::string Raw(const std::string& transport, bool duplex) {
  const std::string way = duplex ? "duplex" : "one way";
  return transport == "tcp" ? "L1 tcp " + way : "L2 unix " + way + ", default buffer";
}

std::string SendBuffer(std::size_t bytes) {
  return bytes == 0 ? ", default buffer" : ", " + std::to_string(bytes / kMiB) + " MiB buffer";
}

Cases Memory() {
  Cases cases;
  for (const std::size_t threads : {1U, 2U}) {
    const std::string by = std::to_string(threads) + (threads == 1 ? " thread" : " threads");
    cases.push_back(CopyCase("1 MiB warm, " + by, kMiB, threads));
    cases.push_back(CopyCase("25 MiB cold, " + by, 25 * kMiB, threads));
  }
  return cases;
}

Cases RawSockets(bool duplex) {
  Cases cases = {RawCase("L1", "tcp", duplex)};
  cases[0].below = kColdCopy;
  for (const std::size_t buffer : {std::size_t{0}, kMiB, 4 * kMiB}) {
    Case made = RawCase("L2", "unix", duplex);
    made.what += SendBuffer(buffer);
    made.below = Raw("tcp", duplex);
    cases.push_back(Both(made, [buffer](ChildSettings& settings) {
      settings.send_buffer = static_cast<int>(buffer);
    }));
  }
  if (duplex) return cases;
  for (const bool pinned : {false, true}) {
    Case made = RawCase("L3", "tcp", false);
    made.what += pinned ? ", 64 KiB mallocs, pinned" : ", 64 KiB mallocs, default";
    made.below = Raw("tcp", false);
    made.server.fresh_memory = true;
    made.server.pinned_malloc = pinned;
    cases.push_back(made);
  }
  return cases;
}

// L4 or L5, and with TLS when there are certificates.
void AddGrpc(Cases& cases, const std::vector<std::string>& apis, bool duplex,
             const std::string& certificates) {
  for (const std::string& api : apis) {
    for (const std::string transport : {"tcp", "unix"}) {
      cases.push_back(GrpcCase(duplex ? "L5" : "L4", transport, api, duplex));
      cases.back().below = Raw(transport, duplex);
    }
  }
  if (certificates.empty()) return;
  for (const std::string& api : apis) {
    Case made = GrpcCase("L10", "tcp", api, duplex);
    made.what += ", TLS";
    made.below = std::string(duplex ? "L5 tcp duplex, " : "L4 tcp one way, ") + api;
    cases.push_back(
        Both(made, [&](ChildSettings& settings) { settings.certificates = certificates; }));
  }
}

Cases Members(const std::vector<std::string>& apis) {
  Cases cases;
  for (const std::size_t members : {2U, 4U, 8U}) {
    for (const std::string& api : apis) {
      for (const std::string transport : {"tcp", "unix"}) {
        Case made = GrpcCase("L6", transport, api, true);
        made.members = members;
        made.below = "L5 " + transport + " " + made.what;
        cases.push_back(Both(made, [](ChildSettings& settings) { settings.bytes = 64 * kMiB; }));
      }
    }
  }
  for (const std::size_t members : {2U, 4U}) {
    cases.push_back(AggregatorCase("tcp", members, 0));
    cases.back().below = Raw("tcp", true);
    for (const std::size_t buffer : {std::size_t{0}, 4 * kMiB}) {
      cases.push_back(AggregatorCase("unix", members, static_cast<int>(buffer)));
      cases.back().what += SendBuffer(buffer);
      cases.back().below = "L2 unix duplex" + SendBuffer(buffer);
    }
  }
  return cases;
}

}  // namespace

std::vector<Row> ClimbLadder(const Plan& plan, const std::string& api) {
  const std::vector<std::string> apis =
      api == "both" ? std::vector<std::string>{"cq", "callback"} : std::vector<std::string>{api};
  const std::string folder = plan.folder + "/tls";
  const bool tls = MakeCertificates(folder);
  if (!tls) std::printf("L10 is left out: the openssl command does not make certificates here\n");
  const std::string certificates = tls ? folder : "";

  std::vector<Row> rows;
  const auto compare = [&](const std::string& title, const Cases& cases) {
    const std::vector<Row> measured = Compare(cases, plan, rows);
    PrintRows(title, measured);
    rows.insert(rows.end(), measured.begin(), measured.end());
  };
  compare("memory: bytes copied", Memory());
  for (const bool duplex : {false, true}) {
    Cases cases = RawSockets(duplex);
    AddGrpc(cases, apis, duplex, certificates);
    compare(duplex ? "there and back" : "one way, into a server that drops", cases);
  }
  compare("N members at once: what all of them send", Members(apis));
  compare("tiny rounds",
          {TinyAggregatorCase(2), TinyAggregatorCase(4), TinyGrpcCase(2), TinyGrpcCase(4)});
  return rows;
}

}  // namespace gradwire::bench
