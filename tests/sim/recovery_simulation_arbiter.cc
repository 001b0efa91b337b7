// The arbiter at which all daemons of a session claim its rosters.
#include <algorithm>
#include <memory>
#include <utility>

#include "tests/sim/recovery_simulation.h"

namespace gradwire::sim {

void RecoverySimulation::MakeArbiter(int& world) {
  if (arbiter_.Percent(50)) return;
  options_.arbiter = 80;
  claim_faults_left_ = arbiter_.Between(0, 12);
  options_.may_be_minority = arbiter_.Percent(80);
  if (options_.may_be_minority) options_.shrinks_to = 1;
  if (arbiter_.Percent(40)) world = 2;
}

// Members are at several daemons that gather at once, and these end while they claim.
void RecoverySimulation::MaybeFaultAtArbiter() {
  if (!options_.claims() || !welcomed_ || claim_faults_left_ == 0) return;
  const bool gathers = !lives_.back()->over &&
                       lives_.back()->session->state() == server::SessionCore::State::kJoining;
  if (!arbiter_.Percent(gathers ? 10 : 1)) return;
  --claim_faults_left_;
  if (!gathers || arbiter_.Percent(15)) return EndLife(/*hands_over=*/false);
  arbiter_.Percent(50) ? ComeBack() : Split();
}

// It takes effect at once or when the answer comes, and stays if its daemon is lost before that, or
// if the answer is an error.
void RecoverySimulation::Claim(Life& life, const server::ClaimRosterEffect& effect) {
  using Answer = absl::StatusOr<server::ClaimAnswer>;
  auto answer = std::make_shared<std::optional<server::ClaimAnswer>>();
  const bool fails = arbiter_.Percent(10);
  const bool is_lost = fails && arbiter_.Percent(50);
  asking_[life.number] = false;
  if (!is_lost && arbiter_.Percent(50)) {
    *answer = AnswerOf(effect);
  } else if (!is_lost) {
    asking_[life.number] = true;
  }
  life.answers.emplace_back([this, number = life.number, effect, answer, fails, is_lost](
                                server::SessionCore& session, server::Effects& effects) {
    asking_[number] = false;
    if (!is_lost && !*answer) *answer = AnswerOf(effect);
    if (fails) Note(RecoveryCount::kClaimErrors);
    session.RosterClaimed(
        fails ? Answer(absl::UnavailableError("no route to it")) : Answer(**answer), effects);
  });
}

server::ClaimAnswer RecoverySimulation::AnswerOf(const server::ClaimRosterEffect& effect) {
  const std::uint64_t last = claims_.empty() ? 0 : claims_.back().number;
  const bool is_own = effect.claim.number > last;
  if (is_own) {
    Note(RecoveryCount::kClaims);
    if (2 * std::ssize(effect.claim.ranks) <= options_.world_size) {
      Note(RecoveryCount::kClaimsOfMinority);
    }
    const bool is_heard = std::ranges::any_of(members_, [&](const auto& member) {
      return member->core != nullptr && member->core->roster() != nullptr &&
             member->core->roster()->number >= last;
    });
    if (!is_heard) Note(RecoveryCount::kClaimsUnheard);
    claims_.push_back(effect.claim);
  }
  if (claims_.empty()) return {};
  return {.highest = claims_.back(), .is_own = is_own};
}

bool RecoverySimulation::MayFollowClaims(const std::vector<int>& others,
                                         const wire::Roster& latest) const {
  if (!options_.claims()) return true;
  const bool may_change = std::ranges::any_of(lives_, [this](const auto& life) {
    const auto found = asking_.find(life->number);
    return !life->over && found != asking_.end() && found->second;
  });
  if (may_change) return false;
  if (claims_.empty() || claims_.back().number <= latest.number) return !others.empty();
  return std::ranges::any_of(others, [this](int rank) {
    const std::uint64_t process = server::ProcessOf(session_key_, MemberOf(rank).start_id);
    return std::ranges::count(claims_.back().processes, process) > 0;
  });
}

// Members may still be at the other one, and those that were there come here with what they know.
void RecoverySimulation::ComeBack() {
  if (lives_.size() < 2 || lives_.back()->over || lives_.back()->draining) return;
  const auto old = std::find_if(lives_.rbegin() + 1, lives_.rend(), [](const auto& life) {
    return life->replaced && !life->over && !life->draining;
  });
  const bool may_write =
      std::ranges::any_of(members_, [](const auto& member) { return member->in_place; });
  if (old == lives_.rend() || may_write) return;
  Note(RecoveryCount::kCameBack);
  NoteLoss();
  was_split_ = true;
  lives_.back()->replaced = true;
  (*old)->replaced = false;
  std::rotate(old.base() - 1, old.base(), lives_.end());
  NoteLoss();
}

}  // namespace gradwire::sim
