// What one seed stands for: the session, the training job, the network, the faults.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "hooks/coordinator_hook.h"
#include "server/core/queue_limits.h"
#include "server/core/session_core.h"
#include "tests/sim/feedback_hook.h"

namespace gradwire::sim {

struct CollectivePlan {
  wire::CollectiveKind kind = wire::CollectiveKind::kBarrier;
  int root = 0;
  std::size_t bytes = 0;
};

struct StepPlan {
  std::vector<CollectivePlan> collectives{};          // before the first bucket
  std::vector<std::vector<std::uint32_t>> buckets{};  // each member starts them in its own order
  bool end_step = false;
  bool reimports = false;  // rank 0 puts the exported state back before the first collective
  int nonfinite_rank = -1;
  std::uint32_t nonfinite_parameter = 0;
  bool nonfinite_only_at_first = false;  // only contributions of attempt 0 have it
};

enum class FaultKind : std::uint8_t {
  kCut,            // the connection breaks; the member resumes within the grace
  kDeath,          // the process is gone
  kShortStall,     // stands still for less than the silence timeout
  kLongStall,      // for more
  kDaemonPause,    // the daemon itself stands still
  kEarlyLeave,     // leaves with steps still to go
  kReplacement,    // another process asks for the member's rank, and may not have it
  kSuccession,     // dies while the session is joining; another process gets its rank
  kDeaf,           // lives, and reads nothing from then on
  kWithholds,      // lives, and neither begins nor ends anything from then on
  kHostile,        // sends malformed frames from then on
  kUnreachable,    // the connection breaks, and no other one is made within the grace
  kBulkStuck,      // nothing arrives on the member's bulk lane any more, until it has another
  kOldGeneration,  // a frame of an earlier session of the same name comes down the stream
};

struct Fault {
  FaultKind kind = FaultKind::kCut;
  std::size_t process = 0;
  std::size_t at_event = 0;  // or later, once it is possible
};

// An operator pauses the session, and perhaps resumes it before the time is over.
struct OperatorPause {
  std::size_t at_event = 0;  // or later, once the session runs
  absl::Duration length;
  absl::Duration resumed_after;  // not before `length`: never
};

struct Scenario {
  std::uint64_t seed = 0;
  std::uint64_t data_seed = 0;
  server::SessionOptions options;
  bool user_hook = false;
  bool power_sgd = false;
  FeedbackOptions feedback;
  bool any_rank = false;
  int in_place_percent = 0;     // members whose gradients the daemon reads and overwrites
  bool lanes = false;           // the others have a bulk lane
  std::size_t small_bytes = 0;  // what exceeds it counts as more than wire::kSmallPayload
  std::vector<StepPlan> steps;  // the last one has collectives only
  // What rank 0 says before its first bucket of that step; -1: nothing.
  std::int64_t draw_plan_step = -1;
  DrawBuckets draw_plan{};
  std::vector<Fault> faults;
  std::vector<OperatorPause> pauses;
  absl::Duration delay_low;
  absl::Duration delay_high;
  absl::Duration bulk_delay_high;
  absl::Duration think_high;  // between a member's buckets
  absl::Duration reduce_high;
  int reduce_inline_percent = 0;
  int duplicate_percent = 0;
  int stale_percent = 0;
  int slow_percent = 0;  // of (member, step): alive, but later than the silence timeout
  absl::Duration attach_delay_high;
  // This process joins only when all others have had their time to die: -1: none.
  int late_process = -1;
  // This process dies between its join and its stream, and another one takes its rank. -1: none.
  int dies_unattached = -1;
  server::QueueLimits::Limits queue;  // of each stream's
  // Frames that may wait to be handled by a member; 0: it handles them as they come.
  std::size_t inbox_frames = 0;

  std::size_t world() const { return static_cast<std::size_t>(options.world_size); }
  bool Has(FaultKind kind) const;
  std::unique_ptr<Hook> MakeHook() const;
  std::unique_ptr<CoordinatorHook> MakeCoordinator() const;  // null for a user's hook
  double Gradient(int rank, std::int64_t step, std::uint32_t parameter, std::size_t element) const;
};

Scenario MakeScenario(std::uint64_t seed);
std::string Describe(const Scenario& scenario);

}  // namespace gradwire::sim
