// All-reduce through a daemon against a plain gRPC echo of the same bytes, alternating in one run.
//
// Every member and every echo client is a process of its own, as is the daemon and the echo server.
#include <stdlib.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "gradwire/client.h"
#include "tests/bench/grpc_echo.h"
#include "tests/bench/process_group.h"
#include "tests/bench/spread.h"

namespace {

using gradwire::bench::Child;
using gradwire::bench::Spread;

struct Options {
  std::size_t mebibytes = 25;
  int repetitions = 9;
  std::string json;
  std::string daemon;
};

struct Row {
  std::string transport;
  int members = 0;
  Spread allreduce;
  Spread echo;
};

std::string SelfPath() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  return std::string(path, length > 0 ? static_cast<std::size_t>(length) : 0);
}

int RunMember(const std::string& address, int rank, int world_size, std::size_t bytes,
              const std::string& hook) {
  const auto numel = static_cast<std::int64_t>(bytes / sizeof(float));
  std::vector<float> gradient(bytes / sizeof(float), 1.0F + static_cast<float>(rank));
  const std::vector<gradwire::ParameterSpec> parameters = {
      {.name = "weight", .shape = {numel}, .dtype = gradwire::DType::kFloat32}};
  auto spec = gradwire::HookSpec::Parse(hook);
  if (!spec.ok()) return 2;
  auto client = gradwire::Client::Join({.address = address,
                                        .session = "bench",
                                        .rank = rank,
                                        .world_size = world_size,
                                        .parameters = parameters,
                                        .hook = *spec});
  auto bucket = gradwire::GradBucket::Make(
      0, {gradwire::DType::kFloat32, gradient.data(), gradient.size()}, parameters, true);
  if (!client.ok() || !bucket.ok()) {
    std::cerr << "bench: " << client.status() << std::endl;
    return 1;
  }
  std::cout << "ready" << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
    const absl::Status reduced = (*client)->AllReduce(*bucket).Wait();
    if (!reduced.ok() || !(*client)->EndStep().ok()) {
      std::cerr << "bench: " << reduced << std::endl;
      return 1;
    }
    std::cout << "done" << std::endl;
  }
  return 0;
}

Row Measure(const Options& options, const std::string& transport, int members,
            const std::string& folder) {
  const bool tcp = transport == "tcp";
  const std::string self = SelfPath();
  const std::string bytes = std::to_string(options.mebibytes << 20);
  Child daemon({options.daemon, "--log-level", "error", "--listen",
                tcp ? "127.0.0.1:0" : "unix:" + folder + "/gradwire.sock"});
  daemon.ReadLine();  // name and version
  std::string address = daemon.ReadLine();
  address = address.substr(address.find_last_of(' ') + 1);
  Child echo({self, "--role", "echo-server", "--address",
              tcp ? "127.0.0.1:0" : "unix:" + folder + "/echo.sock"});
  const std::string echo_address = echo.ReadLine();

  std::vector<Child> ranks;
  std::vector<Child> clients;
  for (int rank = 0; rank < members; ++rank) {
    ranks.emplace_back(std::vector<std::string>{self, "--role", "member", "--address", address,
                                                "--rank", std::to_string(rank), "--world-size",
                                                std::to_string(members), "--bytes", bytes});
    clients.emplace_back(std::vector<std::string>{self, "--role", "echo-client", "--address",
                                                  echo_address, "--bytes", bytes});
  }
  for (Child& child : ranks) child.ReadLine();
  for (Child& child : clients) child.ReadLine();

  std::vector<double> allreduce_times;
  std::vector<double> echo_times;
  for (int i = -2; i < options.repetitions; ++i) {
    const double allreduce = gradwire::bench::RunOnce(ranks);
    const double echoed = gradwire::bench::RunOnce(clients);
    if (i < 0) continue;  // warm-up
    allreduce_times.push_back(allreduce * 1e3);
    echo_times.push_back(echoed * 1e3);
  }
  return {.transport = transport,
          .members = members,
          .allreduce = gradwire::bench::SpreadOf(allreduce_times),
          .echo = gradwire::bench::SpreadOf(echo_times)};
}

