// A relay between members and a daemon that breaks connections on demand.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/sync.h"

namespace gradwire::testing {

class FaultRelay {
 public:
  // Listens on the unix socket `path` and connects to the unix socket `target`.
  static absl::StatusOr<std::unique_ptr<FaultRelay>> Start(std::string path, std::string target);
  ~FaultRelay();

  FaultRelay(const FaultRelay&) = delete;
  FaultRelay& operator=(const FaultRelay&) = delete;

  std::string address() const { return "unix:" + path_; }

  // Cuts all connections once `bytes` more have passed, both directions taken together.
  void CutAfter(std::int64_t bytes) { until_cut_ = bytes; }
  void CutNow() GRADWIRE_EXCLUDES(mutex_);
  // Bytes stay where they are while this is on.
  void Stall(bool on) { stalled_ = on; }
  // Members' bytes pass one at a time while this is on, kTrickleMs apart.
  void Trickle(bool on) { trickling_ = on; }
  static constexpr int kTrickleMs = 300;
  // Descriptors that are sent along with bytes are passed on, where they would be dropped.
  void PassDescriptors(bool on) { passing_ = on; }
  // New connections are closed at once while this is on.
  void Refuse(bool on) { refusing_ = on; }

  // Of members' bulk lanes alone.
  void CutBulk() GRADWIRE_EXCLUDES(mutex_);
  void StallBulk(bool on) { stalled_bulk_ = on; }
  void RefuseBulk(bool on) { refusing_bulk_ = on; }
  std::int64_t bulk_bytes() const { return bulk_bytes_; }
  int refused_bulk() const { return refused_bulk_; }

  int cuts() const { return cuts_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  FaultRelay(std::string path, std::string target, int listener);

  // Both sockets of one, closed with the relay.
  struct Connection {
    int member = -1;
    int daemon = -1;
    std::atomic<bool> is_bulk = false;  // it has called ExchangeBulk
  };

  void Accept();
  enum class Direction : std::uint8_t { kUp, kDown };
  void Pump(Connection& connection, Direction direction);
  bool PassOn(Connection& connection, Direction direction);
  bool Stalls(const Connection& connection) const {
    return stalled_ || (stalled_bulk_ && connection.is_bulk);
  }
  static void Cut(const Connection& connection);
  bool Count(std::int64_t bytes);

  const std::string path_;
  const std::string target_;
  const int listener_;
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> stalled_ = false;
  std::atomic<bool> refusing_ = false;
  std::atomic<bool> trickling_ = false;
  std::atomic<bool> passing_ = false;
  std::atomic<bool> stalled_bulk_ = false;
  std::atomic<bool> refusing_bulk_ = false;
  std::atomic<std::int64_t> until_cut_ = -1;  // negative: no cut is planned
  std::atomic<bool> cutting_ = false;
  std::atomic<std::int64_t> bytes_ = 0;
  std::atomic<std::int64_t> bulk_bytes_ = 0;
  std::atomic<int> refused_bulk_ = 0;
  std::atomic<int> cuts_ = 0;
  Mutex mutex_;
  std::vector<std::unique_ptr<Connection>> connections_ GRADWIRE_GUARDED_BY(mutex_);
  std::vector<std::thread> pumps_ GRADWIRE_GUARDED_BY(mutex_);
  std::thread acceptor_;
};

}  // namespace gradwire::testing
