#include "client/core/shard_vote.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/mutants.h"
#include "proto/wire/digest.h"

namespace gradwire::client {

absl::StatusOr<std::optional<ShardVote::Outcome>> ShardVote::OnPrepared(
    std::uint32_t shard, const PreparedEffect& prepared) {
  if (prepared.step < step_) return std::nullopt;
  std::optional<PreparedEffect>& known = prepared_[shard];
  if (prepared.step > step_ ||
      (known && (known->verdict != prepared.verdict || known->digest != prepared.digest))) {
    return Coded(ErrorCode::kBadAnswer,
                 absl::InternalError(absl::StrCat("shard ", shard, " says of step ", prepared.step,
                                                  " what does not fit step ", step_, " here")));
  }
  if (known) return std::nullopt;
  known = prepared;
  if (!Missing().empty()) return std::nullopt;
  Outcome outcome{.digest = static_cast<std::uint64_t>(step_)};
  for (const std::optional<PreparedEffect>& one : prepared_) {
    const bool counts = &one == &prepared_.front() || !IsActive(Mutant::kVerdictNotCombined);
    if (one->verdict == Verdict::kSkip && counts) outcome.verdict = Verdict::kSkip;
    outcome.digest = wire::CombineDigests(outcome.digest, one->digest);
  }
  return outcome;
}

void ShardVote::Conclude(std::int64_t step) {
  std::fill(prepared_.begin(), prepared_.end(), std::nullopt);
  step_ = step + 1;
}

void ShardVote::Restart() {
  if (IsActive(Mutant::kVoteOfLostLife)) return;
  std::fill(prepared_.begin(), prepared_.end(), std::nullopt);
}

std::vector<std::uint32_t> ShardVote::Missing() const {
  std::vector<std::uint32_t> missing;
  for (std::uint32_t shard = 0; shard < prepared_.size(); ++shard) {
    if (!prepared_[shard]) missing.push_back(shard);
  }
  return missing;
}

}  // namespace gradwire::client
