// gRPC streams of byte buffers with nothing of Gradwire in them: one server and one client, over
// the completion-queue API or the callback API, with the channel settings in one place.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace gradwire::bench {

enum class GrpcApi { kQueue, kCallback };

struct ChannelSettings {
  bool bulk = true;          // 1 MiB frames and reads, 4 MiB of lookahead and write buffer
  bool bdp_probe = false;    // gRPC's own default is on
  std::string certificates;  // a folder made by MakeCertificates; empty: no TLS
};

struct StreamServerSettings {
  ChannelSettings channel;
  GrpcApi api = GrpcApi::kCallback;
  // Completion queues with a thread each, and how many calls they take in all, evenly.
  std::size_t queues = 1;
  std::size_t calls = 1;
  // 0: every message goes back. Otherwise messages are dropped, and one byte says each time that so
  // many bytes came.
  std::size_t acknowledge_every = 0;
};

// What one stream moves in one run.
struct StreamPlan {
  std::size_t bytes = 0;
  std::size_t message_bytes = 0;
  std::size_t in_flight = 0;  // messages ahead of what came back; of no account for `drop`
  bool drop = false;          // the server acknowledges instead of sending back
  // Sends from a buffer of `bytes` and copies what comes into another; otherwise one message is
  // sent again and again, and what comes is dropped.
  bool copy = false;
};

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const ChannelSettings& settings);

// Prints the address that it listens on, serves until standard input ends.
int ServeStreams(const std::string& listen, const StreamServerSettings& settings);

// A stream on each of some channels.
class StreamClient {
 public:
  virtual ~StreamClient() = default;
  // Moves plan.bytes over each stream. Exits the process when it does not end within a minute.
  virtual void Run() = 0;
};

std::unique_ptr<StreamClient> OpenStreams(
    GrpcApi api, const std::vector<std::shared_ptr<grpc::Channel>>& channels,
    const StreamPlan& plan);

}  // namespace gradwire::bench
