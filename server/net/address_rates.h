// How fast each address may open connections: a token bucket, and a pause after each offence.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>

#include "server/net/peer_address.h"

namespace gradwire::server {

struct AddressRateLimits {
  // A site behind one address may come as a whole, two connections for each member.
  double burst = 1024;
  double per_second = 100;
  // After an offence nobody enters from there for a pause, which doubles with each one, up to the
  // longest; then one connection, and others if that one behaves for the trial's time.
  std::chrono::milliseconds first_pause{500};
  std::chrono::milliseconds longest_pause{4000};
  std::chrono::milliseconds trial{200};
  // Without a further offence for so long, an address counts as a good one again. Until then:
  std::chrono::seconds forgotten_after{60};
  double burst_after_offence = 16;
  // Of addresses that are remembered; the ones not seen for longest go first.
  std::size_t addresses = 4096;
};

// Pure. An IPv6 address counts by its first 64 bits, since a host has all of these.
class AddressRates {
 public:
  using Clock = std::chrono::steady_clock;

  explicit AddressRates(const AddressRateLimits& limits = {}) : limits_(limits) {}

  // The part of an address that its limits go by; the port is 0.
  static PeerAddress Origin(const PeerAddress& peer);

  // Takes a token if there is one and `origin` is not paused.
  bool Take(const PeerAddress& origin, Clock::time_point now);

  // A connection from there was cut. What is cut during the pause counts as part of one offence.
  void OnOffence(const PeerAddress& origin, Clock::time_point now);

  std::size_t size() const { return rates_.size(); }

 private:
  struct Rate {
    double tokens = 0;
    Clock::time_point refilled{};
    Clock::time_point paused_until{};
    Clock::time_point offence{};
    std::chrono::milliseconds pause{0};  // the last one; 0: no offence yet
    bool trial = false;                  // the next connection is on trial
  };

  bool Remembers(const Rate& rate, Clock::time_point now) const;
  Rate& Find(const PeerAddress& origin, Clock::time_point now);

  const AddressRateLimits limits_;
  std::map<PeerAddress, Rate> rates_;
};

}  // namespace gradwire::server
