// Listening sockets, for the addresses of `--listen`.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace gradwire::server {

// Checks "host:port", "[v6 address]:port" or "unix:/path". Returns InvalidArgument with the allowed
// forms, or FailedPrecondition if other hosts can reach the address and `others_allowed` is false.
// Resolves host names.
absl::Status CheckListenAddress(const std::string& address, bool others_allowed);

// Whether the address is that of a unix socket.
bool IsUnixAddress(const std::string& address);

// One listening socket. The destructor removes its file, unless
// another process has replaced it.
class Listener {
 public:
  // A name with several addresses gives several listeners. The file of a unix socket is replaced
  // only if no process answers on it; `mode` says which users may open it.
  static absl::StatusOr<std::vector<Listener>> Open(const std::string& address, mode_t mode = 0600);

  Listener(Listener&&) noexcept = default;
  Listener& operator=(Listener&&) = delete;
  ~Listener();

  int fd() const { return fd_.get(); }
  bool is_unix() const { return !path_.empty(); }
  // With the actual port: "127.0.0.1:41234", "[::1]:41234", "unix:/path".
  const std::string& address() const { return address_; }

 private:
  Listener() = default;
  static absl::StatusOr<Listener> OpenUnix(const std::string& path, mode_t mode);

  UniqueFd fd_;
  std::string address_;
  std::string path_;  // of a unix socket; empty after a move
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace gradwire::server
