#include "tests/cuda/nccl/communicator.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tests/cuda/emulation/shared_work.h"

namespace gradwire::stand_in {
namespace {

// In the abstract namespace: nothing stays on the disk.
socklen_t Address(const std::string& name, int rank, sockaddr_un& address) {
  const std::string path = name + "/" + std::to_string(rank);
  address = {};
  address.sun_family = AF_UNIX;
  const std::size_t bytes = std::min(path.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, path.data(), bytes);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
}

int NewSocket() { return socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }

}  // namespace

std::string& LastError() {
  static std::string text;
  return text;
}

Socket::~Socket() {
  if (descriptor_ >= 0) close(descriptor_);
}
Socket::Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

std::size_t Socket::Send(const void* from, std::size_t bytes) const {
  const ssize_t sent = send(descriptor_, from, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  return sent < 0 ? 0 : static_cast<std::size_t>(sent);
}
std::size_t Socket::Receive(void* to, std::size_t bytes) const {
  const ssize_t received = recv(descriptor_, to, bytes, MSG_DONTWAIT);
  return received < 0 ? 0 : static_cast<std::size_t>(received);
}

Communicator::Communicator(std::string name, int size, int rank, int device)
    : name_(std::move(name)), size_(size), rank_(rank), device_(device) {
  to_.resize(static_cast<std::size_t>(size));
  from_.resize(static_cast<std::size_t>(size));
}

bool Communicator::Listen() {
  if (listening_.is_open()) return true;
  sockaddr_un address;
  const socklen_t length = Address(name_, rank_, address);
  Socket socket(NewSocket());
  if (bind(socket.descriptor(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(socket.descriptor(), size_) != 0) {
    Fail(Result::kSystemError,
         "rank " + std::to_string(rank_) + " cannot listen: " + std::strerror(errno));
    return false;
  }
  listening_ = std::move(socket);
  return true;
}

// Each member begins with its rank.
void Communicator::Accept() {
  for (;;) {
    Socket socket(accept4(listening_.descriptor(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.is_open()) break;
    accepted_.push_back(std::move(socket));
  }
  std::erase_if(accepted_, [&](Socket& socket) {
    std::uint8_t rank = 0;
    if (socket.Receive(&rank, 1) == 0) return false;
    if (rank < size_) from_[rank] = std::move(socket);
    return true;
  });
}

bool Communicator::Connect() {
  if (error_ != Result::kSuccess || !Listen()) return false;
  Accept();
  bool all = true;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    Socket& to = to_[static_cast<std::size_t>(peer)];
    if (!to.is_open()) {
      sockaddr_un address;
      const socklen_t length = Address(name_, peer, address);
      Socket socket(NewSocket());
      const auto rank = static_cast<std::uint8_t>(rank_);
      if (connect(socket.descriptor(), reinterpret_cast<sockaddr*>(&address), length) == 0 &&
          socket.Send(&rank, 1) == 1) {
        to = std::move(socket);
      }
    }
    all = all && to.is_open() && from(peer).is_open();
  }
  return all;
}

void Communicator::Fail(Result result, const std::string& text) {
  if (error_ != Result::kSuccess) return;
  error_ = result;
  LastError() = text;
}

void Communicator::Abort() {
  aborted_ = true;
  listening_ = Socket();
  accepted_.clear();
  for (Socket& socket : to_) socket = Socket();
  for (Socket& socket : from_) socket = Socket();
}

Group::Group(std::shared_ptr<Communicator> communicator, const std::vector<Transfer>& transfers)
    : communicator_(std::move(communicator)) {
  sends_.resize(static_cast<std::size_t>(communicator_->size()));
  receives_.resize(static_cast<std::size_t>(communicator_->size()));
  for (const Transfer& transfer : transfers) {
    auto& lanes = transfer.send ? sends_ : receives_;
    lanes[static_cast<std::size_t>(transfer.peer)].open.push_back(transfer);
  }
}

bool Group::Advance() {
  if (communicator_->aborted()) return true;
  if (communicator_->error() != Result::kSuccess) return false;
  bool done = true;
  for (int peer = 0; peer < communicator_->size(); ++peer) {
    const auto lane = static_cast<std::size_t>(peer);
    done = Send(peer, sends_[lane]) && done;
    done = Receive(peer, receives_[lane]) && done;
  }
  return done;
}

bool Group::Send(int peer, Lane& lane) {
  const Socket& socket = communicator_->to(peer);
  while (!lane.open.empty()) {
    const Transfer& transfer = lane.open.front();
    if (!emulation::IsThere(transfer.memory, transfer.bytes, "a send")) return false;
    lane.size = transfer.bytes;
    const auto* size = reinterpret_cast<const std::byte*>(&lane.size);
    lane.size_done += socket.Send(size + lane.size_done, sizeof(lane.size) - lane.size_done);
    if (lane.size_done < sizeof(lane.size)) return false;
    lane.done += socket.Send(transfer.memory + lane.done, transfer.bytes - lane.done);
    if (lane.done < transfer.bytes) break;
    lane.open.pop_front();
    lane.size_done = lane.done = 0;
    ++lane.unconfirmed;
  }
  char confirmation = 0;
  while (lane.unconfirmed > 0 && socket.Receive(&confirmation, 1) == 1) --lane.unconfirmed;
  return lane.open.empty() && lane.unconfirmed == 0;
}

bool Group::Receive(int peer, Lane& lane) {
  const Socket& socket = communicator_->from(peer);
  const char confirmation = 1;
  while (!lane.open.empty() || lane.unconfirmed > 0) {
    if (lane.unconfirmed > 0) {
      if (socket.Send(&confirmation, 1) == 0) return false;
      --lane.unconfirmed;
      continue;
    }
    const Transfer& transfer = lane.open.front();
    if (!emulation::IsThere(transfer.memory, transfer.bytes, "a receive")) return false;
    auto* size = reinterpret_cast<std::byte*>(&lane.size);
    lane.size_done += socket.Receive(size + lane.size_done, sizeof(lane.size) - lane.size_done);
    if (lane.size_done < sizeof(lane.size)) return false;
    if (lane.size != transfer.bytes) {
      const std::string text = "rank " + std::to_string(peer) + " sends " +
                               std::to_string(lane.size) + " bytes and rank " +
                               std::to_string(communicator_->rank()) + " receives " +
                               std::to_string(transfer.bytes);
      emulation::Report(text);
      communicator_->Fail(Result::kInvalidUsage, text);
      return false;
    }
    lane.done += socket.Receive(transfer.memory + lane.done, transfer.bytes - lane.done);
    if (lane.done < transfer.bytes) return false;
    lane.open.pop_front();
    lane.size_done = lane.done = 0;
    ++lane.unconfirmed;
  }
  return true;
}

}  // namespace gradwire::stand_in
