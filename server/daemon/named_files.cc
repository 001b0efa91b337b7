#include "server/daemon/named_files.h"

#include <utility>

#include "server/access/access_control.h"
#include "server/arbiter/file_arbiter.h"
#include "server/daemon/audit_log.h"
#include "server/net/certificate_store.h"
#include "server/record/recorder.h"

namespace gradwire::server {

std::vector<absl::Status> CheckNamedFiles(const ServerOptions& options, absl::Time now) {
  std::vector<absl::Status> problems;
  const auto add = [&](absl::Status status) {
    if (!status.ok()) problems.push_back(std::move(status));
  };
  // Apart, so that both may have an error.
  add(CertificateStore::Check({.cert = options.tls.cert, .key = options.tls.key}, now));
  add(CertificateStore::Check({.ca = options.tls.ca}, now));
  if (!options.tokens.empty()) add(AccessControl::CheckFile(options.tokens));
  if (!options.audit_log.empty()) add(AuditLog::Check(options.audit_log));
  if (!options.record.empty()) add(Recorder::Check(options.record));
  if (!options.arbiter.empty()) add(FileArbiter::Check(options.arbiter));
  return problems;
}

}  // namespace gradwire::server
