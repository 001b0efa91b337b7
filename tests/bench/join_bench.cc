// Joins of large models: the time of a member's join, the daemon's processor time for it, and what
// the daemon holds in memory next to what it has reserved for the session.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/transport/channel.h"
#include "gradwire/client.h"
#include "tests/bench/process_group.h"
#include "tests/bench/process_stats.h"

namespace {

using gradwire::ClientOptions;
using gradwire::bench::Child;
using gradwire::bench::MemoryOf;

constexpr double kMiB = 1024.0 * 1024;
constexpr unsigned kMembers = 2;

std::vector<gradwire::ParameterSpec> Experts(int count) {
  std::vector<gradwire::ParameterSpec> parameters;
  for (int i = 0; i < count; ++i) {
    parameters.push_back({.name = absl::StrCat("model.layers.", i / 1000, ".mlp.experts.", i % 1000,
                                               ".gate_proj.weight"),
                          .shape = {2, 2}});
  }
  return parameters;
}

double Reserved(const std::string& bin, const std::string& address) {
  Child asked({bin + "/gradwirectl", "--address", address, "-o", "json", "session", "get", "join"});
  const auto status = nlohmann::json::parse(asked.ReadLine());
  return static_cast<double>(std::stoull(status.at("reserved_bytes").get<std::string>())) / kMiB;
}

// A daemon of its own for each size: its peak is that of this size. False if a join failed.
bool Measure(const std::string& bin, int parameters) {
  Child daemon({bin + "/gradwired", "--log-level", "error", "--listen", "127.0.0.1:0"});
  daemon.ReadLine();  // name and version
  std::string address = daemon.ReadLine();
  address = address.substr(address.find_last_of(' ') + 1);
  const double base = static_cast<double>(MemoryOf(daemon.pid()).resident) / kMiB;
  ClientOptions options{.address = address,
                        .session = "join",
                        .world_size = kMembers,
                        .parameters = Experts(parameters)};
  auto dialer = gradwire::client::Dialer::Make(address, {});
  if (!dialer.ok()) return false;
  for (unsigned rank = 0; rank < kMembers; ++rank) {
    options.rank = static_cast<int>(rank);
    const double cpu = daemon.CpuSeconds();
    const auto begin = std::chrono::steady_clock::now();
    const auto member = gradwire::client::JoinSession(dialer->Dial(), options, {}, rank + 1, "");
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (!member.ok()) {
      std::fprintf(stderr, "join_bench: %s\n", member.status().ToString().c_str());
      return false;
    }
    const gradwire::bench::Memory memory = MemoryOf(daemon.pid());
    std::printf("%10d  %4u  %7.3f  %7.3f  %8.1f  %8.1f", parameters, rank, took.count(),
                daemon.CpuSeconds() - cpu, static_cast<double>(memory.resident) / kMiB - base,
                static_cast<double>(memory.peak) / kMiB - base);
    std::printf("  %8.1f\n", Reserved(bin, address));
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> sizes = {10'000, 47'000, 500'000};
  CLI::App app{"Joins of large models"};
  app.add_option("--parameters", sizes, "how many parameters the model has");
  CLI11_PARSE(app, argc, argv);
  const std::string bin = std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
  std::printf("parameters  rank   join s   cpu s    MiB now  MiB peak  MiB reserved\n");
  for (const int parameters : sizes) {
    if (!Measure(bin, parameters)) return 1;
  }
  return 0;
}
