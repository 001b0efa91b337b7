// Bookkeeping of one stream, the same for both of gRPC's APIs. Not thread-safe.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "tests/bench/grpc_stream.h"

namespace gradwire::bench {

constexpr const char* kStreamMethod = "/gradwire.bench.Streams/Move";
constexpr std::chrono::seconds kRunDeadline{60};

// The client's side of a run.
class Transfer {
 public:
  explicit Transfer(const StreamPlan& plan);

  void Begin();
  // The next message, unless all are sent or too many are on their way.
  bool Next(grpc::ByteBuffer& message);
  void Take(grpc::ByteBuffer& message);
  bool done() const { return plan_.drop ? acknowledged_ : received_ == plan_.bytes; }

 private:
  const StreamPlan plan_;
  std::vector<std::byte> source_;
  std::vector<std::byte> target_;
  std::size_t sent_ = 0;
  std::size_t received_ = 0;
  bool acknowledged_ = false;
};

// The server's side of a stream.
class Answers {
 public:
  explicit Answers(std::size_t acknowledge_every) : acknowledge_every_(acknowledge_every) {}

  // Takes a message; whether there is an answer to it.
  bool Answer(grpc::ByteBuffer& incoming, grpc::ByteBuffer& answer);

 private:
  const std::size_t acknowledge_every_;
  std::size_t received_ = 0;
};

// A server of one API: registers itself with the builder, and runs from Start to Stop.
class StreamService {
 public:
  virtual ~StreamService() = default;
  virtual void Register(grpc::ServerBuilder& builder) = 0;
  virtual void Start() = 0;
  // After the server was shut down.
  virtual void Stop() = 0;
};

std::unique_ptr<StreamService> MakeQueueService(const StreamServerSettings& settings);
std::unique_ptr<StreamService> MakeCallbackService(const StreamServerSettings& settings);
std::unique_ptr<StreamClient> OpenQueueStreams(
    const std::vector<std::shared_ptr<grpc::Channel>>& channels, const StreamPlan& plan);
std::unique_ptr<StreamClient> OpenCallbackStreams(
    const std::vector<std::shared_ptr<grpc::Channel>>& channels, const StreamPlan& plan);

}  // namespace gradwire::bench
