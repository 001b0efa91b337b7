#include "server/net/listener.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "server/net/receive_buffer.h"

namespace gradwire::server {
namespace {

constexpr int kBacklog = 512;
const std::string kUnixPrefix = "unix:";

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

absl::Status SystemError(const std::string& what, int error) {
  return Coded(ErrorCode::kListen,
               absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(error))));
}

absl::StatusOr<std::string> UnixPath(const std::string& address) {
  std::string path = address.substr(kUnixPrefix.size());
  // gRPC's URI form: unix:///path is the absolute path /path.
  if (path.rfind("///", 0) == 0) path.erase(0, 2);
  if (path.empty() || path.size() >= sizeof(sockaddr_un::sun_path)) {
    return Coded(ErrorCode::kListenAddress,
                 absl::InvalidArgumentError(absl::StrCat(
                     "listen address \"", address, "\": the path of a unix socket has 1 to ",
                     sizeof(sockaddr_un::sun_path) - 1, " bytes")));
  }
  return path;
}

sockaddr_un UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

const sockaddr* Generic(const void* address) { return static_cast<const sockaddr*>(address); }

absl::StatusOr<Addresses> Resolve(const std::string& address) {
  const auto bad = [&](const std::string& why) {
    return Coded(ErrorCode::kListenAddress,
                 absl::InvalidArgumentError(
                     absl::StrCat("listen address \"", address, "\": ", why,
                                  "; allowed are host:port, [v6]:port and unix:/path")));
  };
  // The last colon precedes the port. A v6 address without brackets would be ambiguous, so it is
  // refused below.
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos) return bad("no port");
  std::string host = address.substr(0, colon);
  const std::string port = address.substr(colon + 1);
  int number = 0;
  if (!absl::SimpleAtoi(port, &number) || number < 0 || number > 65535) {
    return bad("the port must be 0 to 65535");
  }
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string::npos) {
    return bad("a v6 address goes in brackets");
  }
  if (host.empty()) return bad("no host");
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &list); error != 0) {
    return bad(gai_strerror(error));
  }
  return Addresses(list);
}

// Includes v4-mapped addresses (::ffff:127.0.0.1).
bool IsLoopback(const sockaddr* address) {
  constexpr std::uint32_t kLoopbackNet = 127;
  if (address->sa_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, address, sizeof v4);
    return ntohl(v4.sin_addr.s_addr) >> 24 == kLoopbackNet;
  }
  if (address->sa_family != AF_INET6) return false;
  sockaddr_in6 v6{};
  std::memcpy(&v6, address, sizeof v6);
  const auto& bytes = v6.sin6_addr.s6_addr;
  return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr) ||
         (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr) && bytes[12] == kLoopbackNet);
}

std::string BoundAddress(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  char host[NI_MAXHOST] = "";
  char port[NI_MAXSERV] = "";
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0 ||
      getnameinfo(Generic(&storage), length, host, sizeof host, port, sizeof port,
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "";
  }
  if (storage.ss_family == AF_INET6) return absl::StrCat("[", host, "]:", port);
  return absl::StrCat(host, ":", port);
}

absl::StatusOr<UniqueFd> OpenTcp(const addrinfo& where) {
  UniqueFd fd(socket(where.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return SystemError("socket", errno);
  const int on = 1;
  // Connections of the last daemon in TIME_WAIT would otherwise make bind fail after a restart.
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  // Without V6ONLY, [::] takes the port of IPv4 as well, and binding 0.0.0.0 fails.
  if (where.ai_family == AF_INET6) {
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  }
  if (bind(fd.get(), where.ai_addr, where.ai_addrlen) != 0) return SystemError("bind", errno);
  NarrowFromTheStart(fd.get());
  if (listen(fd.get(), kBacklog) != 0) return SystemError("listen", errno);
  return fd;
}

// Removes a socket file that an earlier daemon left behind.
absl::Status RemoveStale(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus() : SystemError(path, errno);
  }
  if (!S_ISSOCK(info.st_mode)) {
    return Coded(ErrorCode::kListen,
                 absl::UnavailableError(absl::StrCat(path, " exists and is not a socket")));
  }
  const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!probe.valid()) return SystemError("socket", errno);
  const sockaddr_un address = UnixAddress(path);
  // A non-blocking connect to a unix socket gives EAGAIN if the backlog is full: somebody listens.
  // ECONNREFUSED means that the file has outlived its process.
  if (connect(probe.get(), Generic(&address), sizeof address) == 0 || errno == EAGAIN) {
    return Coded(ErrorCode::kListen,
                 absl::UnavailableError(absl::StrCat("another process listens on ", path)));
  }
  if (errno != ECONNREFUSED) return SystemError(path, errno);
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return SystemError(path, errno);
  return absl::OkStatus();
}

}  // namespace

