#include "server/ctl/doctor/cost.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/match.h"
#include "gradwire/hooks/registry.h"
#include "hooks/coordinator_hook.h"
#include "hooks/reduce.h"

namespace gradwire::ctl {
namespace {

constexpr char kStartOption[] = "start_powerSGD_iter";
// The first steps that compress are those after this one.
constexpr std::int64_t kStart = 2;
constexpr int kMeasured = 7;
// Of these the first still allocate, and draw what later steps begin with.
constexpr int kWarmUp = 4;

// An applied step after which every hook compresses. Even, so that a hook that sends its factors in
// turn sends P.
constexpr std::int64_t kLate = std::int64_t{1} << 40;

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

RoundCost CostOf(const RoundPlan& plan) {
  RoundCost cost;
  for (const Segment& segment : plan.segments) {
    const bool whole = segment.op == ReduceOp::kOrthonormalizedSum;
    (whole ? cost.whole_bytes : cost.streamed_bytes) += segment.bytes();
  }
  return cost;
}

// A member and the coordinator's part of its hook, in one loop.
class OneMember {
 public:
  static absl::StatusOr<OneMember> Make(const HookSpec& spec,
                                        const std::vector<ParameterSpec>& parameters) {
    OneMember one;
    auto hook = HookRegistry::Global().Make(spec);
    if (!hook.ok()) return hook.status();
    one.hook_ = *std::move(hook);
    auto coordinator = MakeCoordinatorHook(spec, parameters);
    if (!coordinator.ok()) return coordinator.status();
    one.coordinator_ = *std::move(coordinator);
    one.positions_.resize(parameters.size());
    std::iota(one.positions_.begin(), one.positions_.end(), 0U);
    for (const ParameterSpec& parameter : parameters) one.numel_ += parameter.numel();
    one.parameters_ = parameters;
    return one;
  }

  // One step on new gradients; returns its seconds.
  absl::StatusOr<double> Step(std::int64_t step) {
    gradients_.resize(numel_);
    // Of full rank, and the same in each run.
    std::uint32_t state = 1U + static_cast<std::uint32_t>(step);
    for (float& value : gradients_) {
      state = state * 1664525U + 1013904223U;
      value = static_cast<float>(state >> 8) / static_cast<float>(1U << 24) - 0.5F;
    }
    auto bucket =
        GradBucket::Make(0, {DType::kFloat32, gradients_.data(), gradients_.size()}, parameters_);
    if (!bucket.ok()) return bucket.status();
    const auto begin = Clock::now();
    if (absl::Status status = Reduce(*bucket, step); !status.ok()) return status;
    return SecondsSince(begin);
  }

  const std::vector<RoundCost>& last_rounds() const { return rounds_; }

 private:
  absl::Status Reduce(GradBucket& bucket, std::int64_t step) {
    if (const auto plan = coordinator_->Plan(positions_); !plan.ok()) return plan.status();
    auto run = hook_->Start(bucket, step);
    if (!run.ok()) return run.status();
    rounds_.clear();
    for (std::uint32_t round = 0;; ++round) {
      const auto plan = (*run)->Next({.world_size = 1, .rank = 0});
      if (!plan.ok()) return plan.status();
      if (!plan->has_value()) break;
      if (round == 0) {
        if (absl::Status status = Import(**run); !status.ok()) return status;
      }
      rounds_.push_back(CostOf(**plan));
      for (std::size_t i = 0; i < (*plan)->segments.size(); ++i) {
        absl::Status status = ReduceSegment(**run, round, i, (*plan)->segments[i]);
        if (!status.ok()) return status;
      }
    }
    (*run)->Commit();
    hook_->EndStep(Verdict::kApply);
    coordinator_->EndStep(Verdict::kApply);
    return absl::OkStatus();
  }

  absl::Status Import(HookRun& run) {
    if (run.shared_bytes() == 0 || coordinator_->SharedVersion(positions_) == 0) {
      return absl::OkStatus();
    }
    const auto work = coordinator_->SharedState(positions_);
    work->Run();
    return run.Import(work->TakeBytes());
  }

