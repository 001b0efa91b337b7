// Predicts bytes and times of a step for each way to arrange daemons: the model of `gradwirectl
// plan`. Pure.
//
// A step takes as long as the slowest of what works at the same time, the busiest link and the
// busiest host's processor, and beside it what nothing overlaps with: the first chunks, for whose
// results no direction of the link has work yet, and round trips. All constants have a physical
// meaning, and are calibrated with the rows of tests/bench/net/measured.csv; the model's test
// compares it with each of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/ctl/plan/workload.h"

namespace gradwire::ctl {

// The payload's share of a link that is busy in both directions: headers of Ethernet, IP and TCP
// take 4.6 % of the payload, acknowledgements of the other direction 2 %.
inline constexpr double kPayloadShare = 0.94;
// A result needs the chunks of all members. So many chunks of each cross a daemon's link while one
// of its directions waits, at the beginning and the end of a step.
inline constexpr double kIdleChunks = 4;
// Processor seconds of kernel, gRPC and Gradwire for a byte that crosses a connection, either way.
inline constexpr double kMemberSecondsPerByte = 0.37e-9;
inline constexpr double kDaemonSecondsPerByte = 0.21e-9;
// The same for a chunk of any size with its frames, and the wake-ups for them.
inline constexpr double kMemberSecondsPerChunk = 15e-6;
inline constexpr double kDaemonSecondsPerChunk = 10e-6;
// In shared memory, with all frames: members copy gradients into it, and results out of it.
inline constexpr double kSharedMemberSecondsPerByte = 0.13e-9;
inline constexpr double kSharedDaemonSecondsPerByte = 0.076e-9;
// The same where a leaf's members have their gradients in memory that they share with it, and
// nothing is copied but the mean and the result.
inline constexpr double kLeafSecondsPerByte = 0.11e-9;
// Where each matrix is one shard's, what does not lie together is copied, there and back.
inline constexpr double kDivideSecondsPerByte = 0.135e-9;
// A small step between processes of one host.
inline constexpr double kLocalStepSeconds = 0.3e-3;
// The share of the cores' time that a step uses: members and daemons wait for each other.
inline constexpr double kCoreUse = 0.85;
inline constexpr int kMostDaemonCores = 16;  // a daemon's RPC threads
// gradwired's defaults for sessions over a network.
inline constexpr double kChunkBytes = 64 << 10;
inline constexpr int kWindowChunks = 16;
inline constexpr int kOpenBuckets = 4;
inline constexpr double kEagerBytes = 64 << 10;  // of a bucket that waits for no grant

inline constexpr int kMostHosts = 4096;
inline constexpr int kMostMembersPerHost = 64;
inline constexpr int kMostCores = 1024;

struct Site {
  int hosts = 4;
  int members_per_host = 1;
  double link_bytes_per_second = 125e6;  // of each host, each way at the same time
  double round_trip_seconds = 0.2e-3;
  int cores = 4;  // of each host
  double chunk_bytes = kChunkBytes;
  int window_chunks = kWindowChunks;
  // All hosts are on one machine and share its cores, as in tests/bench/net.
  bool one_machine = false;
};

enum class Placement : std::uint8_t {
  kOwnHosts,      // each daemon has a host of its own
  kMembersHosts,  // on hosts of members
};

struct Topology {
  Placement placement = Placement::kOwnHosts;
  int shards = 1;
  bool leaves =
      false;  // a daemon on each host adds up its members and is one member for the shards

  // "star", "2 shards on own hosts", "leaves and shards on the members' hosts".
  std::string Name(const Site& site) const;
  int Daemons(const Site& site) const;  // leaves included
  int ExtraHosts() const { return placement == Placement::kOwnHosts ? shards : 0; }
};

enum class Limit : std::uint8_t { kLink, kProcessor, kRoundTrips };

struct Forecast {
  Topology topology;
  // The payload of the busiest link of a host with members, and with a daemon, in a step: each
  // direction has so much.
  double member_link_bytes = 0;
  double daemon_link_bytes = 0;
  double seconds = 0;  // of communication; nothing of it overlaps with the backward pass
  Limit limit = Limit::kLink;
};

// A topology that makes sense for the site but not for the session.
struct LeftOut {
  std::string topology;
  std::string why;
};

struct Plan {
  std::vector<Forecast> forecasts;  // at least one: a star first, of members or of leaves
  std::vector<LeftOut> left_out;
  std::size_t recommended = 0;  // of `forecasts`
  std::string why;              // a sentence
};

// InvalidArgument: the hook takes no shards, or no map of shards can be made.
absl::StatusOr<Forecast> Predict(const Site& site, const Workload& workload,
                                 const Topology& topology);

// All topologies that make sense, and the one to take: the one with the fewest daemons of those
// whose steps, which also compute for so long, take at most a tenth longer than the fastest's.
// Those that need a host beside each 8 hosts of members, or more, are not recommended; one host is
// always allowed. The site's numbers are within the limits above.
absl::StatusOr<Plan> MakePlan(const Site& site, const Workload& workload,
                              double compute_seconds = 0);

}  // namespace gradwire::ctl
