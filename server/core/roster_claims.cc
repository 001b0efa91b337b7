#include "server/core/roster_claims.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/mutants.h"
#include "proto/wire/digest.h"

namespace gradwire::server {
namespace {

// Shared storage may be away for a while, and a member of another roster may come any time.
constexpr absl::Duration kAskAgain = absl::Seconds(1);

}  // namespace

std::uint64_t ProcessOf(const std::string& session_key, std::uint64_t start_id) {
  return wire::CombineDigests(wire::DigestOf(std::as_bytes(std::span(session_key))), start_id);
}

bool RosterClaims::Has(const RosterClaim& wanted) const {
  return own_ && own_->number == highest_ && own_->ranks == wanted.ranks &&
         own_->processes == wanted.processes && own_->ended == wanted.ended;
}

const std::vector<wire::StepDone>* RosterClaims::TakeVoid() {
  if (!own_ || std::exchange(follows_own_, true)) return nullptr;
  return &own_->ended;
}

bool RosterClaims::AskAgain() {
  is_stale_ = awaits_answer_;
  if (awaits_answer_) return false;
  is_known_ = false;
  return awaits_answer_ = true;
}

std::optional<RosterClaim> RosterClaims::Ask(RosterClaim wanted, std::uint64_t reported) {
  if (awaits_answer_) return std::nullopt;
  awaits_answer_ = true;
  wanted.number = 1 + std::max(reported, highest_);
  return wanted;
}

bool RosterClaims::Take(const absl::StatusOr<ClaimAnswer>& answer) {
  awaits_answer_ = false;
  asks_again_.reset();
  error_ = answer.status();
  if (!answer.ok()) return false;
  is_known_ = true;
  if (answer->highest.number > highest_) {
    highest_ = answer->highest.number;
    if (answer->is_own) {
      own_ = answer->highest;
      follows_own_ = false;
    } else {
      others_ = answer->highest;
    }
  }
  return is_stale_ && AskAgain();
}

// A claim of this session followed those before it, whoever has gone since.
bool RosterClaims::MayFollow(const std::vector<std::uint64_t>& here, std::uint64_t reported) const {
  if (IsActive(Mutant::kClaimOfOthersIgnored)) return true;
  const bool has_followed = own_ && own_->number > others_.number;
  return has_followed || reported >= others_.number ||
         std::ranges::any_of(others_.processes,
                             [&](auto process) { return std::ranges::count(here, process) > 0; });
}

bool RosterClaims::Tick(absl::Time now) {
  if (awaits_answer_ || (error_.ok() && !waits_)) return false;
  if (!asks_again_) asks_again_ = now + kAskAgain;
  return now >= *asks_again_ && AskAgain();
}

std::string RosterClaims::WaitingFor() const {
  if (!error_.ok()) return absl::StrCat("the arbiter does not answer: ", error_.message());
  if (waits_) {
    return absl::StrCat("others have claimed roster ", others_.number, ", of ranks ",
                        absl::StrJoin(others_.ranks, ", "), "; waits for one of them");
  }
  return awaits_answer_ ? "waits for the arbiter" : "";
}

}  // namespace gradwire::server
