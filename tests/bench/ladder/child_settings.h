// What a child process of the ladder does. The parent hands it over as one JSON argument.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

namespace gradwire::bench {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;
// gRPC frames and headers fit into the same MiB.
constexpr std::size_t kChunk = kMiB - 4 * kKiB;

// 127.0.0.1:0 and the like for TCP, unix:PATH for a unix socket; a server prints what it listens
// on.
struct ChildSettings {
  std::string role;
  std::string address;
  std::size_t bytes = 256 * kMiB;  // that a client sends in one run
  std::size_t message_bytes = kMiB;
  std::size_t in_flight = 8;  // messages ahead of what came back
  bool duplex = false;        // what is sent comes back; otherwise it is dropped
  bool pinned_malloc = false;
  // Raw sockets.
  int send_buffer = 0;        // SO_SNDBUF; 0 leaves the system's
  bool fresh_memory = false;  // receive into new 64 KiB blocks instead of one buffer
  std::size_t rounds = 1;     // a run moves `bytes` so often
  std::size_t members = 1;
  std::size_t rank = 0;
  // gRPC.
  std::string api = "cq";  // or callback
  bool bulk = true;
  bool bdp_probe = false;
  std::string certificates;
  std::size_t queues = 1;
  std::size_t connections = 1;  // of one client, which share its bytes
  // Latency.
  std::string beside;  // bulk traffic "same" connection, "own" connection, or none
  // Memory.
  std::size_t threads = 1;
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ChildSettings, role, address, bytes, message_bytes, in_flight,
                                   duplex, pinned_malloc, send_buffer, fresh_memory, rounds,
                                   members, rank, api, bulk, bdp_probe, certificates, queues,
                                   connections, beside, threads)

// Runs the role, and returns the exit status. Roles of servers: raw-server, aggregator,
// grpc-server; of clients: copy, raw-client, raw-latency, grpc-client, grpc-latency. A latency
// client answers "done P50 P99" in microseconds.
int RunChild(const ChildSettings& settings);

// The roles; see RunChild.
int CopyMemory(const ChildSettings& settings);
int ServeRaw(const ChildSettings& settings);
int RunRawClient(const ChildSettings& settings);
int RunRawLatency(const ChildSettings& settings);
int ServeAggregator(const ChildSettings& settings);
int ServeGrpc(const ChildSettings& settings);
int RunGrpcClient(const ChildSettings& settings);
int RunGrpcLatency(const ChildSettings& settings);

}  // namespace gradwire::bench
