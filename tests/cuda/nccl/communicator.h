// Members of a communicator of the stand-in for NCCL: processes of this machine that are connected
// with each other by sockets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace gradwire::stand_in {

// ncclResult_t.
enum class Result : int {
  kSuccess = 0,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

// Closes it.
class Socket {
 public:
  explicit Socket(int descriptor = -1) : descriptor_(descriptor) {}
  ~Socket();
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;

  bool is_open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  // Bytes that went, without waiting. An error, or a peer that has gone, is 0: NCCL does not notice
  // either.
  std::size_t Send(const void* from, std::size_t bytes) const;
  std::size_t Receive(void* to, std::size_t bytes) const;

 private:
  int descriptor_ = -1;
};

// Bytes of device memory on their way to or from a member.
struct Transfer {
  bool send = false;
  int peer = 0;
  std::byte* memory = nullptr;
  std::size_t bytes = 0;
};

class Communicator {
 public:
  // `name` is the same for all members and for nobody else.
  Communicator(std::string name, int size, int rank, int device);

  // Gets on with connecting. Returns whether all members are there.
  bool Connect();

  int size() const { return size_; }
  int rank() const { return rank_; }
  int device() const { return device_; }

  // Final, the first counts. Open and later transfers never end.
  void Fail(Result result, const std::string& text);
  Result error() const { return error_; }

  // Ends all transfers, as they are.
  void Abort();
  bool aborted() const { return aborted_; }

  // A member sends on a socket of its own and hears there what has arrived.
  const Socket& to(int peer) const { return to_[static_cast<std::size_t>(peer)]; }
  const Socket& from(int peer) const { return from_[static_cast<std::size_t>(peer)]; }

 private:
  bool Listen();
  void Accept();

  const std::string name_;
  const int size_;
  const int rank_;
  const int device_;
  Result error_ = Result::kSuccess;
  bool aborted_ = false;
  Socket listening_;
  std::vector<Socket> accepted_;  // of members that have not said who they are
  std::vector<Socket> to_;
  std::vector<Socket> from_;
};

// The transfers of one group. Complete once every peer has done its part: the latest time that NCCL
// allows, as it may keep small messages in buffers of its own.
class Group {
 public:
  Group(std::shared_ptr<Communicator> communicator, const std::vector<Transfer>& transfers);

  // Work of a stream: see tests/cuda/emulation/shared_work.h.
  bool Advance();

 private:
  // What one member sends to, or receives from, another, in order.
  struct Lane {
    std::deque<Transfer> open;
    std::uint64_t size = 0;     // what goes first: the bytes of the first transfer
    std::size_t size_done = 0;  // bytes of `size` that went
    std::size_t done = 0;       // bytes of the first transfer that went
    std::size_t unconfirmed = 0;
  };

  bool Send(int peer, Lane& lane);
  bool Receive(int peer, Lane& lane);

  const std::shared_ptr<Communicator> communicator_;
  std::vector<Lane> sends_;
  std::vector<Lane> receives_;
};

// Text of the last error, as ncclGetLastError returns it.
std::string& LastError();

}  // namespace gradwire::stand_in
