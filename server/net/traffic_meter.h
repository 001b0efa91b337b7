// Counts what the daemon took from one connection.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gradwire::server {

// Thread-safe.
class TrafficMeter {
 public:
  // A call has begun, and ended.
  void OnCall() {
    Explain(kCallBytes);
    calls_.fetch_add(1, std::memory_order_relaxed);
    open_calls_.fetch_add(1, std::memory_order_relaxed);
  }
  void OnCallEnd() { open_calls_.fetch_sub(1, std::memory_order_relaxed); }
  // A message of this size was handed to a call.
  void OnTaken(std::size_t bytes) {
    Explain(bytes + bytes / 32 + kMessageBytes);
    taken_.fetch_add(1, std::memory_order_relaxed);
  }
  // A message was sent, which the peer acknowledges with window updates.
  void OnSent() { Explain(kMessageBytes); }

  // A member's stream, or its bulk lane, begins and ends on this connection.
  void BeginMember() { members_.fetch_add(1, std::memory_order_relaxed); }
  void EndMember() { members_.fetch_sub(1, std::memory_order_relaxed); }

  // At least the bytes on the wire that brought what is counted here, with the frames of HTTP/2 and
  // the records of TLS around them.
  std::uint64_t explained() const { return explained_.load(std::memory_order_relaxed); }
  // Messages.
  std::uint64_t taken() const { return taken_.load(std::memory_order_relaxed); }
  std::uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }
  bool has_call() const { return open_calls_.load(std::memory_order_relaxed) > 0; }
  bool has_member() const { return members_.load(std::memory_order_relaxed) > 0; }

 private:
  // Headers that HTTP/2 has not seen before; and a message's own frame, record and window updates.
  static constexpr std::size_t kCallBytes = 1024;
  static constexpr std::size_t kMessageBytes = 128;

  void Explain(std::uint64_t bytes) { explained_.fetch_add(bytes, std::memory_order_relaxed); }

  std::atomic<std::uint64_t> explained_ = 0;
  std::atomic<std::uint64_t> taken_ = 0;
  std::atomic<std::uint64_t> calls_ = 0;
  std::atomic<int> open_calls_ = 0;
  std::atomic<int> members_ = 0;
};

}  // namespace gradwire::server
