// Members that leave before the others.
#include <span>
#include <utility>

#include "base/error_code.h"
#include "hooks/safetensors.h"
#include "tests/sim/recovery_simulation.h"

namespace gradwire::sim {

void RecoverySimulation::AskToLeave() {
  members_[random_.Below(members_.size())]->is_to_leave = true;
}

// Between two steps, as the runtime has it: others may have ended some without a late member.
bool RecoverySimulation::BeginLeave(Member& member) {
  const bool is_between = !member.heals && !member.ended && member.order.empty() &&
                          (member.over.empty() || late_) && member.collectives == 0;
  if (!member.is_to_leave || !is_between || !MayKill(member)) return false;
  Note(RecoveryCount::kLeft);
  member.leaves = true;
  const HookState state = member.hook->State();
  if (state.tensors.empty() && member.core->late().kept().empty()) {
    member.may_leave = true;
    return true;
  }
  reference_holds_ = false;  // it knows residuals by rank
  const std::string file = state.tensors.empty() ? "" : WriteSafetensors(state);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(file));
  client::Effects effects;
  member.has_late = !member.core->late().kept().empty();
  member.core->HandOver(member.start_id, {bytes.begin(), bytes.end()}, effects);
  ApplyMember(member, std::move(effects));
  return true;
}

void RecoverySimulation::OnHandedOver(Member& member, const client::HandedOverEffect& effect) {
  member.may_leave = true;
  const bool is_taken = effect.rank >= 0 && effect.reason.empty();
  Note(is_taken ? RecoveryCount::kResidualsHandedOver : RecoveryCount::kResidualsNotTaken);
  has_losses_ |= !is_taken;
  if (!is_taken) return;
  if (member.has_late) ++late_counts_.given;
  if (!member.hook->State().tensors.empty() || !member.core->late().kept().empty()) {
    Violate("a member keeps what another one has");
  }
}

// Until it knows what becomes of its residuals its stream breaks more often than others', with
// answers on their way. It may be out of patience, too, and leaves whether a daemon hears of it or
// not.
void RecoverySimulation::FinishLeave(Member& member) {
  if (!member.may_leave && member.link != nullptr && random_.Percent(5)) return Cut(member);
  if (!member.may_leave && !random_.Percent(1)) return;
  if (!member.may_leave) {
    Note(RecoveryCount::kResidualsNotTaken);
    member.core->CancelHandOver();
    member.may_leave = has_losses_ = true;
  }
  const bool may_go = MayKill(member);
  member.core->SetLeaving(true);
  bool has_left = true;
  if (Life* const life = Reachable(); life != nullptr && life->number == member.life) {
    server::Effects effects;
    has_left = life->session->Leave(member.rank, member.start_id, now_, effects).ok();
    Apply(*life, std::move(effects));
  }
  const bool others_are_here = std::ranges::all_of(members_, [&](const auto& one) {
    return one.get() == &member || (one->link != nullptr && one->link->attached);
  });
  // It may not stay for the others; then it takes a while until the daemon knows.
  if (!has_left && (!others_are_here || !ends_.Percent(20))) return;
  // Since it began to leave, the last roster may have been claimed with nobody else.
  model_is_lost_ |= options_.claims() && !may_go;
  left_too_few_ |= options_.shrinks() && !may_go;
  Go(member);
  if (!has_left) Pass(2 * kRecoveryResumeGrace);
}

// It has left, and hears no more.
void RecoverySimulation::Go(Member& member) {
  if (member.finished()) return NoteGoneAtEnd(member);
  NoteLoss();
  const int rank = member.rank;
  Replace(member);
  MemberOf(rank).follows_leaver = true;
}

bool RecoverySimulation::MayLeaveAtEnd(const Member& member) const {
  const Life* const life = member.link == nullptr ? nullptr : member.link->life;
  return member.finished() && member.welcomed && !member.leaves && life != nullptr && !life->over &&
         !life->replaced && !member.core->awaits_welcome();
}

void RecoverySimulation::LeaveAtEnd(Member& member) {
  Life& life = *member.link->life;
  server::Effects effects;
  member.core->SetLeaving(true);
  const absl::Status left = life.session->Leave(member.rank, member.start_id, now_, effects);
  Apply(life, std::move(effects));
  if (left.ok()) return NoteGoneAtEnd(member);
  Note(RecoveryCount::kStayedForOthers);
  // The next daemon may need it.
  const bool is_handed_over =
      absl::IsNotFound(left) && life.session->state() == server::SessionCore::State::kClosed;
  if (!absl::IsUnavailable(left) && !is_handed_over) {
    Violate(absl::StrCat("Leave: ", left.message()));
  }
}

void RecoverySimulation::GiveUpAtEnd(Member& member) {
  if (Life* const life = Reachable(); life != nullptr && life->number == member.life) {
    server::Effects effects;
    life->session->Leave(member.rank, member.start_id, now_, effects).IgnoreError();
    Apply(*life, std::move(effects));
  }
  NoteGoneAtEnd(member);
}

void RecoverySimulation::NoteGoneAtEnd(Member& member) {
  if (member.gone) return;
  member.gone = true;
  Note(RecoveryCount::kLeftAtEnd);
  if (member.has_lost_last) Note(RecoveryCount::kLeftAfterLoss);
  if (member.link != nullptr) Cut(member);
}

bool RecoverySimulation::MaybeLoseAtEnd() {
  if (!leaves_at_end_ || has_lost_at_end_ || OnlyEndsAreLeft()) return false;
  const auto is_through = [](const auto& one) { return one->finished(); };
  if (!std::ranges::any_of(members_, is_through) || !ends_.Percent(10)) return false;
  has_lost_at_end_ = true;
  EndLife(/*hands_over=*/false);
  return true;
}

// As a member may be told that wants to leave: it is late, or the others have gone.
bool RecoverySimulation::IsOfAnEnd(const absl::Status& status) {
  const auto code = FindCode(std::string(status.message()));
  return code == ErrorCode::kNotAMember || code == ErrorCode::kResume ||
         code == ErrorCode::kMissingMembers || code == ErrorCode::kMemberClosed;
}

// A member may know how the last step ended that its user has not come to.
bool RecoverySimulation::OnlyEndsAreLeft() const {
  const auto knows_end = [](const Member& one) {
    return one.finished() ||
           (one.core != nullptr && std::cmp_greater_equal(one.core->step(), one.steps));
  };
  return leaves_at_end_ &&
         std::ranges::any_of(members_, [](const auto& one) { return one->finished(); }) &&
         std::ranges::all_of(members_, [&](const auto& one) {
           return one->dead || !one->welcomed || knows_end(*one);
         });
}

}  // namespace gradwire::sim
