// What TLS costs: rounds of one bucket through a daemon, and the same bytes through a plain gRPC
// stream that sends them back, each with and without TLS, in turn. The servers are processes of
// their own, so their processor time is the daemon's, and the stream server's.
#include <stdlib.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/bench/grpc_stream.h"
#include "tests/bench/ladder/certificates.h"
#include "tests/bench/member_crowd.h"
#include "tests/bench/process_group.h"
#include "tests/bench/spread.h"

namespace gradwire::bench {
namespace {

constexpr std::size_t kBytes = std::size_t{16} << 20;
constexpr std::size_t kChunk = std::size_t{1} << 20;
// As many chunks as a member of the daemon has in flight.
constexpr std::size_t kInFlight = 4;
constexpr double kGigabyte = 1e9;

struct Options {
  int repetitions = 7;
  double seconds = 1;
  int members = 2;
  std::string json;
  std::string bin;
  std::string certificates;  // of this program as the stream server: "none" without TLS
};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// One server, and clients of it that move 16 MiB each way for each member in a round.
struct Contestant {
  std::string name;
  std::unique_ptr<Child> server;
  std::unique_ptr<MemberCrowd> crowd = nullptr;
  std::unique_ptr<StreamClient> streams = nullptr;
  std::vector<double> rate = {};  // GB/s, each way
  std::vector<double> cpu = {};   // the server's seconds for a gigabyte each way

  void Round() const {
    if (streams != nullptr) {
      streams->Run();
      return;
    }
    if (const absl::Status status = crowd->Round(); !status.ok()) {
      std::cerr << "tls_bench: " << name << ": " << status << std::endl;
      std::exit(1);
    }
  }
};

Contestant Daemon(const Options& options, const std::string& certificates) {
  const bool tls = !certificates.empty();
  std::vector<std::string> command = {options.bin + "/gradwired",
                                      "--log-level",
                                      "error",
                                      "--http-listen",
                                      "off",
                                      "--listen",
                                      "127.0.0.1:0"};
  if (tls) {
    for (const char* word : {"--tls-cert", "/server.pem", "--tls-key", "/server.key"}) {
      command.push_back(word[0] == '/' ? certificates + word : word);
    }
    setenv("GRADWIRE_TLS_CA", (certificates + "/ca.pem").c_str(), 1);
  }
  Contestant one{.name = tls ? "gradwired, TLS" : "gradwired",
                 .server = std::make_unique<Child>(command)};
  one.server->ReadLine();  // name and version
  std::string address = one.server->ReadLine();
  address = address.substr(address.find_last_of(' ') + 1);
  auto crowd = MemberCrowd::Join(
      address, options.members,
      {.buckets = 1, .shape = {static_cast<std::int64_t>(kBytes / sizeof(float))}});
  unsetenv("GRADWIRE_TLS_CA");
  if (!crowd.ok()) {
    std::cerr << "tls_bench: " << crowd.status() << std::endl;
    std::exit(1);
  }
  one.crowd = *std::move(crowd);
  return one;
}

Contestant Echo(const Options& options, const std::string& certificates) {
  const bool tls = !certificates.empty();
  Contestant one{.name = tls ? "gRPC stream, TLS" : "gRPC stream",
                 .server = std::make_unique<Child>(std::vector<std::string>{
                     options.bin + "/tls_bench", "--serve", tls ? certificates : "none"})};
  const std::string address = one.server->ReadLine();
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int i = 0; i < options.members; ++i) {
    channels.push_back(MakeChannel(address, {.certificates = certificates}));
  }
  one.streams =
      OpenStreams(GrpcApi::kCallback, channels,
                  {.bytes = kBytes, .message_bytes = kChunk, .in_flight = kInFlight, .copy = true});
  return one;
}

void Measure(const Options& options, Contestant& one) {
  one.Round();
  const double cpu = one.server->CpuSeconds();
  const double begin = Now();
  int rounds = 0;
  for (; rounds < 3 || Now() - begin < options.seconds; ++rounds) one.Round();
  const double gigabytes = static_cast<double>(kBytes) * options.members * rounds / kGigabyte;
  one.rate.push_back(gigabytes / (Now() - begin));
  one.cpu.push_back((one.server->CpuSeconds() - cpu) / gigabytes);
}

// The median of a / b within each repetition, which both shared with the same neighbours.
Spread Ratio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  return SpreadOf(ratios);
}

