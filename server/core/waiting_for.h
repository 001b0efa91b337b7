// What a running session waits for: as data, and in one sentence that names the members.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace gradwire::server {

class Bucket;
class CollectiveFlow;
class Membership;
class Step;

// What keeps the step from going on.
struct Blocking {
  enum class On : std::uint8_t {
    kBegin,         // nobody has begun the step
    kGroup,         // a node group
    kAnnouncement,  // members have not announced `bucket`
    kChunk,         // members have not sent `chunk` of `bucket`
    kWindow,        // members have not acknowledged results of `bucket`, of whose round more come
    kAcknowledgement,  // members have not acknowledged `bucket`, whose place others need
    kDaemon,           // it computes something of `bucket`
    kEnd,              // members have further buckets, or end the step
    kOtherShards,      // all results of this shard are out
    kUpstream,         // this daemon is a leaf: for a sum of the root's, or its verdict
  };
  On on = On::kBegin;
  std::vector<int> ranks{};
  const Bucket* bucket = nullptr;
  std::uint32_t chunk = 0;
};
Blocking FindBlocking(const Step& step, const Membership& membership);

// Of a leaf: whether nobody here is waited for, so that the root's timeouts apply alone.
bool WaitsForUpstream(const Step& step, const CollectiveFlow& collectives,
                      const Membership& membership);

// The open collective, or else the step.
std::string WaitingFor(const Step& step, const CollectiveFlow& collectives,
                       const Membership& membership, absl::Time now);

}  // namespace gradwire::server
