// A call that waits for a session lets another thread read: the calls of others are answered.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <gtest/gtest.h>

#include <any>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "gradwire/v1/admin.grpc.pb.h"
#include "gradwire/v1/aggregation.grpc.pb.h"
#include "proto/wire/process_setup.h"
#include "server/rpc/call_server.h"
#include "server/rpc/clock.h"
#include "server/services/admin_service.h"
#include "server/services/aggregation_service.h"
#include "tests/server/session/stuck_session.h"
#include "tests/testing/process.h"

namespace gradwire::server {
namespace {

using std::chrono::system_clock;

SessionOptions Small() {
  SessionOptions options;
  options.manifest = {ParameterSpec{.name = "w", .shape = {64}, .dtype = DType::kFloat32}};
  return options;
}

// A call under way: begun, and cancelled when it goes.
template <class Response>
struct Begun {
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  Response response;
  grpc::Status status;
  std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> reader;

  ~Begun() {
    context.TryCancel();
    queue.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue.Next(&tag, &ok)) {
    }
  }
};

class RpcStallTest : public ::testing::Test {
 protected:
  RpcStallTest() {
    wire::KeepGrpc();
    Methods methods;
    aggregation_.AddTo(methods);
    admin_.AddTo(methods);
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
    auto server = CallServer::Start(builder, std::move(methods));
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = grpc::CreateChannel(address_, grpc::InsecureChannelCredentials());
    aggregation_stub_ = v1::AggregationService::NewStub(channel_);
    admin_stub_ = v1::AdminService::NewStub(channel_);
    EXPECT_TRUE(OthersAreAnswered());
  }

  // Sends one call that needs the stuck session.
  template <class Response, class Request, class Stub>
  std::unique_ptr<Begun<Response>> Begin(
      Stub& stub, const Request& request,
      std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> (Stub::*method)(
          grpc::ClientContext*, const Request&, grpc::CompletionQueue*)) {
    auto call = std::make_unique<Begun<Response>>();
    call->reader = (stub.*method)(&call->context, request, &call->queue);
    call->reader->Finish(&call->response, &call->status, call.get());
    return call;
  }

  // On the same connection, so that what was sent before is read before.
  bool OthersAreAnswered() {
    for (int i = 0; i < 20; ++i) {
      grpc::ClientContext context;
      context.set_deadline(system_clock::now() + kPatience);
      v1::GetServerResponse response;
      if (!admin_stub_->GetServer(&context, {}, &response).ok()) return false;
    }
    return true;
  }

  const testing::TemporaryFolder folder_;
  const std::string address_ = "unix:" + (folder_ / "s");
  const std::shared_ptr<Registry> registry_ =
      std::make_shared<Registry>(Registry::Limits{.memory_bytes = 1 << 30, .max_sessions = 4});
  const std::shared_ptr<PeriodicTasks> ticks_ = std::make_shared<PeriodicTasks>();
  AggregationService aggregation_{{}, registry_, ticks_, [] { return false; }};
  AdminService admin_{registry_, ticks_, [] { return 0; }, nullptr};
  StuckSession stuck_{*registry_, Small(), MonotonicNow()};
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::AggregationService::Stub> aggregation_stub_;
  std::unique_ptr<v1::AdminService::Stub> admin_stub_;
  std::unique_ptr<CallServer> server_;
};

TEST_F(RpcStallTest, Leave) {
  v1::LeaveRequest request;
  request.set_token(stuck_.token());
  request.set_start_id(StuckSession::kStartId);
  const auto call = Begin(*aggregation_stub_, request, &v1::AggregationService::Stub::AsyncLeave);
  EXPECT_TRUE(OthersAreAnswered());
  stuck_.Release();
}

TEST_F(RpcStallTest, Join) {
  v1::JoinRequest request;
  request.set_session("stuck");
  request.set_world_size(1);
  request.set_start_id(1);
  request.set_min_protocol_version(1);
  request.set_max_protocol_version(1);
  const auto call = Begin(*aggregation_stub_, request, &v1::AggregationService::Stub::AsyncJoin);
  EXPECT_TRUE(OthersAreAnswered());
  stuck_.Release();
}

TEST_F(RpcStallTest, GetSession) {
  v1::GetSessionRequest request;
  request.set_session("stuck");
  const auto call = Begin(*admin_stub_, request, &v1::AdminService::Stub::AsyncGetSession);
  EXPECT_TRUE(OthersAreAnswered());
  stuck_.Release();
}

TEST_F(RpcStallTest, ListSessions) {
  const auto call =
      Begin(*admin_stub_, v1::ListSessionsRequest(), &v1::AdminService::Stub::AsyncListSessions);
  EXPECT_TRUE(OthersAreAnswered());
  stuck_.Release();
}

TEST_F(RpcStallTest, Watch) {
  grpc::ClientContext context;
  v1::WatchRequest request;
  request.set_session("stuck");
  const auto watch = aggregation_stub_->Watch(&context, request);
  EXPECT_TRUE(OthersAreAnswered());
  stuck_.Release();
  context.TryCancel();
  watch->Finish();
}

TEST_F(RpcStallTest, Hello) {
  grpc::ClientContext context;
  const auto stream = aggregation_stub_->Exchange(&context);
  v1::Frame frame;
  frame.mutable_header()->mutable_hello()->set_token(stuck_.token());
  frame.mutable_header()->mutable_hello()->set_start_id(StuckSession::kStartId);
  EXPECT_TRUE(stream->Write(frame));
  EXPECT_TRUE(OthersAreAnswered());
  stuck_.Release();
  context.TryCancel();
  stream->Finish();
}

TEST_F(RpcStallTest, Export) {
  grpc::ClientContext context;
  v1::ExportStateRequest request;
  request.set_session("stuck");
  const auto reader = admin_stub_->ExportState(&context, request);
  EXPECT_TRUE(OthersAreAnswered());
  stuck_.Release();
  context.TryCancel();
  reader->Finish();
}

TEST_F(RpcStallTest, Import) {
  grpc::ClientContext context;
  v1::ImportStateResponse response;
  const auto writer = admin_stub_->ImportState(&context, &response);
  v1::ImportStateRequest request;
  request.set_session("stuck");
  EXPECT_TRUE(writer->Write(request));
  EXPECT_TRUE(OthersAreAnswered());
  stuck_.Release();
  context.TryCancel();
  writer->Finish();
}

}  // namespace
}  // namespace gradwire::server
