// A member's Exchange stream: a call on one side, a hosted session on the other.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/wire/frame.h"
#include "proto/wire/sync.h"
#include "server/member_stream.h"
#include "server/registry.h"
#include "server/rpc/call.h"
#include "server/tick_list.h"

namespace gradwire::server {

struct StreamLimits {
  std::size_t max_payload_bytes = 0;
  std::size_t max_queued_bytes = 0;
  absl::Duration hello_timeout;
  absl::Duration close_timeout;
};

// One read and one write are in flight at most. The next read begins when the frame before it has
// been dealt with: that is the back-pressure. Only a large sum is computed beside it; credits bound
// what can arrive meanwhile.
class ExchangeStream final : public Call, public MemberStream, public Ticked {
 public:
  ExchangeStream(const StreamLimits& limits, std::shared_ptr<Registry> registry,
                 std::shared_ptr<TickList> ticks);

  std::uint64_t id() const override { return id_; }
  void Queue(grpc::ByteBuffer frame, const wire::Weight& weight) override;
  void EndAfterQueue(const absl::Status& status) override;
  void Pump() override;
  bool idle() const override;
  bool shares_memory() const override;

  void OnTick(absl::Time now) override;

 private:
  struct Place {
    std::shared_ptr<HostedSession> session;
    int rank = 0;
    std::shared_ptr<MemberMemory> memory;  // null: the member shares none
  };
  struct Waiting {
    grpc::ByteBuffer bytes;
    wire::Weight weight;
  };

  void OnStart() override;
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  void ReadOn();
  // Ends the stream with what was queued; nothing more is read.
  void End(const absl::Status& status);
  void EndLocked(const absl::Status& status) GRADWIRE_REQUIRES(mutex_);
  absl::Status HandleHello(const absl::StatusOr<wire::Frame>& frame);
  // Puts the payload in place that lies in shared memory.
  absl::Status Resolve(const Place& at, wire::Frame& frame) const;
  void HandleEnd(const absl::Status& status);
  std::optional<Place> place() const;
  bool ending() const;

  const std::uint64_t id_;
  const StreamLimits limits_;
  const std::shared_ptr<Registry> registry_;
  const std::shared_ptr<TickList> ticks_;
  const absl::Time opened_;

  mutable Mutex mutex_;
  std::optional<Place> place_ GRADWIRE_GUARDED_BY(mutex_);  // once its Hello was taken
  std::deque<Waiting> queue_ GRADWIRE_GUARDED_BY(mutex_);
  std::size_t queued_bytes_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  bool writing_ GRADWIRE_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ GRADWIRE_GUARDED_BY(mutex_);
  absl::Time end_deadline_ GRADWIRE_GUARDED_BY(mutex_) = absl::InfiniteFuture();
};

}  // namespace gradwire::server
