// A member's bulk lane: a call that carries the large frames of a MemberExchange.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/sync.h"
#include "proto/wire/frame.h"
#include "server/rpc/call.h"
#include "server/rpc/periodic_tasks.h"
#include "server/services/lane_pairs.h"
#include "server/services/stream_limits.h"

namespace gradwire::server {

class MemberExchange;
class Registry;

// After its Hello the lane waits until its stream connects it, at most for the time that a Hello
// may take. Lane and stream end together, and refer to each other until then.
class BulkLane final : public Call, public PeriodicTask {
 public:
  BulkLane(const StreamLimits& limits, std::shared_ptr<Registry> registry,
           std::shared_ptr<LanePairs> pairs, std::shared_ptr<PeriodicTasks> ticks);

  // Called by the stream, once. The lane does not read before that. False: the lane has ended.
  bool Connect(const std::shared_ptr<MemberExchange>& stream) GRADWIRE_EXCLUDES(mutex_);
  void ReadOn() { StartRead(); }
  // One at a time: MemberExchange::OnBulkWritten follows.
  void Write(const grpc::ByteBuffer& frame) { StartWrite(frame); }
  void Break() { TryCancel(); }

  void OnTick(absl::Time now) override;

 private:
  void OnStart() override;
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  absl::Status HandleHello(const absl::StatusOr<wire::Frame>& frame) GRADWIRE_EXCLUDES(mutex_);
  std::shared_ptr<MemberExchange> stream() const GRADWIRE_EXCLUDES(mutex_);
  void TellEnd();

  const StreamLimits limits_;
  const std::shared_ptr<Registry> registry_;
  const std::shared_ptr<LanePairs> pairs_;
  const std::shared_ptr<PeriodicTasks> ticks_;
  const absl::Time opened_;

  mutable Mutex mutex_;
  std::optional<LanePairs::Key> key_ GRADWIRE_GUARDED_BY(mutex_);  // once its Hello was taken
  // Once connected, until done.
  std::shared_ptr<MemberExchange> stream_ GRADWIRE_GUARDED_BY(mutex_);
  bool done_ GRADWIRE_GUARDED_BY(mutex_) = false;
};

}  // namespace gradwire::server
