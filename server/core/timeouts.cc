#include "server/core/timeouts.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "base/mutants.h"
#include "server/core/collective_flow.h"
#include "server/core/step.h"
#include "server/core/waiting_for.h"

namespace gradwire::server {

MaybeFailure FindTimeout(const SessionOptions& options, const Membership& membership,
                         const Step& step, const CollectiveFlow& collectives, absl::Time now) {
  const auto loss = membership.FindLoss(now);
  if (loss && !IsActive(Mutant::kLossNotDeclared)) {
    return FailureEvent{
        .kind = FailureEvent::Kind::kLost,
        .rank = loss->rank,
        .what = absl::AbortedError(absl::StrCat(step.began() ? "in" : "before", " step ",
                                                step.number(), ": ", loss->why))};
  }
  const auto overdue = [&](const std::optional<absl::Time>& began) {
    return began && step.gate().OpenFor(*began, now) > options.step_timeout;
  };
  if (!overdue(step.began()) && !overdue(collectives.began())) return std::nullopt;
  if (WaitsForUpstream(step, collectives, membership)) return std::nullopt;
  return FailureEvent{
      .kind = FailureEvent::Kind::kStepTimeout,
      .what = absl::DeadlineExceededError(WaitingFor(step, collectives, membership, now)),
      .waited = options.step_timeout};
}

}  // namespace gradwire::server
