// Where rosters are claimed at an arbiter: each that is not the first of a session, before a member
// is told of it.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_code.h"
#include "base/mutants.h"
#include "server/core/rendezvous.h"

namespace gradwire::server {

std::vector<std::uint64_t> Rendezvous::ProcessesOf(const std::vector<int>& ranks) const {
  std::vector<std::uint64_t> processes;
  processes.reserve(ranks.size());
  for (const int rank : ranks) {
    processes.push_back(ProcessOf(options_.session_key, membership_.start_id(rank)));
  }
  return processes;
}

// Those who begin anew know nothing that the others could contradict.
bool Rendezvous::MayFollowClaims() const {
  return gathering_->AllNew() ||
         claims_->MayFollow(ProcessesOf(membership_.Reachable()), gathering_->LatestNumber());
}

Rendezvous::Claimed Rendezvous::Claim(std::optional<Gathering::Outcome>& gathered,
                                      Effects& effects) {
  if (!claims_ || IsActive(Mutant::kRosterUnclaimed)) return Claimed::kYes;
  RosterClaim wanted{.ranks = membership_.Reachable()};
  wanted.processes = ProcessesOf(wanted.ranks);
  if (gathered) wanted.ended = gathered->ended;
  if (claims_->Has(wanted)) {
    claims_->Tell();
    first_number_ = claims_->number();
    if (gathered && gathered->roster) gathered->roster->number = claims_->number();
    return Claimed::kYes;
  }
  if (const auto* ended = claims_->TakeVoid()) {
    gathering_->Assume(*ended);
    return Claimed::kAgain;
  }
  if (auto claim = claims_->Ask(std::move(wanted), gathering_->LatestNumber())) {
    effects.push_back(ClaimRosterEffect{.lineage = options_.lineage, .claim = *std::move(claim)});
  }
  return Claimed::kNo;
}

bool Rendezvous::OnClaimed(const absl::StatusOr<ClaimAnswer>& answer, Effects& effects) {
  const std::uint64_t before = claims_->others().number;
  if (claims_->Take(answer)) effects.push_back(ClaimRosterEffect{.lineage = options_.lineage});
  if (!answer.ok() && !std::exchange(claims_fail_, true)) {
    effects.push_back(LogEffect{
        .level = LogEffect::Level::kWarning,
        .message = absl::StrCat(claims_->WaitingFor(), "; it is asked again every second")});
  }
  if (answer.ok() && std::exchange(claims_fail_, false)) {
    effects.push_back(LogEffect{.message = "the arbiter answers again"});
  }
  const RosterClaim& others = claims_->others();
  if (others.number == before) return true;
  effects.push_back(LogEffect{.message = absl::StrCat("roster ", others.number, ", of ranks ",
                                                      absl::StrJoin(others.ranks, ", "),
                                                      ", is claimed already")});
  if (has_told_) return false;
  gathering_->Assume(others.ended);
  return true;
}

MaybeFailure Rendezvous::OnClaimTimeout() const {
  return FailureEvent{
      .kind = FailureEvent::Kind::kOwner,
      .what = Coded(ErrorCode::kResume, absl::DeadlineExceededError(absl::StrCat(
                                            "waited ", absl::FormatDuration(options_.join_timeout),
                                            " for the arbiter: ", ClaimWaits())))};
}

}  // namespace gradwire::server
