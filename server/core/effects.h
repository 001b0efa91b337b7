// The actions that a session requests from its owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "hooks/coordinator_hook.h"
#include "hooks/raw_contributions.h"
#include "proto/wire/frame.h"
#include "server/core/reduced_result.h"
#include "server/core/roster_claims.h"
#include "server/core/state_file.h"

namespace gradwire::server {

// Something that expires once the session no longer keeps the payload. Empty: the session never
// kept it.
using Keeper = std::weak_ptr<const void>;

// Send the frame to one member.
struct SendEffect {
  int rank = 0;
  wire::Frame frame;
  Keeper keeper{};
};
// Send the same frame to several members.
struct FanOutEffect {
  std::vector<int> ranks;
  wire::Frame frame;
};
// Send a chunk's result to several members. The header does not yet say how it reaches each.
struct ResultEffect {
  std::vector<int> ranks;
  wire::Result header;
  ResultRef result;
};
// Compute Reduce or ReduceOrthonormalized over `inputs` (rank order) and answer with
// SessionCore::Reduced.
struct ReduceEffect {
  wire::RoundId id;
  std::uint32_t chunk = 0;  // the first of its unit
  Segment segment;          // of the whole unit
  std::vector<wire::PayloadRef> inputs{};
  RawContributions raw{};
  double weight = 1;      // of all contributors: what a mean divides by
  std::size_t begin = 0;  // the unit's first element in its segment
  // The bucket's parameters, of a leaf's session: it reduces whole buckets.
  std::shared_ptr<const std::vector<std::uint32_t>> parameters{};
  // The result may go where contributions lie, in the gradients' dtype where those are raw. They
  // are not asked for again: a round of which something is being reduced does not start over.
  bool in_place = false;
};
// Run `work` and answer with SessionCore::Computed. Members wait for it; it may take seconds.
struct ComputeEffect {
  wire::RoundId id;
  std::shared_ptr<SharedStateWork> work;
};
// Read it (SessionCore::ReadCopy) and answer with SessionCore::Restored. All members wait for it.
struct RestoreEffect {
  std::vector<StateFile> files;  // parts of one copy, which may overlap
};
// Run it and answer with SessionCore::ChoreDone. Nobody waits for it.
struct ChoreEffect {
  std::shared_ptr<HookChore> chore;
};
// Of a leaf: something for the root's session. The answers are SessionCore::Upstream….
struct UpstreamEffect {
  enum class What : std::uint8_t {
    kJoin,    // all members are here
    kBucket,  // of which there is nothing to be reduced; it has no answer
    kEndStep,
    kParameters,  // what most members say of theirs; before anything else of the step
    kBarrier,     // that all members have entered
    kBroadcast,   // the same
    kBytes,       // of a broadcast from a member here: its next ones
    kRoom,        // for bytes of any other broadcast
  } what = What::kJoin;
  std::int64_t step = 0;                    // kBucket, kEndStep
  std::vector<std::uint32_t> parameters{};  // kBucket
  std::uint64_t digest = 0;                 // kParameters
  int root = 0;                             // kBroadcast
  std::uint64_t bytes = 0;                  // kBroadcast
  std::uint64_t room = 0;                   // kBroadcast, kRoom: how many bytes may come in all
  wire::PayloadRef payload{};               // kBytes
};
// The answer to kJoin: the root's session is in this step.
struct UpstreamWelcome {
  std::int64_t step = 0;
  std::optional<wire::MembershipChange> change{};  // the leaf comes in the place of a lost one
};
// The answers to kBarrier and kBroadcast, while the root's collective goes on.
struct UpstreamProgress {
  enum class What : std::uint8_t {
    kBegan,  // all of the root's members have entered it; the barrier is over
    kBytes,  // of a broadcast from elsewhere: the next ones
    kTaken,  // of one from a member here
    kVoid,   // a member at the root was lost: it ends without effect
  } what = What::kBegan;
  wire::PayloadRef payload{};  // kBytes; the pieces may have any size
  // kTaken: how many bytes of those that were given need not be held here any more. All of them
  // only when all members of the root's session have them, and so it is over.
  std::uint64_t taken = 0;
};
// The answer to kEndStep: what the root's StepDone says.
struct UpstreamConclusion {
  Verdict verdict = Verdict::kApply;
  std::string reason{};
  std::string drift{};
  // Of a step that was dropped: lost members of the root's session have successors. Collectives are
  // numbered by each session for itself.
  std::optional<wire::MembershipChange> change{};
};
// Claim the roster of the lineage at the arbiter, and answer with SessionCore::RosterClaimed. Its
// number is 0: nothing is claimed, and the answer is the highest claim. All members wait for it.
struct ClaimRosterEffect {
  std::uint64_t lineage = 0;
  RosterClaim claim{};
};
// The lineage's session has ended in good order. It has no answer.
struct ForgetRostersEffect {
  std::uint64_t lineage = 0;
};
// Let go of it. To free it may take long, so not under a lock.
struct ReleaseEffect {
  std::shared_ptr<const void> memory;
};
// End the member's stream after what was sent before.
struct CloseEffect {
  int rank = 0;
  std::uint64_t connection = 0;
};
// The rank's member has gone: it left, or it is lost. A failure ends all memberships without this.
struct DepartureEffect {
  int rank = 0;
  std::string lost{};  // why; "": it left
};
// Write a line to the log.
struct LogEffect {
  enum class Level : std::uint8_t { kInfo, kWarning } level = Level::kInfo;
  std::string message;
  int rank = -1;  // that the line is about; -1: none
};
using Effect =
    std::variant<SendEffect, FanOutEffect, ResultEffect, ReduceEffect, ComputeEffect, RestoreEffect,
                 ChoreEffect, UpstreamEffect, ClaimRosterEffect, ForgetRostersEffect, ReleaseEffect,
                 CloseEffect, DepartureEffect, LogEffect>;
using Effects = std::vector<Effect>;

}  // namespace gradwire::server
