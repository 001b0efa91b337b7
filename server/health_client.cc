#include "server/health_client.h"

#include <grpcpp/generic/generic_stub.h>

#include <vector>

namespace gradwire::server {
namespace {

// The two messages of grpc.health.v1 are small enough to write and read by hand, which spares a
// copy of the .proto: field 1 of the request is the service's name, field 1 of the response the
// status.
constexpr char kServiceTag = 0x0A;
constexpr std::string::value_type kServing[] = {0x08, 0x01};
constexpr std::size_t kMaxServiceBytes = 127;  // its length is one byte

}  // namespace

grpc::Status CheckHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& service,
                         std::chrono::seconds timeout, bool* serving) {
  *serving = false;
  if (service.size() > kMaxServiceBytes) {
    return {grpc::StatusCode::INVALID_ARGUMENT, "the service's name is longer than 127 bytes"};
  }
  std::string request;
  if (!service.empty()) {
    request = std::string{kServiceTag, static_cast<char>(service.size())} + service;
  }
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(channel);
  const grpc::Slice slice(request);
  auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check",
                                          grpc::ByteBuffer(&slice, 1), &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, call.get());
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);  // ends by the deadline
  queue.Shutdown();
  if (!status.ok()) return status;
  std::vector<grpc::Slice> slices;
  if (!response.Dump(&slices).ok()) return {grpc::StatusCode::INTERNAL, "an unreadable answer"};
  std::string bytes;
  for (const grpc::Slice& part : slices) {
    bytes.append(reinterpret_cast<const char*>(part.begin()), part.size());
  }
  *serving = bytes == std::string(kServing, sizeof kServing);
  return grpc::Status::OK;
}

}  // namespace gradwire::server
