// A daemon that misbehaves as the test says. Unless told otherwise it serves one member of a world
// of one: it grants every bucket and sends contributions back as results.
#pragma once

#include <grpcpp/server.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "gradwire/v1/aggregation.grpc.pb.h"
#include "tests/testing/process.h"

namespace gradwire::client {

class FakeDaemon final : public v1::AggregationService::Service {
 public:
  using Stream = grpc::ServerReaderWriter<v1::Frame, v1::Frame>;

  // A connection of this age gets a GOAWAY, as from a proxy, and is closed `age_grace` later.
  explicit FakeDaemon(absl::Duration age = absl::InfiniteDuration(),
                      absl::Duration age_grace = absl::InfiniteDuration());
  ~FakeDaemon() override;

  std::string address() const { return "unix:" + folder_ / "daemon.sock"; }
  // The same daemon as if a network lay between.
  std::string far_address() const { return "0.0.0.0:" + std::to_string(port_); }
  // As if the process died. Members' streams break.
  void Shutdown();

  // Set these before a member joins.
  v1::JoinResponse join_response;
  grpc::Status join_status;
  // Of the last join. Read it when the member has joined.
  v1::JoinRequest join_request;
  // Called with the stream's number, from 0.
  std::function<grpc::Status(int number, Stream* stream, grpc::ServerContext* context)> exchange;
  // Likewise. A member calls it only where join_response has bulk_lane.
  std::function<grpc::Status(int number, Stream* stream)> exchange_bulk;
  std::function<grpc::Status()> leave = [] { return grpc::Status::OK; };
  // Changes a frame on its way to the member.
  std::function<void(v1::Frame& frame)> tamper = [](v1::Frame&) {};

  // Serves until the member's stream ends, or until `frames` frames came in.
  grpc::Status Serve(Stream* stream, bool resumed = false, int frames = -1);

 private:
  grpc::Status Join(grpc::ServerContext* context, const v1::JoinRequest* request,
                    v1::JoinResponse* response) override;
  grpc::Status Exchange(grpc::ServerContext* context, Stream* stream) override;
  grpc::Status ExchangeBulk(grpc::ServerContext* context, Stream* stream) override;
  grpc::Status Leave(grpc::ServerContext* context, const v1::LeaveRequest* request,
                     v1::LeaveResponse* response) override;
  void Send(Stream* stream, v1::Frame frame);

  gradwire::testing::TemporaryFolder folder_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::atomic<int> streams_ = 0;
  std::atomic<int> bulk_lanes_ = 0;
};

}  // namespace gradwire::client
