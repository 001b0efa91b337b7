// Listening sockets: what `--listen` names.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace gradwire::server {

// "host:port", "[v6 address]:port" or "unix:/path". InvalidArgument says what is allowed, and
// FailedPrecondition that an address other hosts can reach needs `insecure`. Looks names up.
absl::Status CheckListenAddress(const std::string& address, bool insecure);

// Whether it names a unix socket.
bool IsUnixAddress(const std::string& address);

// One listening socket. A unix socket has mode 0600; its file goes with the object, unless somebody
// else has put another one there.
class Listener {
 public:
  // A name with several addresses gives several listeners. A unix socket's file is replaced only if
  // nobody answers on it.
  static absl::StatusOr<std::vector<Listener>> Open(const std::string& address);

  Listener(Listener&&) noexcept = default;
  Listener& operator=(Listener&&) = delete;
  ~Listener();

  int fd() const { return fd_.get(); }
  bool is_unix() const { return !path_.empty(); }
  // With the port that was taken: "127.0.0.1:41234", "[::1]:41234", "unix:/path".
  const std::string& address() const { return address_; }

 private:
  Listener() = default;
  static absl::StatusOr<Listener> OpenUnix(const std::string& path);

  UniqueFd fd_;
  std::string address_;
  std::string path_;  // of a unix socket; empty after a move
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace gradwire::server
