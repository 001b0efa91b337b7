// A large session beside a small one on one daemon: how long each lock is held at most while the
// large one joins, draws its first factors, is exported by every member and listed; and what the
// small one's steps take, alone and meanwhile. The large model's gradients do not exist, but for
// one small bucket: names, factors and their lists are what takes long.
#include <stdlib.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/member_crowd.h"
#include "tests/bench/process_group.h"

namespace {

using gradwire::Client;
using gradwire::GradBucket;
using gradwire::bench::Child;
using gradwire::bench::MemberCrowd;

constexpr int kLargeMembers = 2;
constexpr std::size_t kBucketParameters = 100;

struct Options {
  int parameters = 100'000;
  int side = 100;  // of each parameter, which is a square
  int rank = 4;
  int repeats = 3;
  double seconds = 3;  // of the small session alone
  bool real_time = false;
  std::string json;
  std::string bin;  // the folder of gradwired and gradwirectl
  std::string folder;
};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Times {
  double p50 = 0;  // seconds
  double p99 = 0;
  double longest = 0;
};

Times Summary(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  if (times.empty()) return {};
  return {.p50 = times[times.size() / 2],
          .p99 = times[times.size() * 99 / 100],
          .longest = times.back()};
}

// Steps of the small session until `over`.
absl::StatusOr<Times> Steps(MemberCrowd& small, const std::function<bool()>& over) {
  std::vector<double> times;
  while (!over()) {
    const double start = Now();
    if (absl::Status round = small.Round(); !round.ok()) return round;
    times.push_back(Now() - start);
  }
  return Summary(std::move(times));
}

// What one member of the large session does.
absl::Status LargeMember(const Options& options, const std::string& address, int rank) {
  std::vector<gradwire::ParameterSpec> parameters;
  for (int p = 0; p < options.parameters; ++p) {
    parameters.push_back({.name = "p" + std::to_string(p), .shape = {options.side, options.side}});
  }
  const std::vector<gradwire::ParameterSpec> some(parameters.begin(),
                                                  parameters.begin() + kBucketParameters);
  const auto spec = gradwire::HookSpec::Parse(
      "power_sgd,start_powerSGD_iter=0,matrix_approximation_rank=" + std::to_string(options.rank));
  if (!spec.ok()) return spec.status();
  const auto client = Client::Join({.address = address,
                                    .session = "large",
                                    .rank = rank,
                                    .world_size = kLargeMembers,
                                    .parameters = std::move(parameters),
                                    .hook = *spec});
  if (!client.ok()) return client.status();
  const auto side = static_cast<std::size_t>(options.side);
  std::vector<float> gradient(kBucketParameters * side * side, 1);
  auto bucket = GradBucket::Make(0, {gradwire::DType::kFloat32, gradient.data(), gradient.size()},
                                 some, true);
  if (!bucket.ok()) return bucket.status();
  const auto reduced = (*client)->AllReduce(*bucket);
  const auto verdict = (*client)->EndStep();
  if (absl::Status status = reduced.Wait(); !status.ok()) return status;
  if (!verdict.ok()) return verdict.status();
  if (const auto state = (*client)->ExportState(); !state.ok()) return state.status();
  return (*client)->Barrier();
}

nlohmann::json StatusOf(const Options& options, const std::string& address) {
  Child asked({options.bin + "/gradwirectl", "--address", address, "-o", "json", "status"});
  return nlohmann::json::parse(asked.ReadLine());
}

// Seconds, or -1: this daemon does not count them.
double HoldOf(const nlohmann::json& status) {
  const auto found = status.find("longest_lock_hold");
  return found == status.end() ? -1 : std::stod(found->get<std::string>());
}

struct Result {
  Times alone;
  Times beside;
  double registry_hold = 0;
  double large_hold = 0;
  double small_hold = 0;
};

absl::StatusOr<Result> Measure(const Options& options) {
  const std::string socket = options.folder + "/gradwire.sock";
  unlink(socket.c_str());
  // The manifest comes in one message.
  std::vector<std::string> command = {
      options.bin + "/gradwired", "--log-level",   "error",  "--listen",
      "unix:" + socket,           "--chunk-bytes", "8388608"};
  // A thread that loses its processor keeps its lock; at this priority the daemon's lose none to
  // the members, so that a hold is what the daemon does under the lock.
  if (options.real_time) command.insert(command.begin(), {"chrt", "--fifo", "1"});
  Child daemon(command);
  daemon.ReadLine();  // name and version
  daemon.ReadLine();
  const std::string address = "unix:" + socket;
  const auto small = MemberCrowd::Join(address, 2, {.shape = {1024}});
  if (!small.ok()) return small.status();
  Result result;
  const double end = Now() + options.seconds;
  const auto alone = Steps(**small, [&] { return Now() >= end; });
  if (!alone.ok()) return alone.status();
  result.alone = *alone;

  std::atomic<int> left = kLargeMembers;
  std::vector<absl::Status> outcomes(kLargeMembers);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kLargeMembers; ++rank) {
    threads.emplace_back([&, rank] {
      outcomes[static_cast<std::size_t>(rank)] = LargeMember(options, address, rank);
      // What this process frees itself is not measured, nor is the client's end.
      --left;
    });
  }
  nlohmann::json status;
  std::thread lists([&] {
    while (left > 0) status = StatusOf(options, address);
  });
  const auto beside = Steps(**small, [&] { return left == 0; });
  for (std::thread& thread : threads) thread.join();
  lists.join();
  for (const absl::Status& outcome : outcomes) {
    if (!outcome.ok()) return outcome;
  }
  if (!beside.ok()) return beside.status();
  result.beside = *beside;
  status = StatusOf(options, address);
  result.registry_hold = HoldOf(status.at("server"));
  for (const nlohmann::json& session : status.at("sessions")) {
    (session.at("name") == "large" ? result.large_hold : result.small_hold) = HoldOf(session);
  }
  return result;
}

