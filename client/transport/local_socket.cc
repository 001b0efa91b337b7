#include "client/transport/local_socket.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "absl/strings/str_cat.h"
#include "base/random_bytes.h"
#include "proto/wire/local_proof.h"
#include "proto/wire/memory_offer.h"

namespace gradwire::client {

std::string LocalSocket::address() const { return absl::StrCat("unix:", path); }

// A connect to a unix socket completes or fails at once, also if it is non-blocking: EAGAIN means
// that the backlog is full.
absl::StatusOr<UniqueFd> ConnectToUnixSocket(const std::string& address) {
  constexpr std::size_t kPrefix = sizeof("unix:") - 1;
  std::string path = address.substr(std::min(kPrefix, address.size()));
  if (path.rfind("///", 0) == 0) path.erase(0, 2);
  sockaddr_un where{};
  where.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof where.sun_path) {
    return absl::InvalidArgumentError(absl::StrCat("not the path of a unix socket: ", address));
  }
  std::memcpy(where.sun_path, path.c_str(), path.size() + 1);
  UniqueFd connection(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!connection.valid() ||
      connect(connection.get(), reinterpret_cast<const sockaddr*>(&where), sizeof where) != 0) {
    return absl::UnavailableError(absl::StrCat(address, ": ", std::strerror(errno)));
  }
  return connection;
}

absl::Status CheckIsSameDaemon(const LocalSocket& socket, std::uint64_t start_id,
                               std::chrono::steady_clock::time_point deadline) {
  // A relative path would be another one here than in the daemon.
  if (socket.path.empty() || socket.path.front() != '/') {
    return absl::FailedPreconditionError("the daemon names no unix socket");
  }
  std::string probe(wire::kLeastProbeBytes, '\0');
  if (absl::Status filled = FillRandom(std::as_writable_bytes(std::span(probe))); !filled.ok()) {
    return filled;
  }
  const absl::StatusOr<UniqueFd> connection = ConnectToUnixSocket(socket.address());
  if (!connection.ok()) return connection.status();
  const absl::Status sent =
      wire::SendMemoryRequest(connection->get(), {.start_id = start_id, .probe = probe});
  if (!sent.ok()) return sent;
  const auto reply = wire::ReceiveMemoryReply(connection->get(), deadline);
  if (!reply.ok()) return reply.status();
  if (!reply->status.ok()) return reply->status;
  if (wire::SameProof(reply->proof, wire::ProofOf(socket.key, probe))) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("another daemon than the one that was joined listens on ", socket.address()));
}

}  // namespace gradwire::client
