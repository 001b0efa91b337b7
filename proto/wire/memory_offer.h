// How a member hands shared memory to its daemon: one request and one reply on a connection of its
// own to the daemon's unix socket, each with a descriptor or none. In the same way a member asks
// whose socket it is. proto/README.md has the form.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace gradwire::wire {

// The first byte of a request. A gRPC connection, HTTP/2, begins with a 'P'.
inline constexpr char kMemoryOfferByte = 'G';

struct MemoryRequest {
  std::string token{};
  std::uint64_t start_id = 0;
  std::uint64_t attachment = 0;
  std::string probe{};  // not empty: no offer, but a question who answers (local_proof.h)
  UniqueFd segment{};
};

struct MemoryReply {
  absl::Status status{};
  std::uint64_t attachment = 0;
  std::uint32_t segment = 0;
  std::string proof{};  // to a probe
  UniqueFd results{};   // the daemon's own segment, with a new attachment
};

// The sockets are stream sockets; messages are so short that they are sent and received at once, so
// that what comes in parts is refused. Errors name what is wrong with the other side's bytes.
absl::Status SendMemoryRequest(int socket, const MemoryRequest& request);
absl::StatusOr<MemoryRequest> ReceiveMemoryRequest(int socket);
absl::Status SendMemoryReply(int socket, const MemoryReply& reply);
// Waits until the deadline.
absl::StatusOr<MemoryReply> ReceiveMemoryReply(int socket,
                                               std::chrono::steady_clock::time_point deadline);

}  // namespace gradwire::wire
