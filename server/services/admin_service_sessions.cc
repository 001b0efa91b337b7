// What operators do to sessions.
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/printable.h"
#include "proto/wire/proto_conversion.h"
#include "server/rpc/clock.h"
#include "server/services/admin_service.h"
#include "server/session/registry.h"
#include "server/session/session_runner.h"

namespace gradwire::server {

absl::Status AdminService::EvictSession(const v1::EvictSessionRequest& request) const {
  constexpr std::size_t kMostReason = 256;
  if (request.reason().size() > kMostReason) {
    return Coded(ErrorCode::kCtlUsage,
                 absl::InvalidArgumentError(absl::StrCat("reason: it has ", request.reason().size(),
                                                         " bytes; allowed are ", kMostReason)));
  }
  const std::shared_ptr<SessionRunner> session = registry_->Get(request.session());
  if (session == nullptr) return UnknownSession(request.session());
  // The reason may end in anything.
  session->Fail(absl::CancelledError(RecodedText(ErrorCode::kEvicted,
                                                 absl::StrCat("an operator ended the session",
                                                              request.reason().empty() ? "" : ": ",
                                                              Printable(request.reason())))),
                -1);
  return absl::OkStatus();
}

absl::Status AdminService::PauseSession(const v1::PauseSessionRequest& request,
                                        v1::PauseSessionResponse& response) const {
  const auto duration = wire::FromProto(request.duration(), "duration");
  if (!duration.ok()) return duration.status();
  const std::shared_ptr<SessionRunner> session = registry_->Get(request.session());
  if (session == nullptr) return UnknownSession(request.session());
  const auto paused = session->Pause(*duration, request.reason(), MonotonicNow());
  if (!paused.ok()) return paused.status();
  response.set_step(paused->step);
  response.set_holding(paused->holding);
  return absl::OkStatus();
}

absl::Status AdminService::ResumeSession(const v1::ResumeSessionRequest& request) const {
  const std::shared_ptr<SessionRunner> session = registry_->Get(request.session());
  if (session == nullptr) return UnknownSession(request.session());
  return session->Unpause(MonotonicNow());
}

}  // namespace gradwire::server
