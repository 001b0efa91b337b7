// Many members on one daemon: a round's time, the daemon's processor time, and what it holds in
// memory next to what it has reserved. All members are in this process, the daemon in its own.
#include <stdlib.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/bench/member_crowd.h"
#include "tests/bench/process_group.h"
#include "tests/bench/process_stats.h"

namespace {

using gradwire::bench::Child;
using gradwire::bench::CrowdModel;
using gradwire::bench::MemberCrowd;
using gradwire::bench::MemoryOf;

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = kKiB * kKiB;
// The daemon's defaults, given to it all the same: the bound on its memory is made of them.
constexpr std::size_t kChunkBytes = 1044480;
constexpr std::size_t kWindowChunks = 4;
constexpr std::size_t kOpenBuckets = 4;
constexpr int kMostWithLargeBuckets = 8;
constexpr int kMinRounds = 10;
constexpr int kMaxRounds = 5000;

struct Options {
  std::vector<std::string> transports = {"tcp", "unix", "shm"};
  std::vector<int> members = {2, 8, 32, 128};
  double seconds = 1.5;
  bool quick = false;
  bool bounds_only = false;
  std::string json;
  std::string bin;  // the folder of gradwired and gradwirectl
  std::string folder;
};

struct Load {
  std::string transport;
  int members;
  CrowdModel model;
  int least_rounds = kMinRounds;

