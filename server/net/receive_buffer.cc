#include "server/net/receive_buffer.h"

#include <sys/socket.h>

namespace gradwire::server {
namespace {

// Older C libraries do not name it.
#ifndef SO_BUF_LOCK
constexpr int SO_BUF_LOCK = 72;
#endif

// The kernel doubles it for its own use. gRPC reads as long as something comes, up to a mebibyte:
// with more than this, a peer on this host fills the buffer as fast as gRPC empties it.
constexpr int kNarrowBytes = 8 << 10;
// With what the kernel begins where nobody sets it; doubled as well.
constexpr int kUsualBytes = 64 << 10;

void Unlock(int fd) {
  const int locks = 0;
  setsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &locks, sizeof locks);
}

}  // namespace

void NarrowFromTheStart(int listener_fd) {
  // A lock would be inherited, and limit the windows of all connections for good.
  if (Narrow(listener_fd)) Unlock(listener_fd);
}

bool Narrow(int fd) {
  int locks = 0;
  socklen_t size = sizeof locks;
  return getsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &locks, &size) == 0 &&
         setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kNarrowBytes, sizeof kNarrowBytes) == 0;
}

void Widen(int fd) {
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kUsualBytes, sizeof kUsualBytes);
  Unlock(fd);
}

}  // namespace gradwire::server
