#include "tests/bench/ladder/raw_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>

namespace gradwire::bench {
namespace {

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

bool IsUnix(const std::string& address) { return address.rfind("unix:", 0) == 0; }

Address Parse(const std::string& text) {
  Address address;
  if (IsUnix(text)) {
    auto& un = reinterpret_cast<sockaddr_un&>(address.storage);
    un.sun_family = AF_UNIX;
    const std::string path = text.substr(5);
    if (path.size() >= sizeof un.sun_path) SocketDies(path + " is too long for a socket");
    std::memcpy(un.sun_path, path.c_str(), path.size() + 1);
    address.length = sizeof un;
    return address;
  }
  auto& in = reinterpret_cast<sockaddr_in&>(address.storage);
  const std::size_t colon = text.rfind(':');
  in.sin_family = AF_INET;
  in.sin_port = htons(static_cast<std::uint16_t>(std::stoi(text.substr(colon + 1))));
  if (inet_pton(AF_INET, text.substr(0, colon).c_str(), &in.sin_addr) != 1) {
    SocketDies(text + " is no address");
  }
  address.length = sizeof in;
  return address;
}

UniqueFd MakeSocket(const std::string& address) {
  UniqueFd fd(socket(IsUnix(address) ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) SocketDies("no socket");
  return fd;
}

void Prepare(int fd, const std::string& address, int send_buffer) {
  const int on = 1;
  if (!IsUnix(address)) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (send_buffer > 0) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer);
  const timeval timeout{.tv_sec = kSocketTimeoutMs / 1000, .tv_usec = 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
}

std::string Bound(int fd, const std::string& listen) {
  if (IsUnix(listen)) return listen;
  sockaddr_in in{};
  socklen_t length = sizeof in;
  getsockname(fd, reinterpret_cast<sockaddr*>(&in), &length);
  return listen.substr(0, listen.rfind(':') + 1) + std::to_string(ntohs(in.sin_port));
}

std::size_t Moved(ssize_t count) {
  if (count > 0) return static_cast<std::size_t>(count);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  if (count < 0) SocketDies(std::strerror(errno));
  std::exit(0);  // the other end is done
}

}  // namespace

void SocketDies(const std::string& what) {
  std::fprintf(stderr, "bench: raw socket: %s\n", what.c_str());
  std::_Exit(1);
}

std::vector<UniqueFd> AcceptAll(const std::string& listen_on, std::size_t count, int send_buffer) {
  Address address = Parse(listen_on);
  const UniqueFd listener = MakeSocket(listen_on);
  if (bind(listener.get(), address.get(), address.length) != 0 || listen(listener.get(), 16) != 0) {
    SocketDies("cannot listen on " + listen_on);
  }
  std::cout << Bound(listener.get(), listen_on) << std::endl;
  std::vector<UniqueFd> accepted;
  while (accepted.size() < count) {
    pollfd ready{.fd = listener.get(), .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, kSocketTimeoutMs) <= 0) SocketDies("nobody connects");
    UniqueFd fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd.valid()) SocketDies("cannot accept");
    Prepare(fd.get(), listen_on, send_buffer);
    accepted.push_back(std::move(fd));
  }
  return accepted;
}

UniqueFd ConnectTo(const std::string& address, int send_buffer) {
  Address to = Parse(address);
  UniqueFd fd = MakeSocket(address);
  Prepare(fd.get(), address, send_buffer);
  if (connect(fd.get(), to.get(), to.length) != 0) SocketDies("cannot connect to " + address);
  return fd;
}

void SendAll(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    iovec part{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
    const ssize_t sent = writev(fd, &part, 1);
    if (sent <= 0) SocketDies("cannot send");
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
}

void ReceiveAll(int fd, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = recv(fd, bytes.data(), bytes.size(), 0);
    if (got < 0) SocketDies("nothing comes");
    bytes = bytes.subspan(Moved(got));
  }
}

std::size_t SendSome(int fd, std::span<const std::byte> bytes) {
  return Moved(send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL));
}

std::size_t ReceiveSome(int fd, std::span<std::byte> bytes) {
  return Moved(recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT));
}

}  // namespace gradwire::bench
