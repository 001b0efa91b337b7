// A chunk's way through a session: contributions are checked and kept, complete units are handed
// out for reduction, results are released in order, and acknowledgements move the windows on.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "hooks/coordinator_hook.h"
#include "server/core/bucket.h"
#include "server/core/effects.h"
#include "server/core/failure_policy.h"
#include "server/core/session_options.h"
#include "server/core/session_stats.h"
#include "server/core/shared_state.h"
#include "server/core/step_gate.h"

namespace gradwire::server {

// Not thread-safe. All that it refers to outlives it; `hook` may be null.
class RoundFlow {
 public:
  RoundFlow(const SessionOptions& options, const Membership& membership, CoordinatorHook* hook,
            SharedState& shared, const StepGate& gate);

  // The frame is of the bucket's current round and attempt.
  MaybeFailure Contribute(int rank, Bucket& bucket, const wire::Contribution& header,
                          const wire::PayloadRef& payload, Effects& effects);
  // An announcement that brings the bucket's only chunk; there will be no grant.
  MaybeFailure ContributeEagerly(int rank, Bucket& bucket, const wire::Announce& announce,
                                 const wire::PayloadRef& payload, Effects& effects);
  void CountRepeated() { ++stats_.duplicate_chunks; }

  // `round` is one that has begun.
  MaybeFailure Acknowledge(int rank, Bucket& bucket, const wire::RoundId& id,
                           std::uint32_t received, Effects& effects);
  // The member said in another way that it has all that was released.
  void AcknowledgeAll(int rank, Bucket& bucket);

  // A unit of the current round is reduced. Releases what can be.
  void Reduced(Bucket& bucket, std::uint32_t chunk, const ResultRef& result, absl::Duration spent,
               Effects& effects);
  // To a member whose stream was replaced: what it has not acknowledged.
  void Resend(int rank, Bucket& bucket, Effects& effects);

  // Units that are complete now, of the bucket's current round.
  void ReduceComplete(Bucket& bucket, Effects& effects);
  // Members without whose acknowledgements the unit that `chunk` is in is not reduced.
  std::vector<int> WindowsWithout(const Bucket& bucket, std::uint32_t chunk) const;

  SessionStats& stats() { return stats_; }
  const SessionStats& stats() const { return stats_; }
  // Payload that was accepted from the member.
  std::uint64_t member_bytes(int rank) const { return members_[Index(rank)].contribution_bytes; }
  // What it sent eagerly and has no result for.
  std::size_t eager_bytes(int rank) const { return members_[Index(rank)].eager_bytes; }

 private:
  struct Member {
    std::uint64_t contribution_bytes = 0;
    std::size_t eager_bytes = 0;  // sent eagerly, and the result not acknowledged
  };

  static std::size_t Index(int rank) { return static_cast<std::size_t>(rank); }
  bool TakesResults(const Bucket& bucket) const;
  MaybeFailure Store(int rank, Bucket& bucket, const wire::Contribution& header,
                     const wire::PayloadRef& payload, Effects& effects);
  void ReduceIfComplete(Bucket& bucket, std::uint32_t chunk, Effects& effects);
  void SendResult(std::vector<int> ranks, const Bucket& bucket, std::uint32_t round,
                  std::uint32_t chunk, Effects& effects);
  void Observe(const Bucket& bucket, std::uint32_t chunk, const ReducedResult& result);
  std::size_t Required(const Bucket& bucket) const;

  const SessionOptions& options_;
  const Membership& membership_;
  CoordinatorHook* const hook_;
  SharedState& shared_;
  const StepGate& gate_;
  std::vector<Member> members_;
  SessionStats stats_;
};

}  // namespace gradwire::server