void WriteJson(const Options& options, const std::vector<Row>& rows) {
  std::ofstream file(options.json);
  file << "{\"benchmark\": \"allreduce\", \"mebibytes\": " << options.mebibytes
       << ", \"repetitions\": " << options.repetitions << ", \"rows\": [\n";
  const auto spread = [](const Spread& s) {
    return "{\"median_ms\": " + std::to_string(s.median) +
           ", \"min_ms\": " + std::to_string(s.min) + ", \"max_ms\": " + std::to_string(s.max) +
           "}";
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    file << "  {\"transport\": \"" << rows[i].transport << "\", \"members\": " << rows[i].members
         << ", \"allreduce\": " << spread(rows[i].allreduce)
         << ", \"echo\": " << spread(rows[i].echo)
         << ", \"ratio\": " << rows[i].echo.median / rows[i].allreduce.median << "}"
         << (i + 1 < rows.size() ? "," : "") << "\n";
  }
  file << "]}\n";
}

int RunAll(const Options& options) {
  char folder[] = "/tmp/gradwire-bench-XXXXXX";
  if (mkdtemp(folder) == nullptr) return 1;
  std::printf("all-reduce of %zu MiB fp32 per member against a plain gRPC echo of the same bytes\n",
              options.mebibytes);
  std::printf("medians of %d alternating runs, min to max in brackets\n\n", options.repetitions);
  std::printf("%-6s %8s  %26s  %26s  %10s\n", "path", "members", "all-reduce ms", "echo ms",
              "echo/all-r.");
  std::vector<Row> rows;
  for (const char* transport : {"tcp", "unix"}) {
    for (int members : {2, 4}) {
      rows.push_back(Measure(options, transport, members, folder));
      const Row& row = rows.back();
      std::printf("%-6s %8d  %8.1f [%6.1f - %6.1f]  %8.1f [%6.1f - %6.1f]  %10.2f\n", transport,
                  members, row.allreduce.median, row.allreduce.min, row.allreduce.max,
                  row.echo.median, row.echo.min, row.echo.max,
                  row.echo.median / row.allreduce.median);
      std::fflush(stdout);
      for (const char* name : {"/gradwire.sock", "/echo.sock"}) {
        unlink((std::string(folder) + name).c_str());
      }
    }
  }
  rmdir(folder);
  if (!options.json.empty()) WriteJson(options, rows);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  std::string role = "parent";
  std::string address;
  std::string hook = "no";
  int rank = 0;
  int world_size = 1;
  std::size_t bytes = 0;
  const std::string self = SelfPath();
  options.daemon = self.substr(0, self.find_last_of('/')) + "/gradwired";
  CLI::App app{"All-reduce through a daemon against a plain gRPC echo"};
  app.add_option("--mebibytes", options.mebibytes, "gradient per member");
  app.add_option("--repetitions", options.repetitions, "counted runs of each");
  app.add_option("--json", options.json, "also write the table here");
  app.add_option("--daemon", options.daemon, "path of gradwired");
  app.add_option("--role", role)->group("");
  app.add_option("--address", address)->group("");
  app.add_option("--hook", hook)->group("");
  app.add_option("--rank", rank)->group("");
  app.add_option("--world-size", world_size)->group("");
  app.add_option("--bytes", bytes)->group("");
  CLI11_PARSE(app, argc, argv);
  constexpr std::size_t kMessageBytes = std::size_t{1} << 20;
  constexpr std::size_t kInFlight = 8;
  if (role == "member") return RunMember(address, rank, world_size, bytes, hook);
  if (role == "echo-server") return gradwire::bench::ServeEcho(address);
  if (role == "echo-client") {
    return gradwire::bench::RunEchoClient(address, bytes, kMessageBytes, kInFlight);
  }
  return RunAll(options);
}
