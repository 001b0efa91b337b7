// The state of a session with several daemons as that of one: the parts of all are one file, and
// every daemon takes it.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/client.h"
#include "hooks/shard_map.h"

namespace gradwire::client {

// ---- The coordinator's. A daemon that does not lead may not have heard yet that a step is over
// which a member has applied; then these calls try again, for `patience`.

// One daemon's part, as a file. Called for all of them at once, each on a thread of its own.
using FetchPart = std::function<absl::StatusOr<std::string>(std::size_t daemon)>;

// `daemons` are the names of all, for errors. As JoinSessionFiles, or what `fetch` says.
absl::StatusOr<std::string> FetchWholeState(const std::vector<std::string>& daemons,
                                            const FetchPart& fetch, absl::Duration patience);

// Gives one daemon the whole state.
using LoadWhole = std::function<absl::Status(std::size_t daemon)>;

struct LoadedState {
  absl::Status status;      // of the first daemon that refused
  std::size_t daemons = 0;  // that have the new state
  bool unknown = false;     // one more may have it: its answer is lost
  // Some may have the new state and some the old one: the session must not go on.
  bool is_half() const { return !status.ok() && (daemons > 0 || unknown); }
};

// One daemon after the other. Each checks the whole state, so what is wrong with it is refused by
// the first one.
LoadedState LoadWholeState(const std::vector<std::string>& daemons, const LoadWhole& load,
                           absl::Duration patience);

// ---- A member's own.

// A file from what the member has for each shard.
absl::StatusOr<std::string> JoinMemberParts(std::vector<HookState> parts);

// What each shard's hook is to take of a file: the residuals of the shard's own parameters. All of
// it is checked by a hook of these options, because a hook that has loaded its part cannot give it
// back if another one's is refused.
absl::StatusOr<std::vector<HookState>> DivideMemberState(const std::string& file,
                                                         const ClientOptions& options,
                                                         const ShardMap& map);

}  // namespace gradwire::client
