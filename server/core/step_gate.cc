#include "server/core/step_gate.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/printable.h"

namespace gradwire::server {

absl::Status StepGate::Check(absl::Duration length, const std::string& reason) {
  constexpr absl::Duration kShortest = absl::Seconds(1);
  constexpr absl::Duration kLongest = absl::Hours(24);
  constexpr std::size_t kMostReason = 256;
  if (length < kShortest || length > kLongest) {
    return Coded(ErrorCode::kCtlUsage,
                 absl::InvalidArgumentError(absl::StrCat("duration: ", absl::FormatDuration(length),
                                                         "; allowed are 1s to 24h")));
  }
  if (reason.size() > kMostReason) {
    return Coded(ErrorCode::kCtlUsage,
                 absl::InvalidArgumentError(absl::StrCat("reason: it has ", reason.size(),
                                                         " bytes; allowed are ", kMostReason)));
  }
  return absl::OkStatus();
}

// A member that waits at the shut gate has begun the step, which is no reason to open it.
void StepGate::Pause(absl::Time until, const std::string& reason, bool open) {
  pause_ = Of{.until = until, .reason = Printable(reason)};
  shut_ = shut_ || !open;
}

void StepGate::Lift(absl::Time now) {
  if (shut_) opened_ = now;
  pause_.reset();
  shut_ = false;
}

absl::Duration StepGate::Left(absl::Time now) const {
  return pause_ ? std::max(pause_->until - now, absl::ZeroDuration()) : absl::ZeroDuration();
}

// What began before or during a pause gets its whole time again after it: a collective may wait for
// a member that waits at the gate.
absl::Duration StepGate::OpenFor(absl::Time began, absl::Time now) const {
  return shut_ ? absl::ZeroDuration() : now - std::max(began, opened_);
}

std::string StepGate::Sentence(absl::Time now) const {
  if (!pause_) return "";
  // Rounded up, so that it never says 0s.
  const absl::Duration left = absl::Ceil(Left(now), absl::Seconds(1));
  return absl::StrCat("paused by an operator for another ", absl::FormatDuration(left),
                      pause_->reason.empty() ? "" : ": ", pause_->reason);
}

}  // namespace gradwire::server
