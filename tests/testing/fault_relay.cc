#include "tests/testing/fault_relay.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gradwire::testing {
namespace {

constexpr int kPollMs = 20;

absl::StatusOr<sockaddr_un> Address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is too long for a unix socket"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

absl::StatusOr<int> Connect(const std::string& path) {
  const auto address = Address(path);
  if (!address.ok()) return address.status();
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::InternalError(std::strerror(errno));
  if (connect(fd, reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) == 0) return fd;
  const std::string error = std::strerror(errno);
  close(fd);
  return absl::UnavailableError(error);
}

bool WriteAll(int fd, const char* data, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t written = send(fd, data, bytes, MSG_NOSIGNAL);
    if (written <= 0) return false;
    data += written;
    bytes -= static_cast<std::size_t>(written);
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<FaultRelay>> FaultRelay::Start(std::string path,
                                                              std::string target) {
  const auto address = Address(path);
  if (!address.ok()) return address.status();
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0) return absl::InternalError(std::strerror(errno));
  if (bind(listener, reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0 ||
      listen(listener, 64) != 0) {
    const std::string error = absl::StrCat(path, ": ", std::strerror(errno));
    close(listener);
    return absl::InternalError(error);
  }
  return std::unique_ptr<FaultRelay>(new FaultRelay(std::move(path), std::move(target), listener));
}

FaultRelay::FaultRelay(std::string path, std::string target, int listener)
    : path_(std::move(path)), target_(std::move(target)), listener_(listener) {
  acceptor_ = std::thread([this] { Accept(); });
}

FaultRelay::~FaultRelay() {
  stopping_ = true;
  acceptor_.join();
  CutNow();
  std::vector<std::thread> pumps;
  {
    MutexLock lock(mutex_);
    pumps.swap(pumps_);
  }
  for (std::thread& pump : pumps) pump.join();
  {
    MutexLock lock(mutex_);
    for (const auto& connection : connections_) {
      close(connection->member);
      close(connection->daemon);
    }
  }
  close(listener_);
  unlink(path_.c_str());
}

void FaultRelay::Accept() {
  while (!stopping_) {
    pollfd ready{.fd = listener_, .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, kPollMs) <= 0) continue;
    const int member = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (member < 0) continue;
    const auto daemon = refusing_ ? absl::UnavailableError("refused") : Connect(target_);
    if (!daemon.ok()) {
      close(member);
      continue;
    }
    MutexLock lock(mutex_);
    connections_.push_back(std::make_unique<Connection>());
    Connection& connection = *connections_.back();
    connection.member = member;
    connection.daemon = *daemon;
    for (const Direction direction : {Direction::kUp, Direction::kDown}) {
      pumps_.emplace_back([this, &connection, direction] { Pump(connection, direction); });
    }
  }
}

void FaultRelay::Pump(Connection& connection, Direction direction) {
  const int from = direction == Direction::kUp ? connection.member : connection.daemon;
  while (!stopping_) {
    if (Stalls(connection)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(kPollMs));
      continue;
    }
    pollfd ready{.fd = from, .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, kPollMs) <= 0) continue;
    if (Stalls(connection)) continue;
    if (!PassOn(connection, direction)) break;
  }
  Cut(connection);
}

void FaultRelay::Cut(const Connection& connection) {
  shutdown(connection.member, SHUT_RDWR);
  shutdown(connection.daemon, SHUT_RDWR);
}

// What has come, with at most one descriptor. False: the connection is over.
bool FaultRelay::PassOn(Connection& connection, Direction direction) {
  const bool up = direction == Direction::kUp;
  const int from = up ? connection.member : connection.daemon;
  const int to = up ? connection.daemon : connection.member;
  std::array<char, 64 * 1024> buffer;
  const bool trickles = trickling_ && up;
  iovec piece{.iov_base = buffer.data(), .iov_len = trickles ? 1 : buffer.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = passing_ ? control.size() : 0;
  const ssize_t bytes = recvmsg(from, &header, MSG_CMSG_CLOEXEC);
  if (bytes <= 0 || Count(bytes)) return false;
  const std::string_view text(buffer.data(), static_cast<std::size_t>(bytes));
  if (up && text.find("/ExchangeBulk") != text.npos) {
    connection.is_bulk = true;
    if (refusing_bulk_) {
      ++refused_bulk_;
      return false;
    }
    while (Stalls(connection) && !stopping_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(kPollMs));
    }
  }
  if (connection.is_bulk) bulk_bytes_ += bytes;
  if (trickles) std::this_thread::sleep_for(std::chrono::milliseconds(kTrickleMs));
  if (header.msg_controllen == 0) {
    return WriteAll(to, buffer.data(), static_cast<std::size_t>(bytes));
  }
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof descriptor);
  piece.iov_len = static_cast<std::size_t>(bytes);
  const ssize_t sent = sendmsg(to, &header, MSG_NOSIGNAL);
  close(descriptor);
  return sent == bytes;
}

bool FaultRelay::Count(std::int64_t bytes) {
  bytes_ += bytes;
  if (until_cut_ < 0 || until_cut_.fetch_sub(bytes) > bytes) return false;
  if (cutting_.exchange(true)) return true;
  until_cut_ = -1;
  CutNow();
  cutting_ = false;
  return true;
}

void FaultRelay::CutNow() {
  MutexLock lock(mutex_);
  for (const auto& connection : connections_) Cut(*connection);
  ++cuts_;
}

void FaultRelay::CutBulk() {
  MutexLock lock(mutex_);
  for (const auto& connection : connections_) {
    if (connection->is_bulk) Cut(*connection);
  }
  ++cuts_;
}

}  // namespace gradwire::testing
