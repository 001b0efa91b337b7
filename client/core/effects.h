// The actions that a member's state machine requests. The owner applies them in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/hooks/hook.h"
#include "proto/wire/frame.h"

namespace gradwire::client {

// Names one StartBucket to the caller.
using Ticket = std::uint64_t;

struct SendFrameEffect {
  wire::Header header;
  wire::PayloadRef payload{};  // null: it has none
};
// Encode the range now, before the next call to the core, and send it. Digests are left for the
// owner to fill in.
struct SendChunkEffect {
  wire::Contribution header;
  std::optional<wire::Announce> announce{};  // eager: the header to send instead
  HookRun* run = nullptr;
  ElementRange range;
  std::size_t bytes = 0;
};
// Send bytes of a broadcast: [offset, offset + bytes) of the root's data.
struct SendCollectiveEffect {
  wire::CollectiveChunk header;
  std::size_t offset = 0;
  std::size_t bytes = 0;
};
// Copy a broadcast's payload to `offset` of the member's data, now. Of one that passes through:
// pass it on; each byte comes once, in order.
struct ReceiveCollectiveEffect {
  std::size_t offset = 0;
  wire::PayloadRef payload;
};
// ---- Of a broadcast that passes through (MemberCollectives::BeginRelay)

// All members have entered it.
struct RelayBegunEffect {};
// How far the bytes that were given are: those before `kept_from` are not sent again, and `taken`
// count as taken from the giver, all of them only when all members have them.
struct RelayTakenEffect {
  std::uint64_t kept_from = 0;
  std::uint64_t taken = 0;
};
struct BucketDoneEffect {
  Ticket ticket = 0;
  absl::Status status;
  std::uint32_t bucket = 0;
  std::optional<BucketNorms> norms{};  // where they were asked for
};
struct StepDoneEffect {
  std::int64_t step = 0;
  Verdict verdict = Verdict::kApply;
  bool dropped = false;  // with the daemon: buckets that were not begun have no part in it
  std::optional<wire::MembershipChange> change{};  // with `dropped`; may be without newcomers
  std::vector<int> ranks{};  // who is in the session from now on; empty: the same as before
  std::string reason{};      // of a skip; "": not known
  std::string drift{};       // whose parameters differ; "": nobody's
};
struct CollectiveDoneEffect {
  std::uint64_t number = 0;
  absl::Status status{};  // Aborted: a member of it was lost
};
// All members have joined; calls may begin.
struct WelcomeEffect {
  std::optional<wire::Recovery> recovery{};        // none: the session ends with its daemon
  std::optional<wire::MembershipChange> change{};  // of which this member is one, as a newcomer
};
// The session has ended. All open calls were completed with `status` before.
struct FailedEffect {
  absl::Status status;
  int blamed_rank = -1;  // -1: nobody in particular
  // To be sent to the daemon, which does not know yet, before the stream ends.
  std::optional<wire::Failure> last_words{};
  bool is_told = false;  // by a daemon: it has ended for all members
};
// All results of the step are here, of this member's shard or only daemon, and what they come to.
// The owner, or who has all shards, answers with SayReady.
struct PreparedEffect {
  std::int64_t step = 0;
  Verdict verdict = Verdict::kApply;
  std::uint64_t digest = 0;
};
// This member's residuals are with another one.
struct HandedOverEffect {
  int rank = -1;         // -1: nobody has them
  std::string reason{};  // why; "": somebody has
};
// ---- Of node groups (grouped_member.h)

// The member's place among the groups, for each daemon anew. `names`: the owner is to answer with
// NameGroup.
struct GroupEffect {
  wire::NodeGroup group;
  bool names = false;
};
// Connect to the group's other members; `id` comes from one of them.
struct ConnectEffect {
  std::string id;
};
// Exchange the shares of the bucket with the group, add up this member's, in the order of ranks,
// and divide them by members / groups. The owner answers with Exchanged. The next of these two
// effects comes after the answer, or after an AbortGroupEffect.
struct ExchangeEffect {
  Ticket ticket = 0;
};
// Give this member's shares, which have their results, to the group, and take the others'. The
// owner answers with Gathered.
struct GatherEffect {
  Ticket ticket = 0;
};
// The group's communicator is to be aborted, and what is open of it is to be forgotten: no answer
// is expected. A GroupEffect may follow.
struct AbortGroupEffect {};
// A share has its result.
struct ShareDoneEffect {
  std::uint32_t bucket = 0;  // the share's id
  std::optional<BucketNorms> norms{};
};
using Effect =
    std::variant<GroupEffect, ConnectEffect, ExchangeEffect, GatherEffect, AbortGroupEffect,
                 ShareDoneEffect, SendFrameEffect, SendChunkEffect, SendCollectiveEffect,
                 ReceiveCollectiveEffect, RelayBegunEffect, RelayTakenEffect, BucketDoneEffect,
                 StepDoneEffect, CollectiveDoneEffect, WelcomeEffect, FailedEffect, PreparedEffect,
                 HandedOverEffect>;
using Effects = std::vector<Effect>;

}  // namespace gradwire::client
