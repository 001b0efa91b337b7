// The coordinator's part of a hook: it plans the rounds, keeps what all members share, and sees the
// results go by.
//
// The owner calls a hook under a lock that the session's data path needs too, so no call may take
// long: what grows with the number of parameters or of factor values is handed out as an object
// that shares immutable data with the hook, works on any thread without that lock, and may outlive
// the hook. Those objects are SharedStateWork, HookSnapshot, HookImport and HookChore.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/hooks/hook.h"
#include "hooks/draw_buckets.h"

namespace gradwire {

// A session's parameters: one copy for everybody, immutable.
using SharedManifest = std::shared_ptr<const std::vector<ParameterSpec>>;

// A bucket: the positions of its parameters in the manifest, in buffer order. At least one, all in
// range, none twice.
using BucketPositions = std::span<const std::uint32_t>;

// One line of a session's compression report.
struct ParameterReport {
  std::string name;          // batched: of the bucket's first parameter
  std::int64_t rank = 0;     // approximation rank; 0: not compressed
  double ratio = 1;          // elements of the gradient over elements that travel
  std::int64_t version = 0;  // the iteration after which Q was averaged; 0: drawn
};

// Makes the bytes of a bucket's shared state. One thread at a time.
class SharedStateWork {
 public:
  virtual ~SharedStateWork() = default;
  // Once.
  virtual void Run() = 0;
  // After Run, once: what HookRun::Import takes.
  virtual std::vector<std::byte> TakeBytes() = 0;
};

// Whether a shard has the parameter at this position in the manifest. Empty: it has all.
using OwnsParameter = std::function<bool(std::uint32_t parameter)>;

// The hook's state at one moment. Thread-safe.
class HookSnapshot {
 public:
  virtual ~HookSnapshot() = default;
  // For a file: as it was after the last step, without a trace of one that is open.
  // FailedPrecondition: the hook keeps no state on the coordinator.
  absl::StatusOr<HookState> State() const { return State({}); }
  // What a shard has of it, with kCompressedKey (state_parts.h).
  virtual absl::StatusOr<HookState> State(const OwnsParameter& owns) const = 0;
  // Empty while nothing is compressed.
  virtual std::vector<ParameterReport> Report() const = 0;
};

// A state that was checked and may be installed, once. Afterwards it holds what it replaced: let go
// of it without the lock too.
class HookImport {
 public:
  virtual ~HookImport() = default;
};

// What earlier calls left to do that nobody waits for: memory to free, remains of old buckets to
// copy together. No result depends on it.
class HookChore {
 public:
  virtual ~HookChore() = default;
  // Once.
  virtual void Run() = 0;
};

// Not thread-safe, except ReadState. No I/O.
//
// Within a step, Plan comes before a bucket's other calls, which then know the bucket by its first
// parameter. They, EndStep, Snapshot, Install and TakeChore do no work per parameter or per
// element, with two exceptions: Observe copies the elements it is given, and the first step with a
// new list of parameters costs time in proportion to that list.
class CoordinatorHook {
 public:
  virtual ~CoordinatorHook() = default;

  // The bucket's rounds in this step. Takes time in proportion to the bucket's parameters.
  virtual absl::StatusOr<std::vector<RoundPlan>> Plan(BucketPositions bucket) = 0;

  // The buckets in whose order the first state is drawn, each with a seed of its own; the default
  // is the manifest as one. Parameters that it leaves out are drawn last, as one more bucket.
  // Buckets of steps, and the order in which members announce them, have no part in it.
  // InvalidArgument as CheckDrawBuckets has it; FailedPrecondition: the plan is fixed. Takes a few
  // nanoseconds for each parameter. A hook that draws nothing takes any.
  virtual absl::Status SetDrawPlan(const DrawBuckets& /*buckets*/) { return absl::OkStatus(); }

  // From here on the plan stays what it is, if the open step may draw by it. Installing a state of
  // which nothing is drawn yet, undoes that.
  virtual void FixDrawPlan() {}

