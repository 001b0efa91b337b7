// What operators do to sessions.
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/printable.h"
#include "proto/wire/proto_conversion.h"
#include "server/access/audit.h"
#include "server/rpc/clock.h"
#include "server/services/admin_service.h"
#include "server/session/registry.h"
#include "server/session/session_runner.h"

namespace gradwire::server {

absl::Status AdminService::TryEvict(const v1::EvictSessionRequest& request) const {
  constexpr std::size_t kMostReason = 256;
  if (request.reason().size() > kMostReason) {
    return Coded(ErrorCode::kCtlUsage,
                 absl::InvalidArgumentError(absl::StrCat("reason: it has ", request.reason().size(),
                                                         " bytes; allowed are ", kMostReason)));
  }
  const std::shared_ptr<SessionRunner> session = registry_->Get(request.session());
  if (session == nullptr) return registry_->NotThere(request.session());
  // The reason may end in anything.
  session->Fail(absl::CancelledError(RecodedText(ErrorCode::kEvicted,
                                                 absl::StrCat("an operator ended the session",
                                                              request.reason().empty() ? "" : ": ",
                                                              Printable(request.reason())))),
                -1);
  return absl::OkStatus();
}

absl::Status AdminService::TryPause(const v1::PauseSessionRequest& request,
                                    v1::PauseSessionResponse& response) const {
  const auto duration = wire::FromProto(request.duration(), "duration");
  if (!duration.ok()) return duration.status();
  const std::shared_ptr<SessionRunner> session = registry_->Get(request.session());
  if (session == nullptr) return registry_->NotThere(request.session());
  const auto paused = session->Pause(*duration, request.reason(), MonotonicNow());
  if (!paused.ok()) return paused.status();
  response.set_step(paused->step);
  response.set_holding(paused->holding);
  return absl::OkStatus();
}

absl::Status AdminService::Recorded(const std::string& event, const std::string& session,
                                    const Caller& caller, const absl::Status& status,
                                    const std::string& reason) const {
  if (AuditSink* const audit = registry_->audit(); audit != nullptr) {
    AuditEvent record = EventOf(event, caller, session, status);
    if (status.ok()) record.reason = reason;
    audit->Record(std::move(record));
  }
  return status;
}

absl::Status AdminService::EvictSession(const v1::EvictSessionRequest& request,
                                        const Caller& caller) const {
  return Recorded("evict", request.session(), caller, TryEvict(request), request.reason());
}

absl::Status AdminService::PauseSession(const v1::PauseSessionRequest& request,
                                        v1::PauseSessionResponse& response,
                                        const Caller& caller) const {
  return Recorded("pause", request.session(), caller, TryPause(request, response),
                  request.reason());
}

absl::Status AdminService::ResumeSession(const v1::ResumeSessionRequest& request,
                                         const Caller& caller) const {
  const std::shared_ptr<SessionRunner> session = registry_->Get(request.session());
  return Recorded("resume", request.session(), caller,
                  session == nullptr ? registry_->NotThere(request.session())
                                     : session->Unpause(MonotonicNow()),
                  "");
}

}  // namespace gradwire::server
