#include "server/access/audit.h"

#include "server/access/caller.h"

namespace gradwire::server {
namespace {

// A session's name has at most 128.
constexpr std::size_t kMostName = 200;

}  // namespace

AuditEvent EventOf(const std::string& event, const Caller& caller, const std::string& session,
                   const absl::Status& status) {
  return {.event = event,
          .outcome = status.ok() ? AuditEvent::Outcome::kDone : AuditEvent::Outcome::kRefused,
          .identity = caller.identity,
          .role = Name(caller.role),
          .certificate = caller.certificate,
          .peer = caller.peer,
          .session = session.substr(0, kMostName),
          .reason = std::string(status.message())};
}

}  // namespace gradwire::server
