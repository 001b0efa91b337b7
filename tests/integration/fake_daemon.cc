#include "tests/integration/fake_daemon.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "proto/wire/owned_payload.h"
#include "proto/wire/proto_conversion.h"

namespace gradwire::client {
namespace {

std::uint64_t DigestOf(const std::string& payload) {
  std::vector<std::byte> bytes(payload.size());
  std::transform(payload.begin(), payload.end(), bytes.begin(),
                 [](char c) { return static_cast<std::byte>(c); });
  return wire::Digest(wire::OwnedPayload::Make(std::move(bytes)).get());
}

}  // namespace

FakeDaemon::FakeDaemon(absl::Duration age, absl::Duration age_grace) {
  join_response.set_protocol_version(1);
  join_response.set_token("token");
  join_response.set_generation(7);
  join_response.set_chunk_bytes(4096);
  join_response.set_window_chunks(2);
  join_response.set_open_buckets(1);
  *join_response.mutable_token_timeout() = wire::ToProto(absl::Seconds(5));
  *join_response.mutable_heartbeat_interval() = wire::ToProto(absl::Milliseconds(50));
  *join_response.mutable_silence_timeout() = wire::ToProto(absl::Seconds(2));
  *join_response.mutable_resume_grace() = wire::ToProto(absl::Milliseconds(300));
  exchange = [this](int, Stream* stream, grpc::ServerContext*) { return Serve(stream); };
  grpc::ServerBuilder builder;
  if (age != absl::InfiniteDuration()) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                               static_cast<int>(absl::ToInt64Milliseconds(age)));
  }
  if (age_grace != absl::InfiniteDuration()) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS,
                               static_cast<int>(absl::ToInt64Milliseconds(age_grace)));
  }
  builder.AddListeningPort(address(), grpc::InsecureServerCredentials());
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
}

FakeDaemon::~FakeDaemon() { Shutdown(); }

void FakeDaemon::Shutdown() { server_->Shutdown(std::chrono::system_clock::now()); }

grpc::Status FakeDaemon::Join(grpc::ServerContext*, const v1::JoinRequest* request,
                              v1::JoinResponse* response) {
  join_request = *request;
  *response = join_response;
  return join_status;
}

grpc::Status FakeDaemon::Leave(grpc::ServerContext*, const v1::LeaveRequest*, v1::LeaveResponse*) {
  return leave();
}

grpc::Status FakeDaemon::Exchange(grpc::ServerContext* context, Stream* stream) {
  return exchange(streams_++, stream, context);
}

grpc::Status FakeDaemon::ExchangeBulk(grpc::ServerContext*, Stream* stream) {
  return exchange_bulk(bulk_lanes_++, stream);
}

void FakeDaemon::Send(Stream* stream, v1::Frame frame) {
  tamper(frame);
  stream->Write(frame);
}

grpc::Status FakeDaemon::Serve(Stream* stream, bool resumed, int frames) {
  v1::Frame in;
  std::uint64_t chunks = 0;
  for (int n = 0; frames < 0 || n < frames; ++n) {
    if (!stream->Read(&in)) return grpc::Status::OK;
    v1::Frame out;
    const v1::Header& header = in.header();
    if (header.has_hello()) {
      out.mutable_header()->mutable_welcome()->set_resumed(resumed);
      Send(stream, out);
    } else if (header.has_announce()) {
      const v1::Announce& announce = header.announce();
      if (announce.rounds().empty()) continue;  // of noop
      const std::uint64_t most = join_response.chunk_bytes();
      chunks = (announce.rounds(0).segments(0).numel() * 4 + most - 1) / most;
      out.mutable_header()->mutable_grant()->mutable_id()->set_step(announce.step());
      out.mutable_header()->mutable_grant()->mutable_id()->set_bucket(announce.parameters(0));
      Send(stream, out);
    } else if (header.has_contribution()) {
      v1::Result* result = out.mutable_header()->mutable_result();
      *result->mutable_id() = header.contribution().id();
      result->set_chunk(header.contribution().chunk());
      result->set_digest(DigestOf(in.payload()));
      out.set_payload(in.payload());
      Send(stream, out);
      if (result->chunk() + 1 < chunks) continue;
      v1::Frame done;
      done.mutable_header()->mutable_step_done()->set_step(header.contribution().id().step());
      done.mutable_header()->mutable_step_done()->set_verdict(v1::STEP_VERDICT_APPLY);
      Send(stream, done);
    } else if (header.has_heartbeat()) {
      out.mutable_header()->mutable_heartbeat();
      Send(stream, out);
    }
  }
  return {grpc::StatusCode::UNAVAILABLE, "cut by the test"};
}

}  // namespace gradwire::client
