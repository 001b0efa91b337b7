#include "server/net/system_shares.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>

namespace gradwire::server {
namespace {

constexpr std::size_t kOtherDescriptors = 64;  // libraries, logs, listeners, gRPC's own
constexpr std::size_t kEachConnection = 2;     // the owner's, and the acceptor's duplicate
constexpr std::size_t kEachPendingOffer = 2;   // its connection and its segment
constexpr std::size_t kMostPendingOffers = 256;
constexpr std::size_t kMostDescriptors = std::size_t{1} << 24;  // "unlimited" is no number
constexpr std::size_t kDefaultMappings = 65530;                 // the kernel's

}  // namespace

SystemLimits ReadSystemLimits() {
  SystemLimits limits{.descriptors = kMostDescriptors, .mappings = kDefaultMappings};
  rlimit descriptors{};
  if (getrlimit(RLIMIT_NOFILE, &descriptors) == 0) {
    limits.descriptors = std::min<rlim_t>(descriptors.rlim_cur, kMostDescriptors);
  }
  std::ifstream file("/proc/sys/vm/max_map_count");
  std::size_t mappings = 0;
  if (file >> mappings) limits.mappings = mappings;
  return limits;
}

// Offers and sessions get their descriptors first; connections share what is left, two each.
SystemShares ShareOut(const SystemLimits& limits, int max_connections, int max_sessions) {
  SystemShares shares;
  // Half of the mappings stay for the allocator, threads' stacks and libraries.
  shares.segments = limits.mappings / 2;
  const auto sessions = static_cast<std::size_t>(max_sessions);
  shares.shared_sessions = std::min(sessions, std::max<std::size_t>(limits.descriptors / 8, 1));
  shares.pending_offers = std::clamp<std::size_t>(limits.descriptors / 32, 1, kMostPendingOffers);
  const std::size_t others =
      kOtherDescriptors + kEachPendingOffer * shares.pending_offers + shares.shared_sessions;
  const std::size_t left = limits.descriptors - std::min(limits.descriptors, others);
  shares.connections = static_cast<int>(std::clamp<std::size_t>(
      left / kEachConnection, 1, static_cast<std::size_t>(max_connections)));
  return shares;
}

// Returns the limit at which ShareOut cuts no share; 32 and 8 are the divisors there.
std::size_t DescriptorsWanted(int max_connections, int max_sessions) {
  const auto sessions = static_cast<std::size_t>(max_sessions);
  const std::size_t sum = kOtherDescriptors + kEachPendingOffer * kMostPendingOffers + sessions +
                          kEachConnection * static_cast<std::size_t>(max_connections);
  return std::max({sum, 32 * kMostPendingOffers, 8 * sessions});
}

}  // namespace gradwire::server
