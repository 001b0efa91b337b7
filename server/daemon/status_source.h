// Where the status pages and bug reports get what they show.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/sync.h"
#include "gradwire/v1/admin.pb.h"
#include "server/daemon/options.h"
#include "server/http/figures.h"
#include "server/http/http_server.h"

namespace gradwire::server {

class AuditLog;
class Ports;
class Registry;
class Server;
class Services;

// Notes when the daemon's ticker last ran: a probe that finds it late tells that the daemon hangs.
// Thread-safe.
class Heart {
 public:
  void Beat(absl::Time now) { last_.store(absl::ToUnixNanos(now), std::memory_order_relaxed); }
  absl::Time last() const { return absl::FromUnixNanos(last_.load(std::memory_order_relaxed)); }

 private:
  std::atomic<std::int64_t> last_ = 0;
};

// What AdminService.GetDiagnostics answers beside the version. Thread-safe.
class Diagnostics {
 public:
  void SetConfiguration(std::string text) GRADWIRE_EXCLUDES(mutex_);
  void Fill(const Server& server, v1::GetDiagnosticsResponse& response) const
      GRADWIRE_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::string configuration_ GRADWIRE_GUARDED_BY(mutex_);
};

// All of them outlive the source. `audit` may be null.
StatusSource MakeStatusSource(const Registry& registry, const Services& services,
                              const Ports& ports, const Heart& heart, const AuditLog* audit);

// Serves the pages where the options say, or nowhere: null. With "auto", an address that is taken
// is no error.
absl::StatusOr<std::unique_ptr<HttpServer>> ServeStatus(const ServerOptions& options,
                                                        StatusSource source);

}  // namespace gradwire::server
