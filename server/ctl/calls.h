// gradwirectl's calls to a daemon. Each has a deadline.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/v1/admin.pb.h"
#include "proto/tls/pem.h"
#include "server/ctl/trace.h"

namespace gradwire::ctl {

struct Target {
  std::string address;
  tls::Files tls = {};
  std::string token_file = {};
  absl::Duration timeout;
  std::string host = {};  // what the daemon's certificate is for; empty: the host in the address
};

absl::StatusOr<v1::GetServerResponse> GetServer(const Target& target);
absl::StatusOr<v1::ListSessionsResponse> ListSessions(const Target& target);
absl::StatusOr<v1::SessionStatus> GetSession(const Target& target, const std::string& name);
// At most `count` steps from `first` on; 0: all.
absl::StatusOr<v1::GetDigestsResponse> GetDigests(const Target& target, const std::string& name,
                                                  std::int64_t first, std::int64_t count);

// A session's state as the bytes of a safetensors file; import returns its iteration.
absl::StatusOr<std::string> ExportState(const Target& target, const std::string& session);
// `daemons` is how many are given the state.
absl::StatusOr<std::int64_t> ImportState(const Target& target, const std::string& session,
                                         const std::string& state, std::uint32_t daemons);

// Ends the session; its members get the reason.
absl::Status EvictSession(const Target& target, const std::string& name, const std::string& reason);

// Holds it back before its next step, for that long.
absl::StatusOr<v1::PauseSessionResponse> PauseSession(const Target& target, const std::string& name,
                                                      absl::Duration length,
                                                      const std::string& reason);
absl::Status ResumeSession(const Target& target, const std::string& name);

absl::StatusOr<v1::GetDiagnosticsResponse> GetDiagnostics(const Target& target);
// Waits until the session's next steps are over, at most for `wait`.
absl::StatusOr<Trace> TraceSession(const Target& target, const std::string& name, int steps,
                                   absl::Duration wait);

// grpc.health.v1. "": the daemon as a whole. NotFound: it has no such service.
absl::StatusOr<bool> IsServing(const Target& target, const std::string& service);

}  // namespace gradwire::ctl
