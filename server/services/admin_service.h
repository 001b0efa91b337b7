// Implements gradwire.v1.AdminService, for operators.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/v1/admin.pb.h"
#include "server/rpc/methods.h"
#include "server/rpc/periodic_tasks.h"

namespace gradwire::server {

class Recordings;
class Registry;

// Thread-safe. Outlives the calls of its methods.
class AdminService final {
 public:
  // `connections` returns the number of open connections. `diagnose` adds what only the owner
  // knows.
  AdminService(std::shared_ptr<const Registry> registry, std::shared_ptr<PeriodicTasks> ticks,
               std::function<int()> connections,
               std::function<void(v1::GetDiagnosticsResponse&)> diagnose);

  void AddTo(Methods& methods);

  void GetServer(v1::GetServerResponse& response, const Caller& caller = {}) const;

 private:
  // Those that the caller may know of.
  void ListSessions(v1::ListSessionsResponse& response, const Caller& caller) const;
  absl::Status GetSession(const v1::GetSessionRequest& request,
                          v1::GetSessionResponse& response) const;
  absl::Status GetDigests(const v1::GetDigestsRequest& request,
                          v1::GetDigestsResponse& response) const;
  absl::Status EvictSession(const v1::EvictSessionRequest& request, const Caller& caller) const;
  absl::Status PauseSession(const v1::PauseSessionRequest& request,
                            v1::PauseSessionResponse& response, const Caller& caller) const;
  absl::Status ResumeSession(const v1::ResumeSessionRequest& request, const Caller& caller) const;
  absl::Status TryEvict(const v1::EvictSessionRequest& request) const;
  absl::Status TryPause(const v1::PauseSessionRequest& request,
                        v1::PauseSessionResponse& response) const;
  // What an operator did to a session, or why not, for the audit log.
  absl::Status Recorded(const std::string& event, const std::string& session, const Caller& caller,
                        const absl::Status& status, const std::string& reason) const;
  void GetDiagnostics(v1::GetDiagnosticsResponse& response) const;

  const std::shared_ptr<const Registry> registry_;
  const std::shared_ptr<PeriodicTasks> ticks_;
  const std::function<int()> connections_;
  const std::function<void(v1::GetDiagnosticsResponse&)> diagnose_;
  const std::shared_ptr<Recordings> recordings_;
  const absl::Time started_;
};

}  // namespace gradwire::server
