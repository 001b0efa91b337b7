// Members that leave before the others.
#include <span>
#include <utility>

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
    has_losses_ = true;
  }
  NoteLoss();
  // Since it began to leave, the last roster may have been claimed with nobody else.
  model_is_lost_ |= options_.claims() && !MayKill(member);
  left_too_few_ |= options_.shrinks() && !MayKill(member);
  member.core->SetLeaving(true);
  if (Life* const life = Reachable(); life != nullptr && life->number == member.life) {
    server::Effects effects;
    life->session->Leave(member.rank, member.start_id, now_, effects).IgnoreError();
    Apply(*life, std::move(effects));
  }
  const int rank = member.rank;
  Replace(member);
  MemberOf(rank).follows_leaver = true;
}

}  // namespace gradwire::sim
