// The process's services that sessions use.
#pragma once

#include <functional>
#include <memory>

#include "server/access/audit.h"
#include "server/access/quota_ledger.h"
#include "server/session/work_threads.h"

namespace gradwire::server {

class FileArbiter;
class LeafSession;
class RecordSink;
class Reducer;
struct MemoryQuotas;

struct SessionHost {
  std::shared_ptr<Reducer> reducer;
  // Called by a thread that is about to work or wait for a long time: if it is the leader of the
  // RPC threads, it yields leadership.
  std::function<void()> before_long_work;
  std::shared_ptr<WorkThreads> work_threads;
  std::shared_ptr<MemoryQuotas> memory_quotas;    // of the daemon's counts
  std::shared_ptr<QuotaLedger> ledger = nullptr;  // null: nobody has a quota
  std::shared_ptr<AuditSink> audit = nullptr;     // null: there is no audit log
  std::shared_ptr<LeafSession> leaf = nullptr;    // this session's; null: the daemon is no leaf
  std::shared_ptr<RecordSink> record = nullptr;   // null: its steps are not recorded
  std::shared_ptr<const FileArbiter> arbiter = nullptr;  // null: no session claims rosters
};

}  // namespace gradwire::server
