// A member's Exchange stream. It connects a call (or two, with the bulk lane) to a session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/sync.h"
#include "proto/wire/bundle.h"
#include "proto/wire/frame.h"
#include "proto/wire/lane_receiver.h"
#include "server/rpc/call.h"
#include "server/rpc/periodic_tasks.h"
#include "server/services/lane_pairs.h"
#include "server/services/send_queue.h"
#include "server/services/stream_limits.h"
#include "server/session/member_stream.h"

namespace gradwire::server {

class BulkLane;
class MemberMemory;
class Registry;
class SessionRunner;

// On each lane at most one read and one write are in flight. The next read begins when the previous
// frame has been handled, which creates back-pressure. Only a large sum runs in parallel with it;
// the window bounds what can arrive meanwhile.
class MemberExchange final : public Call, public MemberStream, public PeriodicTask {
 public:
  MemberExchange(const StreamLimits& limits, std::shared_ptr<Registry> registry,
                 std::shared_ptr<LanePairs> pairs, std::shared_ptr<PeriodicTasks> ticks);

  std::uint64_t id() const override { return id_; }
  void Queue(Outgoing frame) override;
  void QueueHeartbeats() override;
  void EndAfterQueue(const absl::Status& status) override;
  void Pump(wire::Lane lane) override;
  bool shares_memory() const override;
  bool is_local() const override { return Call::is_local(); }

  void OnTick(absl::Time now) override;

  // Called by the bulk lane: Connect once, before the others.
  void Connect(const std::shared_ptr<BulkLane>& bulk);
  void OnFrame(wire::Lane lane, absl::StatusOr<wire::Frame> frame);
  void OnBulkWritten(bool ok) { OnWritten(wire::Lane::kBulk, ok); }
  void OnBulkEnd();

 private:
  // The stream is broken, and with it the bulk lane.
  void HandleEnd(const absl::Status& status);
  struct Place {
    std::shared_ptr<SessionRunner> session;
    int rank = 0;
    std::shared_ptr<MemberMemory> memory;  // null: the member shares none
  };

  void OnStart() override;
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  void ReadOn(wire::Lane lane) GRADWIRE_EXCLUDES(mutex_);
  // Writes what is queued and ends the stream. Reads nothing more.
  void End(const absl::Status& status);
  void EndLocked(const absl::Status& status) GRADWIRE_REQUIRES(mutex_);
  absl::Status HandleHello(const absl::StatusOr<wire::Frame>& frame);
  // Returns an error if the frame is not allowed on this stream. Resolves a payload in shared
  // memory.
  absl::Status Resolve(const Place& at, wire::Frame& frame) const;
  // The session has taken a frame of this lane. Returns a frame of the other lane that waited for
  // it.
  std::optional<wire::Frame> OnTaken(wire::Lane lane) GRADWIRE_EXCLUDES(mutex_);
  void OnWritten(wire::Lane lane, bool ok) GRADWIRE_EXCLUDES(mutex_);
  // Returns an error if the bulk lane did not come in time, or if a lane is silent for too long.
  absl::Status CheckLanes(absl::Time now) GRADWIRE_REQUIRES(mutex_);
  // A message after the Hello.
  void OnMessage();
  // A frame that others follow in its message. False: the stream ends.
  bool TakeOne(wire::Frame frame);
  bool has_pair() const;
  std::optional<Place> place() const;
  std::shared_ptr<BulkLane> bulk() const;
  bool ending() const;

  const std::uint64_t id_;
  const StreamLimits limits_;
  const std::shared_ptr<Registry> registry_;
  const std::shared_ptr<LanePairs> pairs_;
  const std::shared_ptr<PeriodicTasks> ticks_;
  const absl::Time opened_;
  wire::ArrivalRate arrivals_;

  mutable Mutex mutex_;
  std::optional<Place> place_ GRADWIRE_GUARDED_BY(mutex_);          // once its Hello was taken
  std::optional<LanePairs::Key> pair_ GRADWIRE_GUARDED_BY(mutex_);  // it has two lanes
  std::shared_ptr<BulkLane> bulk_ GRADWIRE_GUARDED_BY(mutex_);      // once connected, until done
  absl::Time last_tick_ GRADWIRE_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  SendQueue queue_ GRADWIRE_GUARDED_BY(mutex_);
  bool bundles_ GRADWIRE_GUARDED_BY(mutex_) = false;  // the member takes them
  wire::LaneReceiver<wire::Frame, absl::Time> receiver_ GRADWIRE_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ GRADWIRE_GUARDED_BY(mutex_);
  absl::Time end_deadline_ GRADWIRE_GUARDED_BY(mutex_) = absl::InfiniteFuture();
};

}  // namespace gradwire::server
