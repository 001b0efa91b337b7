#include "server/net/address_rates.h"

#include <algorithm>
#include <utility>

namespace gradwire::server {

PeerAddress AddressRates::Origin(const PeerAddress& peer) {
  PeerAddress origin{.ip = peer.ip, .port = 0};
  if (!IsIpv4(peer)) std::fill(origin.ip.begin() + 8, origin.ip.end(), 0);
  return origin;
}

AddressRates::Rate& AddressRates::Find(const PeerAddress& origin, Clock::time_point now) {
  if (const auto found = rates_.find(origin); found != rates_.end()) return found->second;
  if (rates_.size() >= limits_.addresses) {
    rates_.erase(std::min_element(rates_.begin(), rates_.end(), [](const auto& a, const auto& b) {
      return std::max(a.second.refilled, a.second.paused_until) <
             std::max(b.second.refilled, b.second.paused_until);
    }));
  }
  return rates_.emplace(origin, Rate{.tokens = limits_.burst, .refilled = now}).first->second;
}

bool AddressRates::Remembers(const Rate& rate, Clock::time_point now) const {
  return rate.pause.count() > 0 && now < rate.offence + limits_.forgotten_after;
}

bool AddressRates::Take(const PeerAddress& origin, Clock::time_point now) {
  Rate& rate = Find(origin, now);
  if (now < rate.paused_until) return false;
  const double seconds = std::chrono::duration<double>(now - rate.refilled).count();
  const double burst = Remembers(rate, now) ? limits_.burst_after_offence : limits_.burst;
  rate.tokens = std::min(burst, rate.tokens + seconds * limits_.per_second);
  rate.refilled = now;
  if (rate.tokens < 1) return false;
  rate.tokens -= 1;
  if (std::exchange(rate.trial, false)) rate.paused_until = now + limits_.trial;
  return true;
}

void AddressRates::OnOffence(const PeerAddress& origin, Clock::time_point now) {
  Rate& rate = Find(origin, now);
  if (now < rate.offence + rate.pause) return;
  rate.pause =
      Remembers(rate, now) ? std::min(2 * rate.pause, limits_.longest_pause) : limits_.first_pause;
  rate.offence = now;
  rate.paused_until = now + rate.pause;
  rate.trial = true;
}

}  // namespace gradwire::server
