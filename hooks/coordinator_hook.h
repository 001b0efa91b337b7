// The coordinator's part of a hook: it plans the rounds, keeps what all members share, and sees the
// results go by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/hooks/hook.h"

namespace gradwire {

// One line of a session's compression report.
struct ParameterReport {
  std::string name;          // batched: of the bucket's first parameter
  std::int64_t rank = 0;     // approximation rank; 0: not compressed
  double ratio = 1;          // elements of the gradient over elements that travel
  std::int64_t version = 0;  // the iteration after which Q was averaged; 0: drawn
};

// Not thread-safe; no I/O. Buckets are lists of the manifest's parameters, in buffer order.
class CoordinatorHook {
 public:
  virtual ~CoordinatorHook() = default;

  virtual absl::StatusOr<std::vector<RoundPlan>> Plan(
      std::span<const ParameterSpec> bucket) const = 0;

  // Changes when members have to be given the bucket's shared state although they took part in
  // every step since they had it; 0: there is none.
  virtual std::uint64_t SharedEpoch(std::span<const ParameterSpec> /*bucket*/) { return 0; }

  // What HookRun::Import takes, for this step.
  virtual std::vector<std::byte> SharedState(std::span<const ParameterSpec> /*bucket*/) {
    return {};
  }

  // Elements of a round's result, once they are released. `bytes` is in the segment's dtype.
  virtual void Observe(std::span<const ParameterSpec> /*bucket*/, std::uint32_t /*round*/,
                       const ElementRange& /*range*/, std::span<const std::byte> /*bytes*/) {}

  // Whether Observe wants this segment.
  virtual bool Observes(std::uint32_t /*round*/, const Segment& /*segment*/) const { return false; }

  // The step is over: what was observed becomes the state, or is forgotten.
  virtual void EndStep(Verdict /*verdict*/) {}

  // Steps applied.
  virtual std::int64_t iteration() const { return 0; }

  // Upper bound of the bytes that the shared state takes, by the manifest.
  virtual std::size_t StateBytes() const { return 0; }

  // Applied steps from one line of compression statistics in the log to the next; 0: none.
  virtual std::int64_t log_interval() const { return 0; }

  // Empty while nothing is compressed.
  virtual std::vector<ParameterReport> Report() const { return {}; }

  // The whole state between two steps. Import refuses another hook, other options, another layout
  // or version by name, and then leaves everything as it was.
  virtual absl::StatusOr<HookState> Export() const;
  virtual absl::Status Import(const HookState& state);
};

// Plans with the member's own object and shares nothing.
std::unique_ptr<CoordinatorHook> MakePlanningHook(std::unique_ptr<Hook> hook);

// For a validated spec. Null for a user's own hook: its members announce their rounds.
absl::StatusOr<std::unique_ptr<CoordinatorHook>> MakeCoordinatorHook(
    const HookSpec& spec, std::span<const ParameterSpec> manifest);

}  // namespace gradwire
