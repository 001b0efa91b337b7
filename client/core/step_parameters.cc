#include "client/core/step_parameters.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/mutants.h"

namespace gradwire::client {

StepParameters::StepParameters(std::span<const ParameterSpec> manifest)
    : manifest_(manifest), used_(manifest.size()), met_(manifest.size()) {
  for (std::size_t i = 0; i < manifest.size(); ++i) {
    positions_.emplace(manifest[i].name, static_cast<std::uint32_t>(i));
  }
}

std::optional<std::uint32_t> StepParameters::Find(const std::string& name) const {
  const auto found = positions_.find(name);
  return found == positions_.end() ? std::nullopt : std::optional(found->second);
}

absl::StatusOr<std::vector<std::uint32_t>> StepParameters::Map(const GradBucket& bucket,
                                                               std::int64_t step) {
  if (bucket.parameters().empty()) {
    return Coded(ErrorCode::kBuffer, absl::InvalidArgumentError("the bucket has no parameters"));
  }
  // A parameter that `met_` marks with this call's number is in the bucket twice. Marks of earlier
  // calls differ and need no clearing. `used_` waits for Use, because the bucket may still fail to
  // start.
  ++maps_;
  std::vector<std::uint32_t> positions;
  for (const ParameterSpec& parameter : bucket.parameters()) {
    const std::optional<std::uint32_t> at = Find(parameter.name);
    if (!at) {
      return Coded(ErrorCode::kNotOfModel,
                   absl::InvalidArgumentError(absl::StrCat("parameter ", parameter.name,
                                                           " is not among the session's ",
                                                           manifest_.size(), " parameters")));
    }
    if (parameter != manifest_[*at]) {
      return Coded(ErrorCode::kShape, absl::InvalidArgumentError(absl::StrCat(
                                          "parameter ", parameter.name,
                                          " has another shape or dtype than it had at Join")));
    }
    if (used_[*at] || met_[*at] == maps_) {
      return Coded(ErrorCode::kTwiceInStep,
                   absl::InvalidArgumentError(absl::StrCat("parameter ", parameter.name,
                                                           " is in step ", step, " already")));
    }
    met_[*at] = maps_;
    positions.push_back(*at);
  }
  return positions;
}

void StepParameters::Use(std::span<const std::uint32_t> positions) {
  for (const std::uint32_t position : positions) used_[position] = true;
}

void StepParameters::Clear() {
  std::fill(used_.begin(), used_.end(), IsActive(Mutant::kParametersStayUsed));
}

}  // namespace gradwire::client
