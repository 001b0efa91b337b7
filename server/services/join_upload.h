// A join whose manifest comes in parts.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/wire/join_parts.h"
#include "server/rpc/messages.h"
#include "server/rpc/periodic_tasks.h"
#include "server/session/memory_budget.h"

namespace gradwire::server {

// The memory that all unfinished joins in parts may take together, in addition to the
// `session_bytes` of the daemon's sessions.
constexpr std::size_t JoinUploadMemory(std::size_t session_bytes) {
  constexpr std::size_t kMost = std::size_t{1} << 30;
  return session_bytes / 8 < kMost ? session_bytes / 8 : kMost;
}
// A call that takes longer ends: it holds memory that others wait for.
inline constexpr absl::Duration kJoinUploadTimeout = absl::Seconds(60);

// Fails with UNAVAILABLE, which members retry, if other uploads leave no room, and with
// RESOURCE_EXHAUSTED if the manifest can never fit. Holds its share of the memory from the first
// part until the join is answered.
class JoinUpload final : public Call, public PeriodicTask {
 public:
  using Handler =
      std::function<absl::Status(const v1::JoinRequest&, std::vector<ParameterSpec> manifest,
                                 v1::JoinResponse&, const Caller&)>;
  struct Gate {
    // Whether the caller may begin one now.
    std::function<absl::Status(const Caller&)> admit;
    // Told of each join that is refused before `join` has it.
    std::function<void(const Caller&, const absl::Status&)> on_refused;
  };

  JoinUpload(Handler join, Gate gate, std::shared_ptr<MemoryBudget> memory,
             std::shared_ptr<PeriodicTasks> ticks);

  void OnTick(absl::Time now) override;

 private:
  void OnStart() override;
  void OnReadDone(bool ok) override;
  void OnDone() override;
  absl::Status Reserve(std::size_t bytes);
  absl::Status Take();
  void Refuse(const absl::Status& why);
  // Called after the last part.
  absl::Status Join(v1::JoinResponse& response);

  const Handler join_;
  const Gate gate_;
  std::atomic<bool> refused_ = false;
  const std::shared_ptr<MemoryBudget> memory_;
  const std::shared_ptr<PeriodicTasks> ticks_;
  const absl::Time deadline_;
  MemoryBudget::Share share_;  // before parts_, which it outlives
  wire::JoinParts parts_;
};

}  // namespace gradwire::server
