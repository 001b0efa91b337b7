// Members that have asked to leave a session that outlives its daemon.
//
// If the daemon is lost, members tell the next one how the last step ended. So who knows it stays
// until all others know it too: a member that leaves itself, or whose Hello or Heartbeat has named
// a later step. The others are asked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/core/membership.h"

namespace gradwire::server {

// Not thread-safe; ranks are in [0, world_size). `membership` outlives it.
class Leavers {
 public:
  // A leaver whose stream has ended stays for `resume_grace` at most.
  Leavers(const Membership& membership, absl::Duration resume_grace);

  // The member knows how all steps before `step` ended.
  void Hear(int rank, std::int64_t step);

  // It asks to leave between two steps, and may ask again.
  void Add(int rank, std::int64_t step, absl::Time now);
  bool any() const { return !since_.empty(); }
  // Those that may leave, since nobody needs them any more or they have stayed for too long.
  std::vector<int> Ready(std::int64_t step, absl::Time now) const;
  // All, with when each asked first: something else ends what they stay for.
  std::map<int, absl::Time> TakeAll();
  void Remove(int rank) { since_.erase(rank); }
  // For whom they wait: those who can be asked, and were not a moment ago.
  std::vector<int> ToAsk(std::int64_t step, absl::Time now);
  // The answer to a leaver, which names all of them: Unavailable.
  absl::Status NotYet(std::int64_t step) const;

 private:
  std::vector<int> Lacking(std::int64_t step) const;

  const Membership& membership_;
  const absl::Duration resume_grace_;
  std::vector<std::int64_t> heard_;  // by rank: the latest step that it has named
  std::vector<absl::Time> asked_;    // by rank: when it was asked last
  std::map<int, absl::Time> since_;  // by rank: when it asked first
};

}  // namespace gradwire::server
