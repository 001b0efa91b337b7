// Where two recordings of the same step part: in a contribution, and then whose, or in a result.
// Pure functions of the files' bytes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "server/record/step_record.h"

namespace gradwire::server {

// The digests of all that a recorded step has.
struct StepContents {
  RecordedStep step;
  std::map<std::uint32_t, std::string> buckets{};  // their names
  // Of contributions as the wire has them: a raw one is cast and divided first, so that it makes no
  // difference how a member sent it. By the first chunk of the reduction, and rank.
  std::map<std::pair<ResultId, int>, std::uint64_t> contributions{};
  std::map<ResultId, std::uint64_t> results{};
  Verdict verdict = Verdict::kApply;
};

// Errors as ReadStep.
absl::StatusOr<StepContents> ReadContents(RecordSource& source);

struct StepDifference {
  enum class What : std::uint8_t {
    kBuckets,       // only one of them has the bucket, or a contribution or result of it
    kContribution,  // of `rank`
    kResult,        // although the contributions are the same
    kVerdict,
  } what = What::kResult;
  ResultId id{};
  int rank = -1;  // -1: no contribution
  std::string bucket{};
  std::uint64_t ours = 0;  // digests; 0 where it has none
  std::uint64_t theirs = 0;
};

// FailedPrecondition: the two cannot be compared, because a setting differs by which the steps are
// cut into chunks. nullopt: all is the same.
absl::StatusOr<std::optional<StepDifference>> Compare(const StepContents& ours,
                                                      const StepContents& theirs);

}  // namespace gradwire::server
