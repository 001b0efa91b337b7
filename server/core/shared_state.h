// The hook's state as members need it: who has which version, and what is sent to those that lack
// it, before they encode a bucket's first bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "hooks/coordinator_hook.h"
#include "server/core/effects.h"
#include "server/core/manifest.h"
#include "server/core/state_versions.h"

namespace gradwire::server {

class Bucket;

// Not thread-safe. `hook` outlives it; null: nothing is shared.
class SharedState {
 public:
  SharedState(CoordinatorHook* hook, Manifest manifest, std::size_t members,
              std::size_t chunk_bytes);

  // The bucket is announced. Returns the version that its runs need; 0: they need none;
  // Bucket::kAwaitsDrawPlan: to be called again when the plan is fixed.
  std::uint64_t Place(const std::vector<std::uint32_t>& parameters);

  // Gives the member what it lacks for the bucket's first round. False: that has to be computed
  // first, which it asks for; the member must not be granted the bucket before.
  // `late`: the member takes results only, and may not have begun, whatever round is open.
  bool Send(Bucket& bucket, int rank, Effects& effects, bool late = false);
  // The answer to the ComputeEffect of the bucket, which it belongs to.
  void SetComputed(Bucket& bucket, std::vector<std::byte> bytes);
  // A contribution of the bucket is here: the member cannot have encoded it without the state. Or
  // it has taken the results.
  void Has(int rank, const Bucket& bucket);

  // The state was replaced: every member drops what it has.
  void Replace();
  // What a member that resumes may not have heard of, until it begins a step.
  bool IsReplacedFor(int rank) const { return replaced_[static_cast<std::size_t>(rank)]; }
  void BeginsStep(int rank) { replaced_[static_cast<std::size_t>(rank)] = false; }

 private:
  CoordinatorHook* const hook_;
  const Manifest manifest_;
  const std::size_t members_;
  const std::size_t chunk_bytes_;
  std::optional<StateVersions> versions_;  // once the hook has a state to share
  std::vector<bool> replaced_;             // by rank
};

}  // namespace gradwire::server
