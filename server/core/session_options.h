// A session's configuration: its limits, and how much memory the daemon reserves for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/limits.h"
#include "gradwire/hooks/hook_spec.h"
#include "proto/wire/member_report.h"
#include "server/core/leaf_place.h"
#include "server/core/manifest.h"
#include "server/core/node_groups.h"
#include "server/core/shard_place.h"

namespace gradwire::server {

// A user's own hook announces its own rounds (at most kMaxRounds); these bound what
// one bucket may ask for.
constexpr std::size_t kMaxBytesPerGradientByte = 2;
constexpr std::size_t kExtraRoundBytes = 4096;
constexpr std::size_t kMaxSegmentsPerParameter = 8;
constexpr std::size_t kExtraSegments = 64;

// A step whose members all take their usual time must not count as late. A member that misses more
// than half of its steps trains on gradients that are mostly old.
constexpr double kLeastStragglerMultiple = 1.5;
constexpr double kMostStragglerMultiple = 1000;
constexpr double kMostStragglerShare = 0.5;
// InvalidArgument: names the setting, its value and what is allowed.
absl::Status CheckStraggler(double multiple, double share);

// Which ranks are on a member's node, as its launcher has numbered them.
struct NodeAsk {
  int first = 0;
  int members = 0;  // 0: it does not know
};

// What a member requests when it joins.
struct JoinAsk {
  int world_size = 0;
  int rank = -1;
  std::uint64_t start_id = 0;
  HookSpec spec;
  Manifest manifest;
  GroupAsk group{};
  std::uint32_t shard = 0;
  std::uint64_t life = 0;                // of the session, that shard 0 has begun; 0: it begins
  std::vector<std::string> addresses{};  // of all shards; empty: one daemon
  // Of a leaf daemon: the ranks from `rank` on that it stands for. 0: it is a trainer.
  int leaf_ranks = 0;
  std::string leaf{};  // its name
  NodeAsk node{};
  // None: the process begins. Otherwise it lost the session's daemon, and comes to this one.
  std::optional<wire::MemberReport> report{};
};

struct SessionOptions {
  std::string name;
  int world_size = 1;
  HookSpec spec;
  Manifest manifest;
  std::uint64_t generation = 1;  // unique among the sessions of one daemon
  std::uint64_t lineage = 1;
  ShardPlace shard{};
  LeafPlace leaf{};
  std::size_t chunk_bytes = std::size_t{1} << 20;
  std::uint32_t window_chunks = 4;
  std::uint32_t open_buckets = 4;
  std::size_t eager_bytes = 0;  // from each member, in buckets that wait for no grant
  // How long members that lose this daemon look for the next one; 0: the session ends with it.
  absl::Duration coordinator_grace = absl::ZeroDuration();
  // How long the place of a lost member is held for another process; 0: its loss ends the session.
  // Only with a coordinator_grace.
  absl::Duration member_grace = absl::ZeroDuration();
  // Where a member is lost, the others go on without it, as long as this many are there (and a
  // majority of those who concluded the last step). Only with a member_grace, for which they wait
  // if they are too few. 0: they wait for another process.
  int shrinks_to = 0;
  // Where rosters are claimed before members are told of them (RosterClaims): its id. 0: none is.
  std::uint64_t arbiter = 0;
  // With an arbiter: they need no majority.
  bool may_be_minority = false;
  // How long those who gather wait for the others, before they go on without them.
  absl::Duration shrink_after = absl::Seconds(10);
  // How long the others wait for members that are late with their gradients: this multiple of the
  // steps' median (LateMembers). Only with shrinks_to. 0: as long as it takes.
  double straggler_multiple = 0;
  // Of the last 100 steps, the part that a member may miss.
  double straggler_share = 0.1;
  std::size_t straggler_steps = 8;                          // that are measured before
  absl::Duration straggler_floor = absl::Milliseconds(50);  // of the deadline
  // Of a session that gathers its members: ranks that it does not wait for so long.
  std::vector<int> gone{};
  // And by rank the first one of its node group, as it was before. Empty: not known.
  std::vector<int> node_groups{};
  std::string session_key{};  // with a grace: by which members know that it is theirs
  bool gathers = false;       // from members that lost their daemon, or one of them
  // Of a shard that gathers. Shard 0: how much further than all that are reported the life is that
  // it begins; drawn, so that no two daemons begin the same one. Any other: the life that shard 0
  // has begun.
  std::uint64_t life = 0;
  absl::Duration join_timeout = absl::Minutes(5);
  // Why it may be that the others do not come; "": nothing is known. For the error then.
  std::string join_doubt{};
  absl::Duration step_timeout = absl::Minutes(30);
  absl::Duration token_timeout = absl::Seconds(5);
  absl::Duration resume_grace = absl::Seconds(1);
  absl::Duration silence_timeout = absl::Seconds(15);

  // Returns InvalidArgument with the field, the value and what is allowed.
  absl::Status Validate() const;
  // Whether members keep accounts of what becomes of their gradients.
  bool ledger = false;
  // Of the ledger; 0: there is none.
  std::size_t LedgerRows() const;
  bool shrinks() const { return shrinks_to > 0; }
  bool claims() const { return shrinks() && arbiter != 0 && !follows(); }
  // What becomes of a step is decided elsewhere, and so it is after the loss of a shard.
  bool follows() const { return shard.number > 0; }
  // That the members asked for. A leaf's members send gradients as they are.
  const HookSpec& AskedHook() const { return leaf.is_leaf() ? leaf.hook : spec; }
  // Whose members attach here.
  int MembersHere() const { return leaf.is_leaf() ? leaf.members : world_size; }
  // gradwirectl measures in it.
  bool is_trial() const { return name.starts_with(kTrialSessionPrefix); }

  // Returns InvalidArgument with the first difference between the request and the session.
  absl::Status CheckSame(const JoinAsk& ask) const;

  // Upper bound of the memory that the session can make the daemon hold: contributions in the
  // window, results not yet acknowledged, and the core's own bookkeeping.
  std::size_t ReservedBytes() const;
  // The part of ReservedBytes that is for payloads, as counted by SessionCore::held_bytes.
  std::size_t PayloadBytes() const;
  // Upper bound of a step's bytes, computed from the manifest.
  std::size_t StepBytes() const;
  // Upper bound of the chunks of a step's buckets, all rounds together.
  std::size_t StepChunks() const;

  // How many results shared memory holds at a time, and the size of the largest: the results of the
  // window, or of the whole model if that is less.
  std::size_t ResultBlocks() const;
  std::size_t BlockBytes() const;

  // The largest number of bytes that a member with shared memory can have in flight.
  std::size_t StagingBytes() const;
};

}  // namespace gradwire::server
