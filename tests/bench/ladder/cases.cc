#include "tests/bench/ladder/cases.h"

namespace gradwire::bench {

Case CopyCase(const std::string& what, std::size_t block, std::size_t threads) {
  Case made{.rung = "L0", .what = what, .transport = "memory"};
  made.client.role = "copy";
  made.client.message_bytes = block;
  made.client.bytes = 20 * 25 * kMiB;
  made.client.threads = threads;
  return made;
}

Case RawCase(const std::string& rung, const std::string& transport, bool duplex) {
  Case made{.rung = rung, .what = duplex ? "duplex" : "one way", .transport = transport};
  made.server.role = "raw-server";
  made.client.role = "raw-client";
  return Both(made, [duplex](ChildSettings& settings) { settings.duplex = duplex; });
}

Case GrpcCase(const std::string& rung, const std::string& transport, const std::string& api,
              bool duplex) {
  Case made{.rung = rung,
            .what = std::string(duplex ? "duplex, " : "one way, ") + api,
            .transport = transport};
  made.server.role = "grpc-server";
  made.client.role = "grpc-client";
  made.server.pinned_malloc = true;  // as the daemon does, and its members cannot
  return Both(made, [&](ChildSettings& settings) {
    settings.api = api;
    settings.duplex = duplex;
    settings.message_bytes = kChunk;
  });
}

Case AggregatorCase(const std::string& transport, std::size_t members, int send_buffer) {
  Case made{.rung = "Y", .what = "epoll aggregator", .transport = transport, .members = members};
  made.server.role = "aggregator";
  made.client.role = "raw-client";
  return Both(made, [&](ChildSettings& settings) {
    settings.duplex = true;
    settings.bytes = 25 * kMiB;
    settings.message_bytes = kChunk;
    settings.rounds = 4;
    settings.send_buffer = send_buffer;
  });
}

Case TinyAggregatorCase(std::size_t members) {
  Case made{.rung = "Y",
            .what = "epoll aggregator, 4 KiB round",
            .transport = "unix",
            .members = members};
  made.server.role = "aggregator";
  made.client.role = "raw-latency";
  return Both(made, [](ChildSettings& settings) {
    settings.bytes = 4 * kKiB;
    settings.message_bytes = 4 * kKiB;
  });
}

Case TinyGrpcCase(std::size_t members) {
  Case made = GrpcCase("L6", "unix", "cq", true);
  made.what = "cq, 4 KiB there and back";
  made.members = members;
  made.client.role = "grpc-latency";
  return Both(made, [](ChildSettings& settings) {
    settings.bytes = 4 * kKiB;
    settings.message_bytes = 4 * kKiB;
  });
}

}  // namespace gradwire::bench
