#include "server/core/agreement.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/mutants.h"

namespace gradwire::server {
namespace {

std::string Text(Verdict verdict) { return verdict == Verdict::kApply ? "APPLY" : "SKIP"; }

}  // namespace

Agreement::Agreement(std::uint32_t shard, std::uint32_t shards, int world_size, bool leaf)
    : shard_(shard),
      shards_(shards),
      leaf_(leaf && !IsActive(Mutant::kLeafDecidesAlone)),
      elsewhere_(static_cast<std::size_t>(world_size)),
      ready_(elsewhere_) {}

void Agreement::SetElsewhere(int rank) {
  elsewhere_[static_cast<std::size_t>(rank)] = true;
  ready_ = elsewhere_;
}

void Agreement::Prepare(Verdict own) {
  if (prepared_) return;
  prepared_ = own;
  const bool early =
      IsActive(Mutant::kShardsDecideAlone) || IsActive(Mutant::kConcludesBeforeReady);
  if ((alone() && !leaf_) || early) decided_ = own;
}

// A member that did not hold this shard's results could not have said anything.
absl::Status Agreement::CheckVerdict(Verdict verdict) const {
  if (!prepared_) {
    return absl::FailedPreconditionError("says that a step is over before it has its results");
  }
  if (verdict == Verdict::kApply && *prepared_ == Verdict::kSkip &&
      !IsActive(Mutant::kVerdictNotCombined)) {
    return absl::FailedPreconditionError(
        "says APPLY of a step with results that are not finite; allowed: SKIP");
  }
  return absl::OkStatus();
}

absl::Status Agreement::OnReady(int rank, const wire::Ready& ready) {
  if (alone() || !leads()) {
    return absl::FailedPreconditionError("sent READY to a daemon that does not lead the session");
  }
  if (absl::Status status = CheckVerdict(ready.verdict); !status.ok()) return status;
  if (said_ && (*said_ != ready.verdict || digest_ != ready.digest)) {
    return absl::FailedPreconditionError(
        absl::StrCat("is READY with ", Text(ready.verdict), " and digest ", ready.digest, "; rank ",
                     first_ready_, " with ", Text(*said_), " and ", digest_));
  }
  if (!said_) {
    said_ = ready.verdict;
    digest_ = ready.digest;
    first_ready_ = rank;
  }
  ready_[static_cast<std::size_t>(rank)] = true;
  if (NotReady().empty()) decided_ = said_;
  return absl::OkStatus();
}

absl::Status Agreement::OnConcluded(const wire::Concluded& concluded) {
  if (leads()) {
    return absl::FailedPreconditionError("told the session's lead what it decides");
  }
  if (absl::Status status = CheckVerdict(concluded.verdict); !status.ok()) return status;
  decided_ = concluded.verdict;
  return absl::OkStatus();
}

absl::Status Agreement::CheckRepeated(const wire::Concluded& concluded) const {
  if (leads()) {
    return absl::FailedPreconditionError("told the session's lead what it decides");
  }
  if (!last_ || *last_ == concluded.verdict) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("says that the step before was concluded with ",
                                                    Text(concluded.verdict),
                                                    "; another member says ", Text(*last_)));
}

std::vector<int> Agreement::NotReady() const {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < ready_.size(); ++r) {
    if (!ready_[r]) ranks.push_back(static_cast<int>(r));
  }
  return ranks;
}

void Agreement::NextStep() {
  last_ = decided_;
  prepared_.reset();
  ready_ = elsewhere_;
  said_.reset();
  first_ready_ = -1;
  digest_ = 0;
  decided_.reset();
}

}  // namespace gradwire::server
