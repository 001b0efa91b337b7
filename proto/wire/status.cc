#include "proto/wire/status.h"

#include <string>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace gradwire::wire {
namespace {

// gRPC introduces a failed connection twice before it names the address and the reason:
// "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:29610: ...".
std::string WithoutIntroduction(absl::string_view message) {
  if (absl::ConsumePrefix(&message, "failed to connect to all addresses; last error: ")) {
    if (!absl::ConsumePrefix(&message, "UNKNOWN: ")) absl::ConsumePrefix(&message, "UNAVAILABLE: ");
  }
  return std::string(message);
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const int code = static_cast<int>(status.error_code());
  const bool known = code > 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return {known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
          WithoutIntroduction(status.error_message())};
}

}  // namespace gradwire::wire
