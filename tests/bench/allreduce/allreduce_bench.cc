// All-reduce through a daemon against torch + gloo and against a plain gRPC echo of the same bytes,
// alternating in one run; and rounds of 4 KiB.
//
// Every member and every echo client is a process of its own, as is the daemon and the echo server.
#include <stdlib.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "proto/wire/process_setup.h"
#include "tests/bench/allreduce/contest.h"
#include "tests/bench/allreduce/member.h"
#include "tests/bench/grpc_echo.h"
#include "tests/bench/ladder/table.h"

namespace gradwire::bench {
namespace {

constexpr std::size_t kMessageBytes = std::size_t{1} << 20;
constexpr std::size_t kInFlight = 8;

std::string SelfPath() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  return std::string(path, length > 0 ? static_cast<std::size_t>(length) : 0);
}

bool HasTorch(const ContestOptions& options) {
  const std::string command = options.python + " -c 'import torch' 2>/dev/null";
  return std::system(command.c_str()) == 0;
}

void PrintRatios(const std::vector<Ratio>& ratios) {
  std::printf("\n%-70s %2s  %s\n", "time of the other over ours, run by run", "N",
              "median (min to max)");
  for (const Ratio& one : ratios) {
    std::printf("%-70s %2d  %5.2f (%.2f to %.2f)\n", one.what.c_str(), one.members,
                one.ratio.median, one.ratio.min, one.ratio.max);
  }
}

int RunAll(ContestOptions options, const std::vector<int>& worlds, const std::string& json) {
  char folder[] = "/tmp/gradwire-bench-XXXXXX";
  if (mkdtemp(folder) == nullptr) return 1;
  options.folder = folder;
  if (!options.gloo.empty() && !HasTorch(options)) {
    std::printf("torch + gloo is left out: %s has no torch\n", options.python.c_str());
    options.gloo.clear();
  }
  std::vector<Row> rows;
  std::vector<Ratio> ratios;
  for (const int members : worlds) {
    const Contest contest = CompareBulk(options, members);
    PrintRows("all-reduce of " + std::to_string(options.mebibytes) + " MiB fp32 per member, " +
                  std::to_string(members) + " members, medians of " +
                  std::to_string(options.repetitions) + " alternating runs",
              contest.rows);
    rows.insert(rows.end(), contest.rows.begin(), contest.rows.end());
    ratios.insert(ratios.end(), contest.ratios.begin(), contest.ratios.end());
  }
  std::vector<Row> tiny;
  for (const int members : worlds) {
    for (Row& row : MeasureTiny(options, members)) tiny.push_back(std::move(row));
  }
  for (Row& row : MeasureTinyOnLink(options, worlds.front(), "1gbit")) {
    tiny.push_back(std::move(row));
  }
  PrintRows("rounds of 4 KiB, from the call to the result", tiny);
  rows.insert(rows.end(), tiny.begin(), tiny.end());
  PrintRatios(ratios);
  const int removed = std::system(("rm -rf " + options.folder).c_str());
  if (json.empty()) return removed;
  nlohmann::json list = nlohmann::json::array();
  for (const Ratio& one : ratios) {
    list.push_back({{"what", one.what},
                    {"members", one.members},
                    {"median", one.ratio.median},
                    {"min", one.ratio.min},
                    {"max", one.ratio.max}});
  }
  std::ofstream file(json);
  file << nlohmann::json{{"benchmark", "allreduce"},
                         {"mebibytes", options.mebibytes},
                         {"repetitions", options.repetitions},
                         {"ratios", list},
                         {"rows", JsonOf(rows)}}
              .dump(1)
       << "\n";
  file.close();
  return file ? 0 : 1;
}

}  // namespace
}  // namespace gradwire::bench

int main(int argc, char** argv) {
  using namespace gradwire::bench;
  gradwire::wire::SkipDeadlockDetection();  // for all: the echo too
  ContestOptions options;
  options.self = SelfPath();
  options.daemon = options.self.substr(0, options.self.find_last_of('/')) + "/gradwired";
  options.gloo = GRADWIRE_GLOO_MEMBER;
  MemberSettings member;
  std::string role = "parent";
  std::string json;
  std::vector<int> worlds = {2, 4};
  CLI::App app{"All-reduce through a daemon against torch + gloo and a plain gRPC echo"};
  app.add_option("--mebibytes", options.mebibytes, "gradient per member");
  app.add_option("--members", worlds, "world sizes");
  app.add_option("--repetitions", options.repetitions, "counted runs of each");
  app.add_option("--gloo", options.gloo, "gloo_member.py; empty: without torch");
  app.add_option("--json", json, "also write the tables here");
  app.add_option("--daemon", options.daemon, "path of gradwired");
  app.add_option("--role", role)->group("");
  app.add_option("--address", member.address)->group("");
  app.add_option("--session", member.session)->group("");
  app.add_option("--hook", member.hook)->group("");
  app.add_option("--rank", member.rank)->group("");
  app.add_option("--world-size", member.world_size)->group("");
  app.add_option("--bytes", member.bytes)->group("");
  app.add_option("--gradients", member.gradients)->group("");
  app.add_option("--shares-memory", member.shares_memory)->group("");
  CLI11_PARSE(app, argc, argv);
  if (role == "bulk") return RunBulkMember(member);
  if (role == "tiny" || role == "tiny-beside") return RunTinyMember(member, role != "tiny");
  if (role == "echo-server") return ServeEcho(member.address);
  if (role == "echo-client") {
    return RunEchoClient(member.address, member.bytes, kMessageBytes, kInFlight);
  }
  return RunAll(options, worlds, json);
}