nlohmann::json ToJson(const Spread& spread) {
  return {{"median", spread.median}, {"min", spread.min}, {"max", spread.max}};
}

void PrintRatio(const char* what, const Spread& ratio) {
  std::printf("%-58s %5.2f  (%.2f .. %.2f)\n", what, ratio.median, ratio.min, ratio.max);
}

int Run(const Options& options) {
  char folder[] = "/tmp/gradwire-tls-XXXXXX";
  if (mkdtemp(folder) == nullptr || !MakeCertificates(folder)) {
    std::cerr << "tls_bench: the openssl command makes no certificates in " << folder << std::endl;
    return 1;
  }
  std::vector<Contestant> all;
  all.push_back(Daemon(options, ""));
  all.push_back(Daemon(options, folder));
  all.push_back(Echo(options, ""));
  all.push_back(Echo(options, folder));
  for (int i = 0; i < options.repetitions; ++i) {
    for (Contestant& one : all) Measure(options, one);
  }
  std::printf("TLS on one host, %d members, a bucket of 16 MiB each way; %d repetitions\n\n",
              options.members, options.repetitions);
  std::printf("%-18s %22s %26s\n", "", "GB/s each way", "server's CPU s for 1 GB");
  nlohmann::json rows = nlohmann::json::array();
  for (const Contestant& one : all) {
    const Spread rate = SpreadOf(one.rate);
    const Spread cpu = SpreadOf(one.cpu);
    std::printf("%-18s %6.2f (%.2f .. %.2f) %10.2f (%.2f .. %.2f)\n", one.name.c_str(), rate.median,
                rate.min, rate.max, cpu.median, cpu.min, cpu.max);
    rows.push_back({{"server", one.name},
                    {"gigabytes_per_second", ToJson(rate)},
                    {"cpu_seconds_per_gigabyte", ToJson(cpu)}});
  }
  const Spread cost = Ratio(all[1].cpu, all[3].cpu);
  const Spread speed = Ratio(all[1].rate, all[3].rate);
  const Spread plain = Ratio(all[1].rate, all[0].rate);
  std::printf("\n");
  PrintRatio("CPU of gradwired with TLS / of a gRPC stream with TLS", cost);
  PrintRatio("throughput of gradwired with TLS / of a gRPC stream with TLS", speed);
  PrintRatio("throughput of gradwired with TLS / without", plain);
  if (options.json.empty()) return 0;
  std::ofstream(options.json) << nlohmann::json{{"benchmark", "tls"},
                                                {"members", options.members},
                                                {"rows", rows},
                                                {"cpu_to_grpc_tls", ToJson(cost)},
                                                {"throughput_to_grpc_tls", ToJson(speed)},
                                                {"throughput_to_plain", ToJson(plain)}}
                                     .dump(2)
                              << "\n";
  return 0;
}

}  // namespace
}  // namespace gradwire::bench

int main(int argc, char** argv) {
  gradwire::bench::Options options;
  char self[4096];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  const std::string path(self, length > 0 ? static_cast<std::size_t>(length) : 0);
  options.bin = path.substr(0, path.find_last_of('/'));
  CLI::App app{"What TLS costs"};
  app.add_option("--members", options.members, "of the session, and streams")
      ->check(CLI::Range(1, 16));
  app.add_option("--repetitions", options.repetitions, "of each line")->check(CLI::Range(1, 1000));
  app.add_option("--seconds", options.seconds, "of rounds for each repetition");
  app.add_option("--json", options.json, "also write the table here");
  app.add_option("--serve", options.certificates,
                 "serve streams, with the certificates of a folder");
  CLI11_PARSE(app, argc, argv);
  if (options.certificates.empty()) return gradwire::bench::Run(options);
  const std::string folder = options.certificates == "none" ? "" : options.certificates;
  return gradwire::bench::ServeStreams("127.0.0.1:0", {.channel = {.certificates = folder}});
}
