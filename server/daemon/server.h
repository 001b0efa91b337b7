// The daemon as an object: main.cc and the tests use the same one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/access/quota_limits.h"
#include "server/daemon/options.h"

namespace gradwire::server {

// Thread-safe. Installs no signal handler. Serves from Start until Shutdown, which the destructor
// calls with no time to spare.
class Server {
 public:
  // InvalidArgument or FailedPrecondition for options that are not valid, Unavailable when an
  // address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);

  virtual ~Server() = default;

  // As listened on, with the ports that were taken: "127.0.0.1:41234", "unix:/path".
  virtual const std::vector<std::string>& addresses() const = 0;

  // Of admin calls; none if they have no addresses of their own.
  virtual std::vector<std::string> admin_addresses() const = 0;

  // Of metrics, probes and the status page; none if they are off.
  virtual std::vector<std::string> http_addresses() const = 0;

  // Sessions that have not ended.
  virtual std::size_t sessions() const = 0;
  virtual int connections() const = 0;

  // What GetDiagnostics answers as the configuration; empty unless it is set.
  virtual void SetConfigurationText(std::string text) = 0;

  // Counts for sessions that begin from now on.
  virtual void SetMaxSessions(int max_sessions) = 0;

  // Counts for joins from now on.
  virtual void SetQuotas(const QuotaLimits& identity, const QuotaLimits& session) = 0;

  // The configuration was read again, or could not be: a line in the audit log, whose file is then
  // opened again. `changes`: what has changed.
  virtual void OnReload(const absl::Status& status, const std::string& changes) = 0;

  // Health says NOT_SERVING and joins are refused from here on; sessions that are not complete yet
  // end at once, and running ones go on.
  virtual void BeginDrain() = 0;
  // Whether no session runs and no member's stream is open.
  virtual bool idle() const = 0;
  // Connections that were cut, because they held or cost more than a peer may.
  virtual std::uint64_t connections_cut() const = 0;
  // BeginDrain, and waits. True: idle within `timeout`.
  virtual bool Drain(absl::Duration timeout) = 0;

  // Ends what still runs with an error for its members, gives them `timeout` to take it, and stops
  // listening. Returns when no thread of the server is left. Later calls do nothing.
  virtual void Shutdown(absl::Duration timeout) = 0;
};

}  // namespace gradwire::server
