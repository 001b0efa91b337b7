// Members that are late, in a session that outlives its daemon, and maybe some of its members.
//
// Gradients are integers, and the hook `no` adds them without rounding. So over all steps that were
// applied, for each element of each parameter,
//
//   the mean times its members, of each step
//   + what waits for the next step of a member that is there
//   + what was lost
//   = what the members of each step have computed in it.
//
// Lost is what a member had that is gone: what waited there, and the gradients that the step which
// it was in goes on without. If it was in time, its part is in the mean of that step, or the step
// is none of those that were applied, or has the mean of others. A member that leaves may have
// given what waited to another one without having heard so: then it is counted once. A newcomer
// that is not told how the others have ended a step, because it gets their model, loses its late
// gradients of that step. With PowerSGD the ledger says the same, with rounding.
#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/recovery_simulation.h"

namespace gradwire::sim {
namespace {

using Gradients = std::vector<std::vector<double>>;  // by parameter

void AddAll(const Gradients& more, Gradients& sum) {
  for (std::size_t p = 0; p < sum.size(); ++p) {
    for (std::size_t i = 0; i < sum[p].size(); ++i) sum[p][i] += more[p][i];
  }
}

// Whether the sum is `all`, with some of these or with none. A member has all that another one has
// given, or nothing of it.
bool Explains(const Gradients& sum, std::span<const Gradients> unsure, const Gradients& all) {
  if (sum == all) return true;
  for (std::size_t u = 0; u < unsure.size(); ++u) {
    Gradients with = sum;
    AddAll(unsure[u], with);
    if (Explains(with, unsure.subspan(u + 1), all)) return true;
  }
  return false;
}

}  // namespace

void RecoverySimulation::MakeLateScenario() {
  loses_ = losses_.Percent(60);
  late_losses_left_ = losses_.Between(0, 4);
  options_.shrinks_to = loses_ ? losses_.Between(1, 2) : 1;
  if (!loses_) options_.resume_grace = options_.shrink_after = absl::Hours(1000);
  options_.straggler_multiple = 1.5;
  options_.straggler_share = 0.5;
  options_.straggler_steps = static_cast<std::size_t>(random_.Between(1, 3));
  options_.straggler_floor = absl::Milliseconds(20);
}

// One that has late gradients, which seldom lasts.
bool RecoverySimulation::MaybeLoseLate() {
  if (late_losses_left_ == 0) return false;
  std::vector<std::size_t> late;
  for (std::size_t r = 0; r < members_.size(); ++r) {
    if (members_[r]->core == nullptr || members_[r]->is_to_leave) continue;
    const client::LateGradients& gradients = members_[r]->core->late();
    if (!gradients.kept().empty() || !gradients.missed().empty()) late.push_back(r);
  }
  if (late.empty() || !losses_.Percent(2)) return false;
  --late_losses_left_;
  const std::size_t rank = late[losses_.Below(late.size())];
  if (losses_.Percent(50)) {
    members_[rank]->is_to_leave = true;
  } else {
    Kill(rank);
  }
  return true;
}

void RecoverySimulation::Tick() {
  now_ += absl::Milliseconds(10);
  if (lives_.empty() || lives_.back()->over) return;
  Life& life = *lives_.back();
  server::Effects effects;
  life.session->Tick(now_, effects);
  Apply(life, std::move(effects));
}

// As the runtime has it: the step is over, and others have reduced the bucket.
bool RecoverySimulation::TakePast(Member& member, const std::vector<std::uint32_t>& parameters) {
  if (member.over.empty()) return false;
  OpenBucket& open = member.buckets[next_ticket_++];
  open.id = parameters.front();
  open.buffer = std::make_shared<ByteVector>(Gradient(member.rank, member.step, parameters, 1));
  std::vector<ParameterSpec> specs;
  for (const std::uint32_t p : parameters) specs.push_back(manifest_[p]);
  open.bucket = std::make_unique<GradBucket>(
      *GradBucket::Make(0, {DType::kFloat32, open.buffer->data(), Numel(parameters)}, specs));
  const absl::StatusOr<bool> taken =
      member.core->TakePast(static_cast<std::int64_t>(member.step), *open.bucket);
  if (!taken.ok() || !*taken) return false;
  ++late_counts_.past;
  NoteGradients(member, parameters);
  FinishBucket(open);
  return true;
}

// A gradient that is not finite is not kept: had it been in time, the step would have been skipped.
void RecoverySimulation::NoteGradients(const Member& member,
                                       const std::vector<std::uint32_t>& parameters) {
  Step& step = steps_[member.step];
  for (const std::uint32_t p : parameters) {
    if (step.nonfinite_rank == member.rank && step.nonfinite_parameter == p) continue;
    step.computed.emplace(member.rank, p);
  }
}

void RecoverySimulation::NoteGone(const Member& member) {
  if (!late_ || member.core == nullptr) return;
  gone_.push_back({.rank = member.rank,
                   .step = member.core->step(),
                   .may_be_taken = member.leaves,
                   .late = member.core->late()});
}

// What was kept of the steps before it has still.
void RecoverySimulation::NoteMoved(const Member& member, const wire::Frame& frame) {
  const auto* done = std::get_if<wire::StepDone>(&frame.header);
  const std::int64_t step = member.core->step();
  if (done == nullptr || done->step <= step) return;
  gone_.push_back({.rank = member.rank, .step = step, .moved = true, .late = member.core->late()});
}

// Whether the rank's member is one of those whose mean the step is, which was applied. Another
// process of that rank is in a later step only.
bool RecoverySimulation::IsApplied(std::int64_t number, int rank) const {
  if (number >= std::ssize(steps_)) return false;
  const Step& step = steps_[static_cast<std::size_t>(number)];
  return step.verdict == Verdict::kApply && std::ranges::count(step.ranks, rank) > 0;
}

RecoverySimulation::Gradients RecoverySimulation::None() const {
  Gradients none;
  for (const ParameterSpec& parameter : manifest_) none.emplace_back(parameter.numel());
  return none;
}

RecoverySimulation::Gradients RecoverySimulation::Computed() const {
  Gradients sum = None();
  for (std::size_t s = 0; s < steps_.size(); ++s) {
    for (const auto& [rank, p] : steps_[s].computed) {
      if (!IsApplied(static_cast<std::int64_t>(s), rank)) continue;
      for (std::size_t i = 0; i < sum[p].size(); ++i) {
        sum[p][i] += static_cast<double>(Value(rank, s, p, i));
      }
    }
  }
  return sum;
}

RecoverySimulation::Gradients RecoverySimulation::Applied() const {
  Gradients sum = None();
  for (const Step& step : steps_) {
    if (step.verdict != Verdict::kApply) continue;
    const auto members = static_cast<double>(step.ranks.size());
    for (const auto& parameters : step.buckets) {
      const ByteVector& mean = step.applied.at(parameters.front());
      std::size_t at = 0;
      for (const std::uint32_t p : parameters) {
        for (double& one : sum[p]) one += GetElement(DType::kFloat32, mean, at++) * members;
      }
    }
  }
  return sum;
}

void RecoverySimulation::Add(const client::LateGradients::Sum& more, double factor,
                             std::vector<double>& sum) {
  for (std::size_t i = 0; i < sum.size(); ++i) {
    sum[i] += factor * GetElement(DType::kFloat32, more.values, i);
  }
}

// A sum that is missed has what was kept.
RecoverySimulation::Gradients RecoverySimulation::LostWith(const Gone& gone) const {
  Gradients lost = None();
  const bool applied = IsApplied(gone.step, gone.rank);
  const auto& missed = gone.late.missed();
  for (const auto& [p, kept] : gone.late.kept()) {
    const bool is_in_missed = applied && missed.contains(p);
    const bool is_in_mean = applied && gone.late.entered().contains(p);
    if (!gone.moved && !is_in_missed && !is_in_mean) Add(kept, 1, lost[p]);
    if (gone.moved && is_in_missed) Add(kept, -1, lost[p]);
  }
  for (const auto& [p, gradients] : missed) {
    if (applied) Add(gradients, 1, lost[p]);
  }
  for (const auto& [p, gradients] : gone.late.coming()) {
    if (!gone.moved) Add(gradients, 1, lost[p]);
  }
  return lost;
}

void RecoverySimulation::CheckNothingIsLost() {
  Gradients found = Applied();
  for (const auto& member : members_) {
    if (member->core == nullptr) continue;
    const client::LateGradients& late = member->core->late();
    if (!late.kept().empty()) ++late_counts_.waiting;
    for (const auto& [p, kept] : late.kept()) Add(kept, 1, found[p]);
    for (const auto& [p, coming] : late.coming()) Add(coming, 1, found[p]);
  }
  std::vector<Gradients> unsure;
  for (const Gone& gone : gone_) {
    Gradients lost = LostWith(gone);
    if (lost == None()) continue;
    ++late_counts_.lost;
    gone.may_be_taken ? unsure.push_back(std::move(lost)) : AddAll(lost, found);
  }
  if (is_power_sgd()) return;
  const Gradients computed = Computed();
  if (Explains(found, unsure, computed)) return;
  for (std::size_t p = 0; p < computed.size(); ++p) {
    for (std::size_t i = 0; i < computed[p].size(); ++i) {
      if (computed[p][i] == found[p][i]) continue;
      return Violate(absl::StrCat("of ", manifest_[p].name, "[", i, "] gradients of ",
                                  computed[p][i], " were computed, and ", found[p][i],
                                  " are applied, wait or are lost with members"));
    }
  }
}

}  // namespace gradwire::sim
