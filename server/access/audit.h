// What the audit log is told: who did what, and what came of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace gradwire::server {

struct Caller;

struct AuditEvent {
  enum class Outcome : std::uint8_t {
    kDone,
    kRefused,  // the log bounds the rate of these: peers can cause as many as they like
  };

  std::string event;  // "join", "session_ended": README.md has the list
  Outcome outcome = Outcome::kDone;
  // Of the caller; empty if nobody called, or if nothing is proven.
  std::string identity = {};
  std::string role = {};
  std::string certificate = {};  // the name in it, as the peer gave it
  std::string peer = {};         // its address; empty on a unix socket
  std::string session = {};
  std::optional<int> rank = {};
  // Never a token or another secret.
  std::string reason = {};
};

// Thread-safe. Record returns at once: it never waits for a disk.
class AuditSink {
 public:
  virtual ~AuditSink() = default;
  virtual void Record(AuditEvent event) = 0;
};

// An event that a caller caused, refused if the status is an error. `session` may be what a peer
// sent.
AuditEvent EventOf(const std::string& event, const Caller& caller, const std::string& session,
                   const absl::Status& status);

}  // namespace gradwire::server
