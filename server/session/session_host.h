// What hosted sessions use of the process that they run in.
#pragma once

#include <functional>
#include <memory>

#include "server/session/work_threads.h"

namespace gradwire::server {

class Reducer;
struct MemoryQuotas;

struct SessionHost {
  std::shared_ptr<Reducer> reducer;
  // The calling thread is about to work or to wait for long: if it handles events, another takes
  // them over.
  std::function<void()> before_long_work;
  std::shared_ptr<WorkThreads> work_threads;
  std::shared_ptr<MemoryQuotas> memory_quotas;  // of the daemon's counts
};

}  // namespace gradwire::server