void Print(const Result& result) {
  const auto hold = [](double seconds) {
    return seconds < 0 ? std::string("-") : std::to_string(seconds * 1e3).substr(0, 6);
  };
  std::printf("%8s %8s %8s  %8.2f %8.2f  %8.2f %8.2f %8.2f\n", hold(result.registry_hold).c_str(),
              hold(result.large_hold).c_str(), hold(result.small_hold).c_str(),
              result.alone.p50 * 1e3, result.alone.p99 * 1e3, result.beside.p50 * 1e3,
              result.beside.p99 * 1e3, result.beside.longest * 1e3);
  std::fflush(stdout);
}

nlohmann::json ToJson(const Result& result) {
  return {{"registry_hold_ms", result.registry_hold * 1e3},
          {"large_hold_ms", result.large_hold * 1e3},
          {"small_hold_ms", result.small_hold * 1e3},
          {"alone_p50_ms", result.alone.p50 * 1e3},
          {"alone_p99_ms", result.alone.p99 * 1e3},
          {"beside_p50_ms", result.beside.p50 * 1e3},
          {"beside_p99_ms", result.beside.p99 * 1e3},
          {"beside_longest_ms", result.beside.longest * 1e3}};
}

int Run(Options options) {
  char folder[] = "/tmp/gradwire-bench-XXXXXX";
  if (mkdtemp(folder) == nullptr) return 1;
  options.folder = folder;
  std::printf(
      "%d parameters of %d x %d, power_sgd of rank %d, beside a session of one 4 KiB "
      "bucket\n",
      options.parameters, options.side, options.side, options.rank);
  std::printf("the holds, and the small session's steps, in milliseconds\n\n");
  std::printf("%26s  %17s  %26s\n", "longest hold of the lock of", "steps alone", "steps beside");
  std::printf("%8s %8s %8s  %8s %8s  %8s %8s %8s\n", "registry", "large", "small", "p50", "p99",
              "p50", "p99", "longest");
  nlohmann::json rows = nlohmann::json::array();
  absl::Status failure;
  for (int i = 0; i < options.repeats && failure.ok(); ++i) {
    const absl::StatusOr<Result> result = Measure(options);
    failure = result.status();
    if (!result.ok()) continue;
    Print(*result);
    rows.push_back(ToJson(*result));
  }
  unlink((options.folder + "/gradwire.sock").c_str());
  rmdir(folder);
  if (!failure.ok()) {
    std::cerr << "locks_bench: " << failure << std::endl;
    return 1;
  }
  if (!options.json.empty()) {
    std::ofstream(options.json) << nlohmann::json({{"benchmark", "locks"}, {"rows", rows}}).dump(1)
                                << "\n";
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
  CLI::App app{"A large session beside a small one"};
  app.add_option("--parameters", options.parameters, "of the large model")
      ->check(CLI::Range(static_cast<int>(kBucketParameters), 1 << 20));
  app.add_option("--side", options.side, "of each parameter");
  app.add_option("--rank", options.rank, "of the approximation");
  app.add_option("--repeats", options.repeats, "each with a daemon of its own");
  app.add_option("--seconds", options.seconds, "of the small session alone");
  app.add_flag("--real-time", options.real_time,
               "the daemon's threads go before all others (asks for the right to); holds then "
               "contain no wait for a processor");
  app.add_option("--json", options.json, "also write the table here");
  app.add_option("--bin", options.bin, "folder of gradwired and gradwirectl");
  CLI11_PARSE(app, argc, argv);
  return Run(options);
}
