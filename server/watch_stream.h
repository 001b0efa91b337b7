// A Watch call: tells its client what changed in one session.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/v1/aggregation.pb.h"
#include "proto/wire/sync.h"
#include "server/hosted_session.h"
#include "server/tick_list.h"

namespace gradwire::server {

// Lives until gRPC is done with the call. Ends, with OK, after it told that the session has ended.
// A client that does not read is told less often: a new answer begins when the last one was taken.
class WatchStream final : public grpc::ServerWriteReactor<v1::WatchResponse>, public Ticked {
 public:
  static WatchStream* Start(std::shared_ptr<const HostedSession> session,
                            std::shared_ptr<TickList> ticks);

  void OnTick(absl::Time now) override;

 private:
  WatchStream(std::shared_ptr<const HostedSession> session, std::shared_ptr<TickList> ticks);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void FinishOnce(const absl::Status& status);

  const std::shared_ptr<const HostedSession> session_;
  const std::shared_ptr<TickList> ticks_;

  Mutex mutex_;
  v1::WatchResponse response_ GRADWIRE_GUARDED_BY(mutex_);  // unchanged while it is written
  absl::Time told_at_ GRADWIRE_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool writing_ GRADWIRE_GUARDED_BY(mutex_) = false;
  bool over_ GRADWIRE_GUARDED_BY(mutex_) = false;  // `response_` was the last
  std::optional<absl::Status> finish_ GRADWIRE_GUARDED_BY(mutex_);
  bool finished_ GRADWIRE_GUARDED_BY(mutex_) = false;

  std::shared_ptr<WatchStream> self_;  // until OnDone
};

}  // namespace gradwire::server
