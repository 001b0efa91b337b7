// Looks up where a daemon is while no stream to it can be opened.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "base/sync.h"
#include "client/daemon_lookup.h"

namespace gradwire::client {

// On a thread of its own, because a lookup waits for the resolver and the SDK's thread must not.
class AddressWatch {
 public:
  // `moved`: once, on that thread, when the name no longer has the address of the shard's daemon.
  AddressWatch(std::shared_ptr<DaemonLookup> daemons, std::uint32_t shard,
               std::function<void()> moved);
  // Waits for a lookup that is under way.
  ~AddressWatch();
  AddressWatch(const AddressWatch&) = delete;
  AddressWatch& operator=(const AddressWatch&) = delete;

  // No further lookup begins. From any thread.
  void Stop() GRADWIRE_EXCLUDES(mutex_);

 private:
  void Run() GRADWIRE_EXCLUDES(mutex_);
  // False: stopped.
  bool Pause() GRADWIRE_EXCLUDES(mutex_);

  const std::shared_ptr<DaemonLookup> daemons_;
  const std::uint32_t shard_;
  const std::function<void()> moved_;
  Mutex mutex_;
  CondVar wake_;
  bool stopped_ GRADWIRE_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace gradwire::client
