// What a Gathering says of members' reports, and of steps that ended before.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "proto/wire/frame.h"

namespace gradwire::server {

inline const char* Text(Verdict verdict) { return verdict == Verdict::kApply ? "APPLY" : "SKIP"; }

template <class... Parts>
absl::Status Contradiction(const Parts&... parts) {
  return Coded(ErrorCode::kResume, absl::FailedPreconditionError(absl::StrCat(
                                       "the members' reports after the loss of their daemon "
                                       "contradict each other: ",
                                       parts...)));
}

// `reason`: of a SKIP.
inline wire::StepDone Ended(std::int64_t step, Verdict verdict, std::uint64_t digest,
                            const std::string& reason) {
  // Whoever lacks results of a step that was skipped may drop it.
  const bool skipped = verdict == Verdict::kSkip;
  return {.step = step,
          .verdict = verdict,
          .digest = digest,
          .dropped = skipped,
          .reason = skipped ? reason : ""};
}

}  // namespace gradwire::server