bool IsUnixAddress(const std::string& address) { return address.rfind(kUnixPrefix, 0) == 0; }

absl::Status CheckListenAddress(const std::string& address, bool others_allowed) {
  if (IsUnixAddress(address)) return UnixPath(address).status();
  const absl::StatusOr<Addresses> addresses = Resolve(address);
  if (!addresses.ok()) return addresses.status();
  for (const addrinfo* one = addresses->get(); one != nullptr; one = one->ai_next) {
    if (others_allowed || IsLoopback(one->ai_addr)) continue;
    return Coded(
        ErrorCode::kInsecure,
        absl::FailedPreconditionError(absl::StrCat(
            "listen address \"", address,
            "\" can be reached from other hosts, and the connection is neither encrypted nor "
            "authenticated; give --tls-cert and --tls-key, listen on 127.0.0.1 or a unix socket, "
            "or "
            "accept the risk with --insecure")));
  }
  return absl::OkStatus();
}

absl::StatusOr<Listener> Listener::OpenUnix(const std::string& path, mode_t mode) {
  if (absl::Status status = RemoveStale(path); !status.ok()) return status;
  Listener listener;
  listener.fd_ = UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener.fd_.valid()) return SystemError("socket", errno);
  const sockaddr_un where = UnixAddress(path);
  if (bind(listener.fd(), Generic(&where), sizeof where) != 0) {
    if (errno == ENOENT) {
      return Coded(ErrorCode::kListen,
                   absl::UnavailableError(absl::StrCat(path, ": its folder does not exist")));
    }
    return SystemError(path, errno);
  }
  listener.path_ = path;
  listener.address_ = absl::StrCat(kUnixPrefix, path);
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return SystemError(path, errno);
  // The destructor removes the file only if it is still this one.
  listener.device_ = info.st_dev;
  listener.inode_ = info.st_ino;
  // Nobody can connect before listen, so there is no moment with a wider mode.
  if (chmod(path.c_str(), mode) != 0) return SystemError(path, errno);
  if (listen(listener.fd(), kBacklog) != 0) return SystemError(path, errno);
  return listener;
}

absl::StatusOr<std::vector<Listener>> Listener::Open(const std::string& address, mode_t mode) {
  std::vector<Listener> listeners;
  if (IsUnixAddress(address)) {
    const absl::StatusOr<std::string> path = UnixPath(address);
    if (!path.ok()) return path.status();
    absl::StatusOr<Listener> listener = OpenUnix(*path, mode);
    if (!listener.ok()) return listener.status();
    listeners.push_back(*std::move(listener));
    return listeners;
  }
  const absl::StatusOr<Addresses> addresses = Resolve(address);
  if (!addresses.ok()) return addresses.status();
  // A name may resolve to addresses of a family that this host does not support: one that works is
  // enough.
  absl::Status last = absl::UnavailableError("no address");
  for (const addrinfo* one = addresses->get(); one != nullptr; one = one->ai_next) {
    absl::StatusOr<UniqueFd> fd = OpenTcp(*one);
    if (!fd.ok()) {
      last = fd.status();
      continue;
    }
    Listener listener;
    listener.fd_ = *std::move(fd);
    listener.address_ = BoundAddress(listener.fd());
    listeners.push_back(std::move(listener));
  }
  if (listeners.empty()) {
    return absl::Status(last.code(),
                        absl::StrCat("cannot listen on ", address, ": ", last.message()));
  }
  return listeners;
}

// Another daemon may have replaced the file since; the inode tells.
Listener::~Listener() {
  if (path_.empty()) return;
  struct stat info {};
  if (lstat(path_.c_str(), &info) == 0 && info.st_dev == device_ && info.st_ino == inode_) {
    unlink(path_.c_str());
  }
}

}  // namespace gradwire::server
