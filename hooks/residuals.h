// Members' own states (Hook::State), as sums: what one member has not contributed yet, another one
// may contribute in its place. Error feedback makes no difference: a mean depends on the sum of all
// members' gradients and residuals only.
#pragma once

#include <span>

#include "absl/status/statusor.h"
#include "gradwire/hooks/hook.h"

namespace gradwire {

// What the state's residuals are multiplied by. InvalidArgument: nothing that could be one.
absl::StatusOr<double> LossScaleOf(const HookState& state);

// `own` with the residuals of `more` added, in the loss scale of `own`; for Hook::LoadState.
// FailedPrecondition: the hook of `own` keeps none. InvalidArgument: a tensor of `more` has another
// dtype or size than that of `own`, or is not float32 or float64; or the two pad different buckets.
absl::StatusOr<HookState> AddResiduals(HookState own, const HookState& more);

// Adds them to those of the hook. An error changes nothing.
absl::Status TakeOver(const HookState& more, std::span<const ParameterSpec> manifest, Hook& hook);

// The hook begins again with none, because another member has them.
absl::Status GiveAway(std::span<const ParameterSpec> manifest, Hook& hook);

}  // namespace gradwire
