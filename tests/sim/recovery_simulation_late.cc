// Members that are late, in a session that outlives its daemon.
//
// Gradients are integers, and the hook `no` adds them without rounding. So over all steps that were
// applied, the means times the members must be what all members have computed in these steps, but
// for what waits for a member's next step. With PowerSGD the ledger says the same, with rounding.
#include "absl/strings/str_cat.h"
#include "tests/sim/recovery_simulation.h"

namespace gradwire::sim {

void RecoverySimulation::MakeLateScenario() {
  // Nobody is lost for good.
  options_.resume_grace = options_.shrink_after = absl::Hours(1000);
  options_.shrinks_to = 1;
  options_.straggler_multiple = 1.5;
  options_.straggler_share = 0.5;
  options_.straggler_steps = static_cast<std::size_t>(random_.Between(1, 3));
  options_.straggler_floor = absl::Milliseconds(20);
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
  open.buffer = std::make_shared<ByteVector>(Gradient(member.rank, member.step, parameters));
  std::vector<ParameterSpec> specs;
  for (const std::uint32_t p : parameters) specs.push_back(manifest_[p]);
  open.bucket = std::make_unique<GradBucket>(
      *GradBucket::Make(0, {DType::kFloat32, open.buffer->data(), Numel(parameters)}, specs));
  const absl::StatusOr<bool> taken =
      member.core->TakePast(static_cast<std::int64_t>(member.step), *open.bucket);
  if (!taken.ok() || !*taken) return false;
  ++late_counts_.past;
  FinishBucket(open);
  return true;
}

// Of a step that was applied. A gradient that is not finite is not kept: had it been in time, the
// step would have been skipped.
void RecoverySimulation::NoteGradients(const Member& member) {
  const Step& step = steps_[member.step];
  for (std::uint32_t p = 0; p < manifest_.size(); ++p) {
    std::vector<double>& sum = computed_[p];
    sum.resize(manifest_[p].numel());
    if (step.nonfinite_rank == member.rank && step.nonfinite_parameter == p) continue;
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] += static_cast<double>(Value(member.rank, member.step, p, i));
    }
  }
}

void RecoverySimulation::CheckNothingIsLost() {
  std::map<std::uint32_t, std::vector<double>> found;
  for (std::uint32_t p = 0; p < manifest_.size(); ++p) found[p].resize(manifest_[p].numel());
  for (const Step& step : steps_) {
    if (step.verdict != Verdict::kApply) continue;
    for (const auto& parameters : step.buckets) {
      const ByteVector& mean = step.applied.at(parameters.front());
      std::size_t at = 0;
      for (const std::uint32_t p : parameters) {
        for (double& sum : found[p]) {
          sum += GetElement(DType::kFloat32, mean, at++) * options_.world_size;
        }
      }
    }
  }
  for (const auto& member : members_) {
    const client::LateGradients& late = member->core->late();
    if (!late.kept().empty()) ++late_counts_.waiting;
    for (const auto& [p, kept] : late.kept()) {
      for (std::size_t i = 0; i < found[p].size(); ++i) {
        found[p][i] += GetElement(DType::kFloat32, kept.values, i);
      }
    }
  }
  if (is_power_sgd()) return;
  for (const auto& [p, sum] : computed_) {
    if (sum == found[p]) continue;
    return Violate(absl::StrCat("of ", manifest_[p].name, " gradients of ", sum[0],
                                " were computed, and means or members have ", found[p][0]));
  }
}

}  // namespace gradwire::sim
