// Bounds the bytes of incomplete messages that gRPC holds.
//
// gRPC 1.51 compares a message with its limit once all of it has arrived: a peer that declares a
// message of 512 MiB makes the daemon hold 512 MiB, and many peers as much each. A resource quota
// would bound that, but it breaks other peers' streams too. So the daemon compares what the kernel
// has handed to gRPC on each TCP connection (TCP_INFO) with what it took from gRPC as messages, and
// cuts a connection that is too far ahead. FrameGuard bounds single connections more tightly, and
// on unix sockets, too; what only the intake knows is all connections, and time.
//
// Nor does gRPC 1.51 limit calls that are begun and reset: each costs some 30 us of its threads and
// 5 KB. Most of them end before the daemon can see them, so what shows them is bytes without a
// call. Until a connection has brought a message, the kernel buffers little of it: gRPC parses all
// that it reads at once, and other connections wait.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/sync.h"
#include "server/net/address_rates.h"
#include "server/net/peer_address.h"
#include "server/net/traffic_meter.h"

namespace gradwire::server {

struct IntakeLimits {
  // On one connection: what HTTP/2 allows a peer to send ahead, and a message.
  std::size_t connection_bytes = 0;
  // On all connections together that carry no member's stream.
  std::size_t strangers_bytes = 0;
  // A stranger must complete a message within this time.
  std::chrono::seconds message_timeout{30};
  // A stranger's bytes must belong to a call within this time, without the time for which a thread
  // of this process waited for a processor, and within so many times it with that.
  std::chrono::milliseconds call_timeout{20};
  int call_timeout_with_waits = 10;
  // Calls that a connection may begin at once, and in a second.
  double calls_at_once = 200;
  double calls_per_second = 50;
  // Connections from one address that have not brought a message yet: each may be in a TLS
  // handshake, for which gRPC holds some 75 KB.
  int newcomers = 256;
};

// What one connection has brought and nobody has taken.
struct Held {
  std::size_t bytes = 0;
  bool member = false;
  std::chrono::steady_clock::duration since{};         // the last complete message
  std::chrono::steady_clock::duration without_call{};  // as IntakeLimits::call_timeout counts it
  bool calls_too_often = false;
};

// kFrames: see FrameGuard, which needs no check.
enum class CutReason : std::uint8_t {
  kTooMuch,
  kTooSlow,
  kTooManyPeers,
  kNoCall,
  kTooManyCalls,
  kFrames
};
constexpr std::size_t kCutReasons = 6;

// The connections to cut, by index, each with its reason. Where all strangers together hold too
// much, those that hold most go first.
struct Cut {
  std::size_t index = 0;
  CutReason reason = CutReason::kTooMuch;
};
std::vector<Cut> ChooseCuts(const std::vector<Held>& held, const IntakeLimits& limits);

// What a connection holds, from its counters.
class HeldBytes {
 public:
  // `read`: the bytes that gRPC has read from the socket. `explained`: see TrafficMeter; asked for
  // after `read`, so that it is not behind.
  std::size_t Update(std::uint64_t read, std::uint64_t explained);

 private:
  // Bytes that were explained too generously. A peer cannot save them for later.
  std::int64_t forgiven_ = 0;
};

// Find and OnOffence are for all threads, the other functions are for one.
class Intake {
 public:
  using Clock = std::chrono::steady_clock;
  // Called for each cut, with the peer's address and a sentence for the log.
  using OnCut =
      std::function<void(CutReason reason, const std::string& peer, const std::string& sentence)>;

  // How long a thread of this process waited for a processor since the last call.
  using Waits = std::function<std::chrono::nanoseconds()>;

  Intake(const IntakeLimits& limits, OnCut on_cut, Waits waits)
      : limits_(limits), on_cut_(std::move(on_cut)), waits_(std::move(waits)) {}

  // `fd` stays the caller's, open until Remove. Ignores what is not TCP.
  void Add(int fd) GRADWIRE_EXCLUDES(mutex_);
  // False: the connection has never had a call, and was not cut for that or anything else: its
  // handshake failed or took too long, or somebody probed the port.
  bool Remove(int fd) GRADWIRE_EXCLUDES(mutex_);

  // Whether one more connection from there may be handed to gRPC now; otherwise later.
  bool Admit(const PeerAddress& peer, Clock::time_point now) GRADWIRE_EXCLUDES(mutex_);

  // Of the connection that a call came on. Null: it is not TCP, or gone.
  std::shared_ptr<TrafficMeter> Find(const std::string& grpc_peer) const GRADWIRE_EXCLUDES(mutex_);

  // The address has to wait longer for its next connections.
  void OnOffence(const PeerAddress& peer) GRADWIRE_EXCLUDES(mutex_);

  // When Check is due; nullopt: there is no connection.
  std::optional<Clock::time_point> next_check() const;
  void Check(Clock::time_point now);

 private:
  struct Connection {
    PeerAddress peer;
    std::shared_ptr<TrafficMeter> meter;
    HeldBytes held{};
    std::uint64_t taken = 0;
    Clock::time_point last_message{};   // or the time when it held nothing
    Clock::time_point last_call{};      // or the time when it held nothing
    std::chrono::nanoseconds waited{};  // waited_ then
    std::uint64_t calls = 0;
    double call_tokens = 0;
    bool newcomer = true;  // has not brought a message
    bool narrow = false;   // the kernel buffers little of it
    bool cut = false;
  };

  void TakeOffences(Clock::time_point now) GRADWIRE_EXCLUDES(mutex_);
  Held Look(Connection& connection, std::uint64_t read, Clock::time_point now) const;
  void UpdateWaits(bool alert, Clock::time_point now);
  void EndNewcomer(Connection& connection);
  void CutOne(int fd, Connection& connection, const Held& held, CutReason reason);

  const IntakeLimits limits_;
  const OnCut on_cut_;
  const Waits waits_;
  std::map<int, Connection> connections_;  // of the one thread
  AddressRates rates_;
  std::map<PeerAddress, int> newcomers_;  // by origin; none is 0
  Clock::time_point checked_{};
  Clock::time_point next_{};
  bool alert_ = false;                 // a stranger held something at the last check
  std::chrono::nanoseconds waited_{};  // for a processor, in all
  Clock::time_point waits_updated_{};
  mutable Mutex mutex_;
  std::vector<PeerAddress> offenders_ GRADWIRE_GUARDED_BY(mutex_);
  std::map<PeerAddress, std::shared_ptr<TrafficMeter>> meters_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::server
