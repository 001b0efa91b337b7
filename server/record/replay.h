// Computes a recorded step again, and says where what comes out differs from what was recorded.
// Pure functions of the file's bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/record/exact_sum.h"
#include "server/record/step_record.h"

namespace gradwire::server {

// Where a replay parts from its recording.
struct ReplayDifference {
  enum class What : std::uint8_t {
    kResult,        // the result's digest
    kWrongSum,      // an element that fp64 refutes; the digest is as recorded
    kNoSum,         // a result without the contributions that it was made of
    kNoResult,      // contributions without a result
    kStepDigest,    // `recorded` and `computed` are of the step
    kSharedDigest,  // of a daemon that asks for READY: StepDone.digest
    kChain,
    kVerdict,  // APPLY although a result is not finite
  } what = What::kResult;
  // Of a result.
  ResultId id{};
  std::string bucket{};  // "[w, b]"
  ElementRange range{};  // of the chunk, in its round
  std::uint64_t recorded = 0;
  std::uint64_t computed = 0;
  // Of a sum that was computed here: the element that fp64 refutes. None: it confirms all of them.
  std::optional<WrongElement> wrong{};
};

struct ReplayReport {
  static constexpr std::size_t kMostListed = 20;

  RecordedStep step;  // without its manifest
  Verdict verdict = Verdict::kApply;
  std::size_t members = 0;  // that contributed to any bucket
  std::size_t buckets = 0;
  std::size_t chunks = 0;
  std::uint64_t bytes = 0;   // of all contributions
  std::uint64_t digest = 0;  // of this daemon's results, as computed
  std::size_t differences = 0;
  std::vector<ReplayDifference> listed;  // the first of them
};

// DataLoss, InvalidArgument: what in the file is wrong, as ReadStep says it. A replay that differs
// is no error.
absl::StatusOr<ReplayReport> Replay(RecordSource& source);

}  // namespace gradwire::server