  // Whether the bucket's SharedVersion would draw by a plan that is not fixed yet, and fix it.
  virtual bool AwaitsDrawPlan(BucketPositions /*bucket*/) const { return false; }

  // Changes when members have to be given the bucket's shared state although they took part in
  // every step since they had it; 0: there is none. Computes nothing.
  virtual std::uint64_t SharedVersion(BucketPositions /*bucket*/) { return 0; }

  // The bucket's shared state for this step, after a SharedVersion other than 0; else null.
  virtual std::shared_ptr<SharedStateWork> SharedState(BucketPositions /*bucket*/) {
    return nullptr;
  }

  // Elements of a round's result, once they are released. `bytes` is in the segment's dtype.
  virtual void Observe(BucketPositions /*bucket*/, std::uint32_t /*round*/,
                       const ElementRange& /*range*/, std::span<const std::byte> /*bytes*/) {}

  // Whether Observe wants this segment.
  virtual bool Observes(std::uint32_t /*round*/, const Segment& /*segment*/) const { return false; }

  // The parameter that an element of a round's contributions comes from, as a position in the
  // manifest; nullopt: several have a part in it. Of a bucket that is planned.
  virtual std::optional<std::uint32_t> ParameterAt(BucketPositions /*bucket*/,
                                                   std::uint32_t /*round*/, std::size_t /*segment*/,
                                                   std::size_t /*element*/) const {
    return std::nullopt;
  }

  // The step is over: what was observed becomes the state, or is forgotten.
  virtual void EndStep(Verdict /*verdict*/) {}

  // Steps applied.
  virtual std::int64_t iteration() const { return 0; }

  // Whether it keeps any state that a step's plans or results depend on.
  virtual bool HasState() const { return false; }

  // Upper bound of the bytes that the shared state takes, by the manifest.
  virtual std::size_t StateBytes() const { return 0; }

  // Of that, an exported state's tensors.
  virtual std::size_t ExportBytes() const { return 0; }

  // Applied steps from one line of compression statistics in the log to the next; 0: none.
  virtual std::int64_t log_interval() const { return 0; }

  // Never null.
  virtual std::shared_ptr<const HookSnapshot> Snapshot() const;

  // Refuses another hook, other options, another layout or version by name. On any thread, at any
  // time. What it returns fits this hook only.
  virtual absl::StatusOr<std::shared_ptr<HookImport>> ReadState(const HookState& state) const;

  // Between two steps: the state is what ReadState was given.
  virtual void Install(HookImport& /*import*/) {}

  // ---- After the loss of a coordinator, a fresh one's

  // What members cannot know of the state after the open step, if it is applied: metadata. Takes
  // time in proportion to the draw plan, so ask when OwnVersion has changed.
  virtual HookState OwnState() const { return {}; }
  // Another one if the open step would change OwnState; 0: a new coordinator has the same.
  virtual std::uint64_t OwnVersion() const { return 0; }

  // As ReadState, from a member's copy of the state (Hook::Copy) and the last OwnState's metadata.
  // Factors that the copy lacks are drawn again, unless they came from a file. `owns`: the members
  // hold those of these parameters; empty: of all.
  virtual absl::StatusOr<std::shared_ptr<HookImport>> ReadCopy(HookState copy,
                                                               const OwnsParameter& owns) const;

  // Null: nothing is to be done. One that nobody took is run by the next EndStep.
  virtual std::shared_ptr<HookChore> TakeChore() { return nullptr; }
};

// For a validated spec. Null for a user's own hook: its members announce their rounds.
absl::StatusOr<std::unique_ptr<CoordinatorHook>> MakeCoordinatorHook(const HookSpec& spec,
                                                                     SharedManifest manifest);

// Copies the manifest.
absl::StatusOr<std::unique_ptr<CoordinatorHook>> MakeCoordinatorHook(
    const HookSpec& spec, std::span<const ParameterSpec> manifest);

}  // namespace gradwire
