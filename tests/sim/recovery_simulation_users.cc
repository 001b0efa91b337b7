// What the users of the members do, of a session that outlives its daemon.
#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/recovery_simulation.h"

namespace gradwire::sim {
namespace {

constexpr std::byte kClipped{0x55};

}  // namespace

bool RecoverySimulation::CanAct(const Member& member) const {
  if (!member.welcomed || member.finished() || member.in_collective || member.leaves) return false;
  if (!member.heals && HoldsGradients(member)) return false;
  const bool waits = member.ended && member.over.empty();
  return !waits && now_ >= member.sleeps_until;
}

// As the runtime does.
bool RecoverySimulation::HoldsGradients(const Member& member) {
  return member.next_bucket < member.order.size() && member.core->awaits_welcome();
}

void RecoverySimulation::Act(Member& member) {
  if (member.heals) return Heal(member);
  if (BeginLeave(member)) return;
  Step& step = steps_[member.step];
  if (member.next_bucket == 0 && !member.ended && member.order.empty()) {
    if (member.collectives < step.collectives.size()) return EnterCollective(member);
    if (member.rank == 0 && !member.has_set_plan && !draw_plan_.empty()) SetDrawPlan(member);
    member.order.resize(step.buckets.size());
    std::iota(member.order.begin(), member.order.end(), std::size_t{0});
    random_.Shuffle(member.order);
  }
  if (HoldsGradients(member)) return;
  if (late_ && random_.Percent(6)) {
    member.sleeps_until = now_ + random_.Between(absl::Milliseconds(50), absl::Seconds(1));
    return;
  }
  if (member.next_bucket < member.order.size()) {
    const auto& parameters = step.buckets[member.order[member.next_bucket++]];
    // As the runtime has it: the rest of a dropped step is nothing.
    if (!member.over.empty() && member.over.front().dropped) return;
    if (late_ && TakePast(member, parameters)) return;
    if (!member.over.empty()) return Violate("a step ends before its last bucket");
    return StartBucket(member, parameters);
  }
  if (!member.ended && member.over.empty()) {
    member.ended = true;
    client::Effects effects;
    if (absl::Status ended = member.core->EndStep(effects); !ended.ok()) {
      Violate(absl::StrCat("EndStep: ", ended.message()));
    }
    return ApplyMember(member, std::move(effects));
  }
  FinishStep(member);
}

void RecoverySimulation::StartBucket(Member& member, const std::vector<std::uint32_t>& parameters) {
  const client::Ticket ticket = next_ticket_++;
  OpenBucket& open = member.buckets[ticket];
  open.id = parameters.front();
  open.buffer = std::make_shared<ByteVector>();
  std::vector<ParameterSpec> specs;
  for (const std::uint32_t p : parameters) specs.push_back(manifest_[p]);
  *open.buffer = Gradient(member.rank, member.step, parameters, member.weight);
  open.bucket = std::make_unique<GradBucket>(
      *GradBucket::Make(0, {DType::kFloat32, open.buffer->data(), Numel(parameters)}, specs));
  client::Effects effects;
  if (absl::Status started = member.core->StartBucket(ticket, *open.bucket, effects);
      !started.ok()) {
    return Violate(absl::StrCat("StartBucket: ", started.message()));
  }
  NoteGradients(member, parameters);
  if (member.in_place && member.link != nullptr) member.core->SendAhead(open.id);
  ApplyMember(member, std::move(effects));
}

void RecoverySimulation::SetDrawPlan(Member& member) {
  Note(RecoveryCount::kDrawPlans);
  member.has_set_plan = true;
  client::Effects effects;
  if (absl::Status set = member.core->SetDrawPlan(draw_plan_, effects); !set.ok()) {
    Violate(absl::StrCat("SetDrawPlan: ", set.message()));
  }
  ApplyMember(member, std::move(effects));
}

// As the user's broadcast of a model and all that belongs to it.
void RecoverySimulation::Heal(Member& member) {
  member.broadcast = member.model;
  Enter(member, wire::CollectiveKind::kBroadcast, *member.heals);
}

void RecoverySimulation::Enter(Member& member, wire::CollectiveKind kind, int root) {
  member.in_collective = true;
  // As the runtime has it: the user has not heard of what makes it void.
  const bool has_change = std::any_of(member.over.begin(), member.over.end(),
                                      [](const auto& over) { return over.change.has_value(); });
  if (has_change) return FinishCollective(member, client::VoidCollective(kind));
  client::Effects effects;
  const auto entered = member.core->Enter(kind, root, member.broadcast.size(), effects);
  if (absl::IsFailedPrecondition(entered.status())) {
    return FinishCollective(member, entered.status());
  }
  if (!entered.ok()) Violate(absl::StrCat("Enter: ", entered.status().message()));
  ApplyMember(member, std::move(effects));
}

void RecoverySimulation::FinishCollective(Member& member, const absl::Status& status) {
  member.in_collective = false;
  if (absl::IsFailedPrecondition(status) && options_.shrinks()) {
    // Its root is gone, as all that are here hear. Who needs the model gets it from another one.
    if (!member.heals) ++member.collectives;
    member.heals.reset();
    return;
  }
  if (!status.ok()) {
    // The end of this step will say more; until then it goes on as the program is written.
    Note(RecoveryCount::kCollectivesVoid);
    if (!absl::IsAborted(status)) Violate("a collective fails");
    member.heals.reset();
    member.collectives = steps_[member.step].collectives.size();
    return;
  }
  if (member.heals) {
    Note(RecoveryCount::kHealed);
    member.model = member.broadcast;
    member.heals.reset();
    return;
  }
  ++member.collectives;
  for (std::size_t i = 0; i < member.broadcast.size(); ++i) {
    if (member.broadcast[i] == CollectiveByte(seed_, member.step, i)) continue;
    return Violate("a broadcast brought other bytes than the root's");
  }
}

void RecoverySimulation::EnterCollective(Member& member) {
  const auto kind = steps_[member.step].collectives[member.collectives];
  const bool is_broadcast = kind == wire::CollectiveKind::kBroadcast;
  Note(is_broadcast ? RecoveryCount::kBroadcasts : RecoveryCount::kBarriers);
  const std::size_t bytes = is_broadcast ? 150 : 0;
  member.broadcast.assign(bytes, std::byte{0});
  const int root = member.ranks.empty() ? 0 : member.ranks.front();
  if (member.rank == root) {
    for (std::size_t i = 0; i < bytes; ++i)
      member.broadcast[i] = CollectiveByte(seed_, member.step, i);
  }
  Enter(member, kind, root);
}

void RecoverySimulation::CheckBucket(const Member& member, std::size_t step,
                                     const OpenBucket& bucket) {
  for (const auto& parameters : steps_[step].buckets) {
    if (parameters.front() != bucket.id) continue;
    if (late_ || (is_power_sgd() && !reference_holds_)) {
      const auto& same = steps_[step].applied.try_emplace(bucket.id, bucket.result).first->second;
      if (bucket.result != same) Violate(absl::StrCat("step ", step, " has two results"));
      return;
    }
    if (is_power_sgd()) RunReference(step);
    const ByteVector expected =
        is_power_sgd() ? steps_[step].applied.at(bucket.id) : Expected(step, parameters);
    if (bucket.result != expected) {
      Violate(absl::StrCat("rank ", member.rank, " applies step ", step, " with another mean"));
    }
    const bool is_whole =
        bucket.is_changed
            ? std::ranges::all_of(*bucket.buffer, [](std::byte one) { return one == kClipped; })
            : *bucket.buffer == expected;
    if (!is_whole) Violate("results are written over a bucket that was done");
  }
}

bool RecoverySimulation::AllKeepGradients() const {
  return std::ranges::all_of(members_, [](const auto& one) { return one->keeps_gradients; });
}

void RecoverySimulation::FinishStep(Member& member) {
  const client::StepDoneEffect done = member.over.front();
  if (absl::Status ended = member.core->EndPast(done.step); !ended.ok()) {
    Violate(absl::StrCat("EndPast: ", ended.message()));
  }
  if (!done.ranks.empty()) member.ranks = done.ranks;
  if (std::cmp_greater(done.step, member.step)) {  // a newcomer has not been in those between
    member.step = static_cast<std::size_t>(done.step);
    if (member.finished()) return member.over.clear();
    // Nor has it any residual of them; the reference cannot have that of earlier ones only.
    reference_holds_ &= !member.has_applied;
    if (member.step + 1 < steps_.size()) steps_[member.step + 1].replaced.insert(member.rank);
  }
  Step& step = steps_[member.step];
  if (done.step != static_cast<std::int64_t>(member.step)) Violate("another step ends");
  if (step.verdict && *step.verdict != done.verdict) {
    Violate(absl::StrCat("step ", member.step, " is applied by some and skipped by others"));
  }
  step.verdict = done.verdict;
  if (done.verdict == Verdict::kApply) {
    Note(RecoveryCount::kApplied);
    if (std::cmp_less(members_.size(), options_.world_size)) Note(RecoveryCount::kStepsWithLeaves);
    if (member.core->roster() != nullptr && member.ranks != step.ranks) {
      Violate(
          absl::StrCat("rank ", member.rank, " was not told whose mean step ", member.step, " is"));
    }
    for (const auto& [ticket, bucket] : member.buckets) {
      if (!bucket.done) Violate("a step is applied without a bucket's result");
      CheckBucket(member, member.step, bucket);
    }
    if (member.buckets.size() != step.buckets.size()) Violate("a step is applied in part");
    const bool is_in =
        step.ranks.empty() || std::ranges::count(step.ranks, step.nonfinite_rank) > 0;
    if (step.nonfinite_rank >= 0 && is_in && !late_) Violate("a step with NaN is applied");
    member.model[member.step] = std::byte{1};
    member.has_model = member.has_applied = true;
    for (std::size_t s = 0; s <= member.step; ++s) {
      const bool applied = steps_[s].verdict == Verdict::kApply;
      if ((member.model[s] != std::byte{0}) == applied) continue;
      Violate(absl::StrCat("rank ", member.rank, " trains another model: step ", s));
    }
  } else {
    Note(done.dropped ? RecoveryCount::kDropped : RecoveryCount::kSkippedForValues);
    const bool all_kept = AllKeepGradients() && processes_ == 0 && !options_.shrinks();
    if (step.nonfinite_rank < 0 && all_kept) {
      Violate(absl::StrCat("step ", member.step, " is skipped, and its gradients are kept"));
    }
    const bool may_be_lost = step.lost_in || options_.shrinks();
    if (step.nonfinite_rank < 0 && !may_be_lost) {
      Violate(absl::StrCat("step ", member.step, " is skipped for no reason"));
    }
  }
  if (done.change && !done.change->newcomers.empty()) {
    member.heals = done.change->root;
    member.has_model &= std::ranges::count(done.change->newcomers, member.rank) == 0;
  }
  member.buckets.clear();
  member.over.pop_front();
  member.ended = false;
  member.next_bucket = 0;
  member.order.clear();
  member.collectives = 0;
  ++member.step;
}

// The memory is the user's again, who may clip the gradients before the step's end.
void RecoverySimulation::FinishBucket(OpenBucket& bucket) {
  if (bucket.done) Violate("a bucket is done twice");
  bucket.done = true;
  bucket.result = *bucket.buffer;
  bucket.is_changed = random_.Percent(50);
  if (bucket.is_changed) std::ranges::fill(*bucket.buffer, kClipped);
}

}  // namespace gradwire::sim
