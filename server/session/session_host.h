// The process's services that sessions use.
#pragma once

#include <functional>
#include <memory>

#include "server/session/reducer.h"
#include "server/session/session_memory.h"

namespace gradwire::server {

struct SessionHost {
  std::shared_ptr<Reducer> reducer;
  // Called by a thread that is about to work or wait for a long time: if it is the leader of the
  // RPC threads, it yields leadership.
  std::function<void()> before_long_work;
  std::shared_ptr<MemoryQuotas> memory_quotas;  // of the daemon's counts
};

}  // namespace gradwire::server
