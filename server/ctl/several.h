// Calls to one or more daemons at once, and one answer from theirs. Daemons that have nothing to do
// with a session may be among them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/v1/admin.pb.h"
#include "server/ctl/calls.h"
#include "server/ctl/trace.h"

namespace gradwire::ctl {

using Targets = std::vector<Target>;

struct Failure {
  std::string address;
  absl::Status status;
};

// Of the daemons that answered, and what the others said instead.
struct Servers {
  bool answered = false;  // at least one
  std::vector<std::pair<std::string, v1::GetServerResponse>> servers{};
  v1::ListSessionsResponse sessions{};
  std::vector<Failure> failures{};
};
Servers AskServers(const Targets& targets);
// Without GetServer, which some callers may not make.
Servers AskSessions(const Targets& targets);

struct AskedSession {
  v1::SessionStatus status{};  // as MergeShards has it
  int answers = 0;             // 0: nobody has the session
  // Not those that do not have it, if others do.
  std::vector<Failure> failures{};
};
AskedSession AskSession(const Targets& targets, const std::string& name);

struct AskedDigests {
  std::optional<v1::GetDigestsResponse> digests{};
  std::vector<Failure> failures{};  // where nobody has them
};
// As GetDigests. Of a session's daemons, one has them.
AskedDigests AskDigests(const Targets& targets, const std::string& name, std::int64_t first,
                        std::int64_t count);

// Does something to a session wherever it is.
using OneCall = std::function<absl::Status(const Target& target)>;
struct Done {
  int answers = 0;
  std::vector<Failure> failures{};  // as AskedSession's
};
Done OnAll(const Targets& targets, const OneCall& call);

// Each daemon holds its part of the session back; `paused` is what the latest of them will.
Done PauseAll(const Targets& targets, const std::string& name, absl::Duration length,
              const std::string& reason, v1::PauseSessionResponse& paused);

// Of a session that all these daemons have, each one a shard of it.
absl::StatusOr<std::string> ExportWhole(const Targets& targets, const std::string& session);
// Returns the iteration. An import that reached some of the daemons ends the session.
absl::StatusOr<std::int64_t> ImportWhole(const Targets& targets, const std::string& session,
                                         const std::string& state);

// In the order of the daemons, each with its name if there are several.
absl::StatusOr<std::vector<Trace>> TraceAll(const Targets& targets, const std::string& session,
                                            int steps, absl::Duration wait);

}  // namespace gradwire::ctl