  std::size_t bucket_bytes() const {
    std::size_t bytes = sizeof(float) * static_cast<std::size_t>(model.parameters);
    for (const std::int64_t side : model.shape) bytes *= static_cast<std::size_t>(side);
    return bytes;
  }
};

// Buckets of one flat parameter each.
CrowdModel Flat(int buckets, std::size_t bytes) {
  return {.buckets = buckets, .shape = {static_cast<std::int64_t>(bytes / sizeof(float))}};
}

struct Result {
  int rounds = 0;
  double p50 = 0;  // seconds
  double p99 = 0;
  double cpu = 0;  // the daemon's, for a round
  std::size_t base = 0;
  std::size_t idle = 0;
  std::size_t idle_after = 0;
  std::size_t peak = 0;
  std::size_t reserved = 0;
};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string SizeText(std::size_t bytes) {
  return bytes < kMiB ? std::to_string(bytes / kKiB) + " KiB"
                      : std::to_string(bytes / kMiB) + " MiB";
}

double Mib(std::size_t bytes) { return static_cast<double>(bytes) / static_cast<double>(kMiB); }

std::size_t ReservedBytes(const Options& options, const std::string& address) {
  Child asked({options.bin + "/gradwirectl", "--address", address, "-o", "json", "session", "get",
               "crowd"});
  return std::stoull(
      nlohmann::json::parse(asked.ReadLine()).at("reserved_bytes").get<std::string>());
}

// The error of the first call that failed, on standard error too.
std::optional<Result> Failed(const Load& load, const absl::Status& status) {
  std::cerr << "members_bench: " << load.members << " members over " << load.transport << ": "
            << status << std::endl;
  return std::nullopt;
}

std::optional<Result> Measure(const Options& options, const Load& load) {
  const std::string socket = options.folder + "/gradwire.sock";
  unlink(socket.c_str());
  // A daemon for each load: its peak is then that of this load.
  Child daemon({options.bin + "/gradwired", "--log-level", "error", "--listen",
                load.transport == "tcp" ? "127.0.0.1:0" : "unix:" + socket, "--chunk-bytes",
                std::to_string(kChunkBytes), "--window-chunks", std::to_string(kWindowChunks),
                "--open-buckets", std::to_string(kOpenBuckets)});
  daemon.ReadLine();  // name and version
  std::string address = daemon.ReadLine();
  address = address.substr(address.find_last_of(' ') + 1);
  Result result;
  result.base = MemoryOf(daemon.pid()).resident;
  if (load.transport == "shm") {
    unsetenv("GRADWIRE_SHARED_MEMORY");
  } else {
    setenv("GRADWIRE_SHARED_MEMORY", "off", 1);
  }
  const auto crowd = MemberCrowd::Join(address, load.members, load.model);
  if (!crowd.ok()) return Failed(load, crowd.status());
  result.idle = MemoryOf(daemon.pid()).resident;
  result.reserved = ReservedBytes(options, address);
  for (int i = 0; i < 2; ++i) {
    if (absl::Status warm = (*crowd)->Round(); !warm.ok()) return Failed(load, warm);
  }
  std::vector<double> times;
  const double cpu_before = daemon.CpuSeconds();
  const double begin = Now();
  for (int i = 0; i < load.least_rounds || (i < kMaxRounds && Now() - begin < options.seconds);
       ++i) {
    const double start = Now();
    if (absl::Status round = (*crowd)->Round(); !round.ok()) return Failed(load, round);
    times.push_back(Now() - start);
  }
  result.rounds = static_cast<int>(times.size());
  result.cpu = (daemon.CpuSeconds() - cpu_before) / result.rounds;
  if (absl::Status checked = (*crowd)->Check(); !checked.ok()) return Failed(load, checked);
  std::sort(times.begin(), times.end());
  result.p50 = times[times.size() / 2];
  result.p99 = times[times.size() * 99 / 100];
  result.idle_after = MemoryOf(daemon.pid()).resident;
  result.peak = MemoryOf(daemon.pid()).peak;
  return result;
}

nlohmann::json ToJson(const Load& load, const Result& result) {
  const auto bytes = static_cast<double>(load.bucket_bytes()) * load.model.buckets;
  return {{"transport", load.transport},
          {"members", load.members},
          {"buckets", load.model.buckets},
          {"bucket_bytes", load.bucket_bytes()},
          {"rounds", result.rounds},
          {"p50_ms", result.p50 * 1e3},
          {"p99_ms", result.p99 * 1e3},
          {"gigabytes_per_second", bytes * load.members / result.p50 / 1e9},
          {"microseconds_per_member", result.p50 * 1e6 / load.members},
          {"daemon_cpu_microseconds_per_member", result.cpu * 1e6 / load.members},
          {"base_bytes", result.base},
          {"idle_bytes", result.idle},
          {"idle_after_bytes", result.idle_after},
          {"peak_bytes", result.peak},
          {"reserved_bytes", result.reserved}};
}

bool MeasureRounds(const Options& options, nlohmann::json& rows) {
  std::printf("\nmany members on one daemon, one bucket of fp32 per member and round\n");
  std::printf(
      "GB/s: what all members contribute, and the same again comes back; memory in MiB\n\n");
  std::printf("%-5s %7s %7s %6s  %8s %8s  %6s  %9s %9s  %6s %6s %8s\n", "path", "members", "bucket",
              "rounds", "p50 ms", "p99 ms", "GB/s", "us/member", "cpu us/m.", "idle", "peak",
              "reserved");
  for (const std::string& transport : options.transports) {
    for (const std::size_t bytes : {4 * kKiB, 64 * kKiB, kMiB, 16 * kMiB}) {
      for (const int members : options.members) {
        if (bytes > kMiB && members > kMostWithLargeBuckets) continue;
        const Load load{transport, members, Flat(1, bytes)};
        const auto result = Measure(options, load);
        if (!result) return false;
        rows.push_back(ToJson(load, *result));
        const nlohmann::json& row = rows.back();
        std::printf("%-5s %7d %7s %6d  %8.2f %8.2f  %6.2f  %9.1f %9.1f  %6.1f %6.1f %8.1f\n",
                    transport.c_str(), members, SizeText(bytes).c_str(), result->rounds,
                    result->p50 * 1e3, result->p99 * 1e3,
                    row.at("gigabytes_per_second").get<double>(),
                    row.at("microseconds_per_member").get<double>(),
                    row.at("daemon_cpu_microseconds_per_member").get<double>(), Mib(result->idle),
                    Mib(result->peak), Mib(result->reserved));
        std::fflush(stdout);
      }
    }
  }
  return true;
}

bool MeasureMemory(const Options& options, nlohmann::json& rows) {
  constexpr int kMembers = 4;
  constexpr std::size_t kWindowBytes = kWindowChunks * kOpenBuckets * kChunkBytes;
  std::printf("\nmemory of the daemon, 4 members with 4 buckets of 25 MiB in flight, in MiB\n");
  std::printf(
      "bound: idle, connected + 2 x windows (%.1f) x members + 2 chunks; segments that are\n"
      "shared count as resident from the moment that members connect\n\n",
      Mib(kWindowBytes));
  std::printf("%-5s  %15s %15s %12s %8s %8s %9s\n", "path", "without members", "idle, connected",
              "idle, after", "peak", "bound", "reserved");
  for (const std::string& transport : options.transports) {
    const Load load{transport, kMembers, Flat(4, 25 * kMiB)};
    const auto result = Measure(options, load);
    if (!result) return false;
    const std::size_t bound = result->idle + 2 * kWindowBytes * kMembers + 2 * kChunkBytes;
    rows.push_back(ToJson(load, *result));
    rows.back()["bound_bytes"] = bound;
    std::printf("%-5s  %15.1f %15.1f %12.1f %8.1f %8.1f %9.1f\n", transport.c_str(),
                Mib(result->base), Mib(result->idle), Mib(result->idle_after), Mib(result->peak),
                Mib(bound), Mib(result->reserved));
    std::fflush(stdout);
  }
  return true;
}

// What a session takes beside its payloads: lists of many parameters and members, and factors.
bool MeasureBounds(const Options& options, nlohmann::json& rows) {
  const auto compressed = gradwire::HookSpec::Parse(
      "power_sgd,start_powerSGD_iter=0,matrix_approximation_rank=64,min_compression_rate=1");
  if (!compressed.ok()) return false;
  struct Case {
    const char* name;
    Load load;
  };
  const Case cases[] = {
      {"10,000 parameters", {"tcp", 64, {.buckets = 400, .parameters = 25, .shape = {64}}, 1}},
      {"a factor of 128k x 64", {"tcp", 2, {.shape = {131072, 128}, .hook = *compressed}, 1}}};
  std::printf("\nwhat a session takes of the daemon's memory, and what is reserved, in MiB\n\n");
  std::printf("%-24s %8s %10s %9s\n", "", "members", "peak-base", "reserved");
  for (const Case& one : cases) {
    const auto result = Measure(options, one.load);
    if (!result) return false;
    rows.push_back(ToJson(one.load, *result));
    std::printf("%-24s %8d %10.1f %9.1f\n", one.name, one.load.members,
                Mib(result->peak - result->base), Mib(result->reserved));
    std::fflush(stdout);
  }
  return true;
}

int Run(Options options) {
  char folder[] = "/tmp/gradwire-bench-XXXXXX";
  if (mkdtemp(folder) == nullptr) return 1;
  options.folder = folder;
  if (options.quick) options.seconds = 0.3;
  nlohmann::json rounds = nlohmann::json::array();
  nlohmann::json memory = nlohmann::json::array();
  nlohmann::json bounds = nlohmann::json::array();
  const bool ok = (options.bounds_only || MeasureRounds(options, rounds)) &&
                  (options.bounds_only || MeasureMemory(options, memory)) &&
                  MeasureBounds(options, bounds);
  unlink((options.folder + "/gradwire.sock").c_str());
  rmdir(folder);
  if (!ok) return 1;
  if (!options.json.empty()) {
    const nlohmann::json all = {
        {"benchmark", "members"}, {"rounds", rounds}, {"memory", memory}, {"bounds", bounds}};
    std::ofstream(options.json) << all.dump(1) << "\n";
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  char self[4096];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  const std::string path(self, length > 0 ? static_cast<std::size_t>(length) : 0);
  options.bin = path.substr(0, path.find_last_of('/'));
  CLI::App app{"Many members on one daemon"};
  app.add_option("--transports", options.transports, "tcp, unix, shm")
      ->check(CLI::IsMember({"tcp", "unix", "shm"}));
  app.add_option("--members", options.members, "how many at once");
  app.add_option("--seconds", options.seconds, "of rounds for each line");
  app.add_flag("--quick", options.quick, "0.3 seconds");
  app.add_flag("--bounds-only", options.bounds_only, "the last table alone");
  app.add_option("--json", options.json, "also write the tables here");
  app.add_option("--bin", options.bin, "folder of gradwired and gradwirectl");
  CLI11_PARSE(app, argc, argv);
  return Run(options);
}
