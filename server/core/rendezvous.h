// How a session's members come together, before it runs.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/effects.h"
#include "server/core/failure_policy.h"
#include "server/core/session_options.h"

namespace gradwire::server {

// Not thread-safe. `options` and `membership` outlive it.
class Rendezvous {
 public:
  Rendezvous(const SessionOptions& options, Membership& membership, absl::Time now)
      : options_(options),
        membership_(membership),
        began_(now),
        asks_(static_cast<std::size_t>(options.world_size)) {}

  // Takes a rank, also for a process that has it already and asks again, at any time.
  absl::StatusOr<int> Join(const JoinAsk& ask, absl::Time now, Effects& effects);

  // Call the following only before the session runs.

  // A process asked to join with a different hook, model or world size.
  MaybeFailure OnWrongJoin(const JoinAsk& ask, const absl::Status& difference) const;
  void Leave(int rank, Effects& effects);
  // Frees the ranks of lost members. Fails when the join timeout has passed.
  MaybeFailure Tick(absl::Time now, Effects& effects);
  // All members are connected. Fails if they cannot be grouped as they ask.
  absl::StatusOr<NodeGroups> Group() const;
  // Welcomes them to the step.
  void Complete(const NodeGroups& groups, std::int64_t step, std::uint32_t attempt,
                Effects& effects) const;

  // Why a rank was given up last: "rank 0 left". "": none was.
  const std::string& last_departure() const { return last_departure_; }

 private:
  const SessionOptions& options_;
  Membership& membership_;
  const absl::Time began_;
  std::vector<GroupAsk> asks_;  // by rank
  std::string last_departure_;
};

}  // namespace gradwire::server
