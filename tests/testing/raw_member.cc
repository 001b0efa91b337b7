#include "tests/testing/raw_member.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "proto/wire/proto_conversion.h"
#include "proto/wire/status.h"

namespace gradwire::testing {
namespace {

std::unique_ptr<grpc::ClientContext> MakeContext() {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() +
                        absl::ToChronoNanoseconds(RawMember::kTimeout));
  return context;
}

// A connection of its own.
std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

RawMember::RawMember(const std::string& address) : RawMember(Connect(address)) {}

RawMember::RawMember(std::shared_ptr<grpc::Channel> channel)
    : channel_(std::move(channel)), stub_(v1::AggregationService::NewStub(channel_)) {}

RawMember::~RawMember() {
  if (stream_ == nullptr) return;
  Cancel();
  Finish().IgnoreError();
}

v1::JoinRequest RawMember::MakeJoin(const ClientOptions& options) {
  static std::atomic<std::uint64_t> next_start_id = 0x7261770000000001;
  v1::JoinRequest request;
  request.set_min_protocol_version(1);
  request.set_max_protocol_version(1);
  request.set_session(options.session);
  request.set_world_size(options.world_size);
  request.set_rank(options.rank);
  request.set_start_id(next_start_id++);
  *request.mutable_hook() = wire::ToProto(options.hook);
  for (const ParameterSpec& spec : options.parameters)
    *request.add_manifest() = wire::ToProto(spec);
  *request.mutable_join_timeout() = wire::ToProto(options.join_timeout);
  *request.mutable_step_timeout() = wire::ToProto(options.step_timeout);
  return request;
}

absl::StatusOr<v1::JoinResponse> RawMember::Join(const v1::JoinRequest& request) {
  const auto context = MakeContext();
  v1::JoinResponse response;
  if (grpc::Status status = stub_->Join(context.get(), request, &response); !status.ok()) {
    return wire::FromGrpc(status);
  }
  return response;
}

absl::Status RawMember::Leave(const std::string& token, std::uint64_t start_id) {
  const auto context = MakeContext();
  v1::LeaveRequest request;
  request.set_token(token);
  request.set_start_id(start_id);
  v1::LeaveResponse response;
  return wire::FromGrpc(stub_->Leave(context.get(), request, &response));
}

void RawMember::OpenStream() {
  context_ = MakeContext();
  stream_ = stub_->Exchange(context_.get());
}

void RawMember::OpenBulk() {
  context_ = MakeContext();
  stream_ = stub_->ExchangeBulk(context_.get());
}

bool RawMember::Send(const v1::Frame& frame) { return stream_->Write(frame); }

std::optional<v1::Frame> RawMember::Read() {
  v1::Frame frame;
  if (!stream_->Read(&frame)) return std::nullopt;
  return frame;
}

std::optional<v1::Frame> RawMember::ReadUntil(v1::Header::BodyCase kind) {
  while (auto frame = Read()) {
    if (frame->header().body_case() == kind) return frame;
    if (frame->header().has_failure()) return std::nullopt;
  }
  return std::nullopt;
}

absl::Status RawMember::Finish() {
  const absl::Status status = wire::FromGrpc(stream_->Finish());
  stream_.reset();
  return status;
}

void RawMember::Cancel() { context_->TryCancel(); }

absl::StatusOr<v1::JoinResponse> RawMember::Begin(const ClientOptions& options) {
  const v1::JoinRequest request = MakeJoin(options);
  absl::StatusOr<v1::JoinResponse> joined = Join(request);
  if (!joined.ok()) return joined;
  OpenStream();
  v1::Frame hello;
  hello.mutable_header()->mutable_hello()->set_token(joined->token());
  hello.mutable_header()->mutable_hello()->set_start_id(request.start_id());
  hello.mutable_header()->mutable_hello()->set_step(joined->next_step());
  if (!Send(hello)) return Finish();
  return joined;
}

absl::StatusOr<v1::RoundId> RawMember::Announce(const v1::JoinResponse& joined,
                                                const std::vector<std::uint32_t>& parameters,
                                                std::uint64_t numel) {
  v1::Frame frame;
  v1::Announce* announce = frame.mutable_header()->mutable_announce();
  announce->set_step(joined.next_step());
  announce->set_generation(joined.generation());
  for (const std::uint32_t parameter : parameters) announce->add_parameters(parameter);
  v1::Segment* segment = announce->add_rounds()->add_segments();
  segment->set_dtype(v1::DATA_TYPE_FLOAT32);
  segment->set_numel(numel);
  segment->set_op(v1::REDUCE_OP_SUM);
  Send(frame);
  const auto grant = ReadUntil(v1::Header::kGrant);
  if (!grant) return absl::AbortedError("no grant came");
  return grant->header().grant().id();
}

absl::Status RawMember::AwaitFailure() {
  while (auto frame = Read()) {
    if (!frame->header().has_failure()) continue;
    const v1::Failure& failure = frame->header().failure();
    return {static_cast<absl::StatusCode>(failure.code()), failure.message()};
  }
  return Finish();
}

}  // namespace gradwire::testing
