// The call that records some steps of a session.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/v1/admin.pb.h"
#include "server/core/step_timeline.h"
#include "server/rpc/messages.h"
#include "server/rpc/periodic_tasks.h"

namespace gradwire::server {

class Registry;
class SessionRunner;

// Limits the recordings that the daemon holds, which no session's reservation covers: each takes up
// to StepTimeline::kMostBytes. Thread-safe.
class Recordings : public std::enable_shared_from_this<Recordings> {
 public:
  static constexpr int kMost = 4;

  // Destroying it frees the place.
  using Place = std::shared_ptr<const void>;
  // ResourceExhausted: all are taken.
  absl::StatusOr<Place> Begin();

 private:
  std::atomic<int> count_ = 0;
};

inline constexpr std::size_t kTracePiece = std::size_t{64} << 10;
inline constexpr absl::Duration kTraceWait = absl::Minutes(1);
inline constexpr absl::Duration kMostTraceWait = absl::Minutes(10);
// For the reader to take what was recorded; afterwards the call is cancelled.
inline constexpr absl::Duration kTraceRead = absl::Seconds(30);

// Writes nothing until the recording has ended, then all of it in pieces. The recording ends early
// with its session, and is dropped if the caller goes away.
class TraceStream final : public RequestCall<v1::TraceSessionRequest>, public PeriodicTask {
 public:
  TraceStream(std::shared_ptr<const Registry> registry, std::shared_ptr<PeriodicTasks> ticks,
              std::shared_ptr<Recordings> recordings);

  void OnTick(absl::Time now) override;

 private:
  void OnRequest(const v1::TraceSessionRequest& request) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;
  absl::Status Begin(const v1::TraceSessionRequest& request);
  void WriteNext();
  v1::TraceSummary Summary() const;
  v1::TimelineEvent EventOf(const TimelineSpan& span) const;

  const std::shared_ptr<const Registry> registry_;
  const std::shared_ptr<PeriodicTasks> ticks_;
  const std::shared_ptr<Recordings> recordings_;
  // From OnRequest on.
  std::shared_ptr<SessionRunner> session_;
  std::uint64_t number_ = 0;  // of the recording; 0: there is none
  Recordings::Place place_;
  // The ticks' until the first piece is written, then the writes'.
  std::unique_ptr<StepTimeline> timeline_;
  bool has_summary_ = false;  // written
  std::size_t written_ = 0;   // spans
  // The ticks'.
  absl::Time read_by_ = absl::InfiniteFuture();
};

}  // namespace gradwire::server
