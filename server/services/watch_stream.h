// A Watch call: tells its client what changed in one session.
#pragma once

#include <memory>

#include "absl/time/time.h"
#include "base/sync.h"
#include "gradwire/v1/aggregation.pb.h"
#include "server/rpc/messages.h"
#include "server/rpc/periodic_tasks.h"

namespace gradwire::server {

class Registry;
class SessionRunner;

// Ends with OK after it has reported the end of the session. A client that reads slowly gets fewer
// reports: a new one is written only after the previous one was taken.
class WatchStream final : public RequestCall<v1::WatchRequest>, public PeriodicTask {
 public:
  WatchStream(std::shared_ptr<const Registry> registry, std::shared_ptr<PeriodicTasks> ticks);

  void OnTick(absl::Time now) override;

 private:
  void OnRequest(const v1::WatchRequest& request) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

  const std::shared_ptr<const Registry> registry_;
  const std::shared_ptr<PeriodicTasks> ticks_;
  std::shared_ptr<const SessionRunner> session_;  // from OnRequest on

  Mutex mutex_;
  v1::WatchResponse told_ GRADWIRE_GUARDED_BY(mutex_);
  absl::Time told_at_ GRADWIRE_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool writing_ GRADWIRE_GUARDED_BY(mutex_) = false;
  bool over_ GRADWIRE_GUARDED_BY(mutex_) = false;  // `told_` was the last
};

}  // namespace gradwire::server
