// Rank 0's draw plan, which comes in pieces and is handed to the hook when it is complete.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hooks/coordinator_hook.h"
#include "server/core/effects.h"
#include "server/core/failure_policy.h"

namespace gradwire::server {

// Not thread-safe. `hook` outlives it; null: nothing is drawn.
class DrawPlanIntake {
 public:
  DrawPlanIntake(CoordinatorHook* hook, std::size_t parameters)
      : hook_(hook), parameters_(parameters) {}

  // A plan that comes too late has no effect: one that a resume repeats may.
  MaybeFailure On(int rank, const wire::DrawPlan& piece, Effects& effects);

 private:
  absl::Status Add(const wire::DrawPlan& piece);
  absl::Status HandOver(Effects& effects);

  CoordinatorHook* const hook_;
  const std::size_t parameters_;  // of the manifest
  DrawBuckets buckets_;
  std::size_t held_ = 0;  // parameters in buckets_
  std::uint32_t next_ = 0;
};

}  // namespace gradwire::server
