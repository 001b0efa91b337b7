// What the daemon's metrics, probes and pages are made from.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/v1/admin.pb.h"
#include "server/access/caller.h"

namespace gradwire::server {

// Since the daemon began.
struct PortFigures {
  std::uint64_t refused_connections = 0;       // above a limit
  std::uint64_t connections_without_call = 0;  // that ended before their first one
  std::uint64_t unauthenticated_calls = 0;
  std::uint64_t denied_calls = 0;  // by a role or a list of sessions
  // Connections that were cut: see Intake.
  std::uint64_t cut_too_much = 0;
  std::uint64_t cut_too_slow = 0;
  std::uint64_t cut_too_many_peers = 0;
  std::uint64_t cut_no_call = 0;
  std::uint64_t cut_too_many_calls = 0;
  std::uint64_t cut_frames = 0;                    // see FrameGuard
  std::optional<absl::Time> certificate_expiry{};  // none: no TLS
};

// Of something that is refused, by the reason.
struct RefusalCount {
  std::string reason;
  std::uint64_t count = 0;
};

struct Figures {
  v1::GetServerResponse server;
  std::vector<v1::SessionStatus> sessions;  // also those that ended lately
  PortFigures ports;
  std::uint64_t closed_sessions = 0;
  std::uint64_t failed_sessions = 0;
  std::vector<RefusalCount> refused_joins = {};
  std::vector<RefusalCount> quota_refusals = {};
  std::uint64_t audit_dropped = 0;
  std::uint64_t record_left_out = 0;
};

// A part of a probe: "serving", and why not; empty: it is well.
struct ProbePart {
  std::string name;
  std::string problem;
};

// Thread-safe functions.
struct StatusSource {
  // Of the sessions that the caller may know of.
  std::function<Figures()> figures;
  std::function<absl::StatusOr<v1::SessionStatus>(const std::string& session)> session;
  // Who asks, by the header "Authorization"; or why nothing is shown. `peer`: the reader's address.
  std::function<absl::StatusOr<Caller>(const std::string& authorization, const std::string& peer)>
      admit;
  std::function<std::vector<ProbePart>()> live;
  std::function<std::vector<ProbePart>()> ready;
};

}  // namespace gradwire::server
