// How this daemon ends a call.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/status.h"

namespace gradwire::server {

// gRPC sends a status message as a header, and peers refuse headers above 8 KiB: a long one is cut.
inline grpc::Status ToShortGrpc(const absl::Status& status) {
  constexpr std::size_t kMaxMessage = 2048;
  if (status.message().size() <= kMaxMessage) return wire::ToGrpc(status);
  return wire::ToGrpc(
      absl::Status(status.code(), absl::StrCat(status.message().substr(0, kMaxMessage), " …")));
}

inline grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                        const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToShortGrpc(status));
  return reactor;
}

}  // namespace gradwire::server
