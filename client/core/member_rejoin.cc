// A member whose session outlives its daemon: what it reports, and how it goes on with the next
// one, maybe without members that are lost.
#include <algorithm>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_code.h"
#include "base/mutants.h"
#include "client/core/member.h"

namespace gradwire::client {

// Where others go on without this member, they may have results; and it has no gradients for these
// buckets, or has given them away: AllKept is false.
wire::MemberReport Member::Report() const {
  const bool late = step_.missed().any();
  wire::MemberReport report{.session_key = recovery_->session_key,
                            .lineage = recovery_->lineage,
                            .step = step(),
                            .last = last_,
                            .before_last = before_last_,
                            .has_contributed = protocol_.has_contributed() || late,
                            .may_have_results = protocol_.MayHaveResults() || late,
                            .collectives = collectives_.ended(),
                            .newcomer = is_newcomer_ && !IsActive(Mutant::kNewcomerHasModel),
                            .keeps_gradients = keeps_gradients() && step_.AllKept(),
                            .roster = recovery_->roster,
                            .concluded = concluded_,
                            .has_seen_results = step_.has_done(),
                            .in_collective = collectives_.is_open(),
                            .life = recovery_->life,
                            .chain = chain_.Before(step()),
                            .skipped = skipped_,
                            .has_leaves = has_leaves_ && !is_in_node_group_,
                            .arbiter = recovery_->arbiter};
  if (ready_) report.ready = {.verdict = ready_->verdict, .digest = ready_->digest};
  return report;
}

void Member::Rejoined(std::uint64_t generation) {
  options_.generation = generation;
  awaits_welcome_ = true;
  // A fresh shard begins with the open step.
  conclusion_.reset();
  gather_again_.reset();
  protocol_.BeginAnew();
  collectives_.BeginAnew();
  ledger_.BeginAnew();
  taking_.ForgetParts();
}

// What counts of the step is said to this daemon, and by it.
absl::Status Member::GoOn(bool moves, Effects& effects) {
  first_digest_ = ready_ && !moves ? std::optional(ready_->digest) : std::nullopt;
  ready_.reset();
  coordinator_.Drop();
  const absl::StatusOr<bool> again = protocol_.ReduceAgain(moves, effects);
  if (!again.ok()) return again.status();
  if (*again) ++reduced_again_;
  // Entered since the report: who enters it now is refused.
  const std::optional<int> root = collectives_.root();
  if (absl::Status here = root ? CheckRoot(*root) : absl::OkStatus(); !here.ok()) {
    collectives_.Withdraw(here, effects);
  }
  if (absl::Status whole = collectives_.CheckWhole(); !whole.ok()) return whole;
  Resumed(effects);
  return absl::OkStatus();
}

absl::StatusOr<bool> Member::Enroll(const wire::Welcome& welcome) {
  const std::optional<wire::Roster> before = recovery_ ? recovery_->roster : std::nullopt;
  recovery_ = welcome.recovery;
  has_leaves_ = welcome.group.has_value();
  if (roster() == nullptr && !before) return false;
  if (roster() == nullptr) {  // the next daemon waits for all ranks
    if (!has_leaves_) protocol_.SetMembers(options_.rank, options_.world_size);
    concluded_.clear();
    return std::ssize(before->ranks) != options_.world_size;
  }
  const std::vector<int>& ranks = roster()->ranks;
  const auto own = std::ranges::find(ranks, options_.rank);
  if (own == ranks.end()) return protocol_.Violation("a roster without this member");
  const auto members =
      IsActive(Mutant::kMeanOfAllRanks) ? options_.world_size : static_cast<int>(ranks.size());
  // Behind leaves are several, of whom one contributes (SetGroup).
  if (!has_leaves_) protocol_.SetMembers(static_cast<int>(own - ranks.begin()), members);
  return !before || before->ranks != ranks;
}

// A newcomer has not been in all steps. On a resume, a StepDone that came before the Welcome may
// have moved the member on from the Welcome's step.
absl::Status Member::TakeChain(const wire::Welcome& welcome) {
  if (!welcome.recovery) return absl::OkStatus();
  const wire::StepChain theirs(welcome.step, welcome.recovery->chain);
  const bool begins = welcome.change && !welcomed_;
  if (!begins && (welcome.step != step() || !theirs.known())) return absl::OkStatus();
  const wire::StepChain own(step(), chain_.Before(step()));
  if (begins || is_newcomer_ || !own.known()) {
    chain_ = theirs;
    return absl::OkStatus();
  }
  if (own == theirs) return absl::OkStatus();
  return protocol_.Violation(
      absl::StrCat("other results before step ", step(), " than this member had"));
}

void Member::MoveTo(std::int64_t number, std::int64_t iteration) {
  protocol_.OnSkipped(number - step());
  step_.MoveTo(number, iteration);
}

void Member::AskToGather(std::uint32_t lost_shard, Effects& effects) {
  if (failed() || gather_again_) return;
  gather_again_ = wire::GatherAgain{.generation = options_.generation, .shard = lost_shard};
  effects.push_back(SendFrameEffect{*gather_again_});
}

absl::Status Member::CheckRoot(int root) const {
  if (roster() == nullptr || std::ranges::binary_search(roster()->ranks, root)) {
    return absl::OkStatus();
  }
  return Coded(ErrorCode::kCollective,
               absl::FailedPreconditionError(absl::StrCat(
                   "broadcast root is ", root, ", and the session goes on without it; allowed: ",
                   absl::StrJoin(roster()->ranks, ", "))));
}

// Where the session goes on without lost members, means may have to be those of fewer.
// A step of a node group is never reduced again.
bool Member::keeps_gradients() const {
  return recovery_ && !is_in_node_group_ && step_.can_keep() &&
         (options_.keep_gradients || roster() != nullptr);
}

// Who is in the session after the step. Behind a leaf only a change says so.
std::vector<int> Member::RanksAfter(const wire::StepDone& done) const {
  const bool says = done.change && !done.change->ranks.empty();
  if (says && (roster() != nullptr || !recovery_)) return done.change->ranks;
  if (roster() != nullptr) return roster()->ranks;
  if (!recovery_) return told_ranks_;
  std::vector<int> all(static_cast<std::size_t>(options_.world_size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

void Member::TellRanks(const std::vector<int>& ranks, Effects& effects, std::size_t first) {
  told_ranks_ = ranks;
  for (std::size_t i = first; i < effects.size(); ++i) {
    if (auto* done = std::get_if<StepDoneEffect>(&effects[i])) done->ranks = ranks;
  }
}

absl::Status Member::WithOutcome(absl::Status status) const {
  if (!ready_) return status;
  return Coded(ErrorCode::kOutcomeUnknown,
               absl::Status(status.code(), absl::StrCat(status.message(), " (outcome of step ",
                                                        step(), " unknown)")));
}

}  // namespace gradwire::client