  absl::Status ReduceSegment(HookRun& run, std::uint32_t round, std::size_t number,
                             const Segment& segment) {
    const ElementRange range{.segment = number, .begin = 0, .end = segment.numel};
    sent_.resize(segment.bytes());
    result_.resize(segment.bytes());
    if (absl::Status status = run.Encode(range, sent_); !status.ok()) return status;
    const std::span<const std::byte> piece = sent_;
    const Pieces pieces(&piece, 1);
    if (segment.op == ReduceOp::kOrthonormalizedSum) {
      ReduceOrthonormalized(segment, {&pieces, 1}, result_);
    } else {
      gradwire::Reduce(segment.dtype, segment.op, segment.numel, {&pieces, 1}, result_);
    }
    if (coordinator_->Observes(round, segment)) {
      coordinator_->Observe(positions_, round, range, result_);
    }
    return run.Decode(range, result_);
  }

  std::unique_ptr<Hook> hook_;
  std::unique_ptr<CoordinatorHook> coordinator_;
  std::vector<ParameterSpec> parameters_;
  std::vector<std::uint32_t> positions_;
  std::size_t numel_ = 0;
  std::vector<RoundCost> rounds_;
  std::vector<float> gradients_;
  std::vector<std::byte> sent_;
  std::vector<std::byte> result_;
};

}  // namespace

std::uint64_t StepCost::bytes() const {
  std::uint64_t sum = 0;
  for (const RoundCost& round : rounds) sum += round.streamed_bytes + round.whole_bytes;
  return sum;
}

absl::StatusOr<HookSpec> HookFromText(const std::string& text) {
  auto spec = HookSpec::Parse(text);
  if (!spec.ok()) return spec.status();
  const bool starts_late = absl::EndsWith(spec->comm_hook, "power_sgd");
  if (starts_late) spec->comm_state_option.try_emplace(kStartOption, kStart);
  return spec;
}

absl::StatusOr<std::vector<RoundCost>> PlannedRounds(const HookSpec& spec,
                                                     const std::vector<ParameterSpec>& parameters) {
  const auto hook = HookRegistry::Global().Make(spec);
  if (!hook.ok()) return hook.status();
  (*hook)->Reset(kLate);
  const auto plans = (*hook)->Plan(parameters, kLate);
  if (!plans.ok()) return plans.status();
  std::vector<RoundCost> rounds;
  for (const RoundPlan& plan : *plans) rounds.push_back(CostOf(plan));
  return rounds;
}

absl::StatusOr<StepCost> MeasureCost(const HookSpec& spec,
                                     const std::vector<ParameterSpec>& parameters) {
  auto member = OneMember::Make(spec, parameters);
  if (!member.ok()) return member.status();
  std::vector<double> seconds;
  for (int step = 0; step < kWarmUp + kMeasured; ++step) {
    const auto took = member->Step(step);
    if (!took.ok()) return took.status();
    if (step >= kWarmUp) seconds.push_back(*took);
  }
  StepCost cost{.rounds = member->last_rounds()};
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  cost.compute_seconds = *middle;
  return cost;
}

double CrossingSeconds(const Link& link, double bytes) {
  Crossing before;
  for (const Crossing& one : link.crossings) {
    if (bytes <= one.bytes) {
      const double part = (bytes - before.bytes) / (one.bytes - before.bytes);
      return before.seconds + part * (one.seconds - before.seconds);
    }
    before = one;
  }
  return before.seconds + link.members * (bytes - before.bytes) / link.bytes_per_second;
}

double StepSeconds(const StepCost& cost, int members, const Link& link) {
  double seconds = link.step_seconds + cost.compute_seconds;
  for (std::size_t i = 0; i < cost.rounds.size(); ++i) {
    if (i > 0) seconds += link.round_trip_seconds;
    const auto streamed = static_cast<double>(cost.rounds[i].streamed_bytes);
    const auto whole = static_cast<double>(cost.rounds[i].whole_bytes);
    const double waited = whole > 0 ? members * whole / link.whole_bytes_per_second : 0;
    seconds += std::max(CrossingSeconds(link, streamed + whole) * members / link.members, waited);
  }
  return seconds;
}

}  // namespace gradwire::ctl
