// The two calls that carry a session's state, from the caller's side.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/v1/admin.grpc.pb.h"

namespace gradwire::wire {

// The state as the bytes of a safetensors file.
absl::StatusOr<std::string> FetchState(v1::AdminService::StubInterface& stub,
                                       const std::string& session, const std::string& access_token,
                                       absl::Duration timeout);

// Returns the state's iteration. `shards` is how many daemons the caller gives this state.
absl::StatusOr<std::int64_t> ReplaceState(v1::AdminService::StubInterface& stub,
                                          const std::string& session, const std::string& state,
                                          std::uint32_t shards, const std::string& access_token,
                                          absl::Duration timeout);

}  // namespace gradwire::wire
