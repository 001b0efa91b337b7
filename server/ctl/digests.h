// `gradwirectl session digest`: the digests of a session's steps, and how those of two runs
// compare.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/v1/admin.pb.h"

namespace gradwire::ctl {

struct DigestFlags {
  std::int64_t first = 0;
  std::int64_t count = 0;    // 0: all
  std::string compare = {};  // a file with an earlier output; empty: nothing is compared
};

// One line for each step: "step 41  9f0c3a5512cd7701".
std::string DigestsText(const v1::GetDigestsResponse& digests);
// Why there is no line; "": there is one.
std::string WhyNoDigest(const v1::GetDigestsResponse& digests, const DigestFlags& flags);

using StepDigests = std::vector<v1::StepDigest>;  // steps ascend
// What DigestsText has written. InvalidArgument names the first line that is something else.
absl::StatusOr<StepDigests> ReadDigests(const std::string& file, const std::string& text);

// Each digest is of all steps up to its own, so that runs which differ after a step differ after
// all later ones, too.
struct Comparison {
  std::optional<std::int64_t> same;       // the last step that both know and after which they agree
  std::optional<std::int64_t> different;  // the first one after which they do not
};
// FailedPrecondition: they have no step in common.
absl::StatusOr<Comparison> Compare(const StepDigests& ours, const StepDigests& theirs);
std::string ComparisonText(const Comparison& comparison);
std::string ComparisonJson(const Comparison& comparison);

}  // namespace gradwire::ctl
