#include "tests/bench/grpc_stream.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>
#include <utility>

#include "tests/bench/grpc_transfer.h"

namespace gradwire::bench {
namespace {

constexpr int kMiB = 1 << 20;
constexpr int kMaxMessage = 32 * kMiB;

template <typename Set>
void SetArguments(const ChannelSettings& settings, Set&& set) {
  if (settings.bulk) {
    set(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kMiB);
    set(GRPC_ARG_TCP_READ_CHUNK_SIZE, kMiB);
    set(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 4 * kMiB);
    set(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, 4 * kMiB);
  }
  set(GRPC_ARG_HTTP2_BDP_PROBE, settings.bdp_probe ? 1 : 0);
}

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::shared_ptr<grpc::ServerCredentials> ServerCredentials(const std::string& folder) {
  if (folder.empty()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = ReadFile(folder + "/ca.pem");
  options.pem_key_cert_pairs = {
      {ReadFile(folder + "/server.key"), ReadFile(folder + "/server.pem")}};
  return grpc::SslServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> ClientCredentials(const std::string& folder) {
  if (folder.empty()) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials({ReadFile(folder + "/ca.pem"), ReadFile(folder + "/client.key"),
                               ReadFile(folder + "/client.pem")});
}

// The address with the port that was chosen for it.
std::string Bound(const std::string& listen, int port) {
  if (listen.rfind("unix:", 0) == 0) return listen;
  return listen.substr(0, listen.rfind(':') + 1) + std::to_string(port);
}

}  // namespace

Transfer::Transfer(const StreamPlan& plan)
    : plan_(plan),
      source_(plan.copy ? plan.bytes : plan.message_bytes, std::byte{1}),
      target_(plan.copy ? plan.bytes : 0) {}

void Transfer::Begin() {
  sent_ = received_ = 0;
  acknowledged_ = false;
}

bool Transfer::Next(grpc::ByteBuffer& message) {
  if (sent_ == plan_.bytes) return false;
  if (!plan_.drop && sent_ - received_ >= plan_.in_flight * plan_.message_bytes) return false;
  const std::size_t size = std::min(plan_.message_bytes, plan_.bytes - sent_);
  const std::byte* from = source_.data() + (plan_.copy ? sent_ : 0);
  grpc::Slice slice(from, size, grpc::Slice::STATIC_SLICE);
  message = grpc::ByteBuffer(&slice, 1);
  sent_ += size;
  return true;
}

void Transfer::Take(grpc::ByteBuffer& message) {
  acknowledged_ = true;
  if (plan_.copy) {
    std::vector<grpc::Slice> slices;
    message.Dump(&slices);
    for (const grpc::Slice& slice : slices) {
      std::memcpy(target_.data() + received_, slice.begin(), slice.size());
      received_ += slice.size();
    }
  } else {
    received_ += message.Length();
  }
  message.Clear();
}

bool Answers::Answer(grpc::ByteBuffer& incoming, grpc::ByteBuffer& answer) {
  if (acknowledge_every_ == 0) {
    answer = incoming;  // by reference; the client bounds how many
    incoming.Clear();
    return true;
  }
  received_ += incoming.Length();
  incoming.Clear();
  if (received_ < acknowledge_every_) return false;
  received_ -= acknowledge_every_;
  grpc::Slice slice("1");
  answer = grpc::ByteBuffer(&slice, 1);
  return true;
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const ChannelSettings& settings) {
  grpc::ChannelArguments arguments;
  SetArguments(settings, [&](const char* name, int value) { arguments.SetInt(name, value); });
  arguments.SetMaxReceiveMessageSize(kMaxMessage);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, ClientCredentials(settings.certificates), arguments);
}

int ServeStreams(const std::string& listen, const StreamServerSettings& settings) {
  const std::unique_ptr<StreamService> service =
      settings.api == GrpcApi::kQueue ? MakeQueueService(settings) : MakeCallbackService(settings);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(listen, ServerCredentials(settings.channel.certificates), &port);
  builder.SetMaxReceiveMessageSize(kMaxMessage);
  SetArguments(settings.channel,
               [&](const char* name, int value) { builder.AddChannelArgument(name, value); });
  service->Register(builder);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  service->Start();
  std::cout << Bound(listen, port) << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
  }
  server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  service->Stop();
  return 0;
}

std::unique_ptr<StreamClient> OpenStreams(
    GrpcApi api, const std::vector<std::shared_ptr<grpc::Channel>>& channels,
    const StreamPlan& plan) {
  return api == GrpcApi::kQueue ? OpenQueueStreams(channels, plan)
                                : OpenCallbackStreams(channels, plan);
}

}  // namespace gradwire::bench
