#include "client/examples/demo_daemon.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gradwire/v1/admin.grpc.pb.h"

namespace demo {
namespace {

constexpr int kCallTimeoutMs = 10'000;

std::unique_ptr<gradwire::v1::AdminService::Stub> Connect(const std::string& address) {
  return gradwire::v1::AdminService::NewStub(
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
}

void SetTimeout(grpc::ClientContext& context, int timeout_ms) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(timeout_ms));
  context.set_wait_for_ready(true);
}

absl::Status ToStatus(const std::string& what, const grpc::Status& status) {
  return {static_cast<absl::StatusCode>(status.error_code()),
          absl::StrCat(what, ": ", status.error_message())};
}

}  // namespace

absl::StatusOr<std::string> ServerVersion(const std::string& address, int timeout_ms) {
  grpc::ClientContext context;
  SetTimeout(context, timeout_ms);
  gradwire::v1::GetServerResponse response;
  const grpc::Status status = Connect(address)->GetServer(&context, {}, &response);
  if (!status.ok()) return ToStatus("GetServer", status);
  return response.version();
}

absl::StatusOr<SessionCounters> Counters(const std::string& address, const std::string& session) {
  grpc::ClientContext context;
  SetTimeout(context, kCallTimeoutMs);
  gradwire::v1::GetSessionRequest request;
  request.set_session(session);
  gradwire::v1::GetSessionResponse response;
  const grpc::Status status = Connect(address)->GetSession(&context, request, &response);
  if (!status.ok()) return ToStatus(absl::StrCat("GetSession ", session), status);
  return SessionCounters{.steps_applied = response.session().steps_applied_total(),
                         .wire_bytes = response.session().contribution_bytes_total(),
                         .gradient_bytes = response.session().gradient_bytes()};
}

}  // namespace demo
