// Joins again after the loss of a daemon, until a daemon has taken the member's report.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "client/transport/channel.h"
#include "client/transport/event_queue.h"
#include "gradwire/client.h"

namespace gradwire::client {

struct Rejoined {
  Joined joined;
  std::string address;  // where it is: JoinNearest may have moved it
};

// On a thread of its own, because a join waits for its daemon and the SDK's thread must not.
class Rejoin {
 public:
  // Once, on that thread. Unavailable: no daemon took the report until the deadline. Any other
  // error is a daemon's answer, which another try would not change.
  using Done = std::function<void(absl::StatusOr<Rejoined>)>;

  // `options.address` is the one that the user gave; with a `wish.lookup` each try looks it up.
  Rejoin(ClientOptions options, JoinWish wish, std::uint64_t start_id, Clock::time_point deadline,
         Done done);
  // Waits for a try that is under way: as long as one lookup and one join take.
  ~Rejoin();

  // No further try begins. From any thread.
  void Stop() { stopped_ = true; }

  Rejoin(const Rejoin&) = delete;
  Rejoin& operator=(const Rejoin&) = delete;

 private:
  void Run(Clock::time_point deadline);

  const ClientOptions options_;
  const JoinWish wish_;
  const std::uint64_t start_id_;
  const Done done_;
  std::atomic<bool> stopped_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace gradwire::client
