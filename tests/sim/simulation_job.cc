// The training job above the simulation's members: steps, buckets, collectives.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/simulation.h"

namespace gradwire::sim {

void Simulation::BeginStep(Process& process) {
  if (!Awake(process, [this, &process] { BeginStep(process); })) return;
  if (process.member->failed() || process.leaving) return;
  const auto step = static_cast<std::size_t>(process.member->step());
  const StepPlan& plan = scenario_.steps[step];
  if (plan.reimports && process.rank == 0 && process.next_collective == 0) {
    if (DaemonPaused([this, &process] { BeginStep(process); }, false)) return;
    Reimport();
  }
  if (process.next_collective < plan.collectives.size()) {
    return EnterCollective(process, plan.collectives[process.next_collective]);
  }
  if (step + 1 == scenario_.steps.size()) return Leave(process);
  StartBuckets(process);
}

void Simulation::EnterCollective(Process& process, const CollectivePlan& plan) {
  if (process.withholds) return;
  process.collective_data.assign(plan.bytes, std::byte{0});
  client::Effects effects;
  const absl::StatusOr<std::uint64_t> number =
      process.member->Enter(plan.kind, plan.root, plan.bytes, effects);
  if (!number.ok()) return checker_.Violate(std::string(number.status().message()));
  if (plan.root == process.rank) {
    for (std::size_t i = 0; i < plan.bytes; ++i) {
      process.collective_data[i] = CollectiveByte(scenario_.data_seed, *number, i);
    }
  }
  ApplyMember(process, std::move(effects));
}

void Simulation::StartBuckets(Process& process) {
  if (process.resets) {
    // A member that went on with the state before would differ from the others.
    const auto* hook = static_cast<const WatchedHook*>(process.hook.get());
    if (hook->resets() <= *std::exchange(process.resets, std::nullopt)) {
      return checker_.Violate(absl::StrCat("rank ", process.rank, " begins step ",
                                           process.member->step(),
                                           " and has not heard of the new state"));
    }
  }
  const std::int64_t step = process.member->step();
  const StepPlan& plan = scenario_.steps[static_cast<std::size_t>(step)];
  if (process.rank == 0 && step == scenario_.draw_plan_step) {
    client::Effects effects;
    if (absl::Status status = process.member->SetDrawPlan(scenario_.draw_plan, effects);
        !status.ok()) {
      return checker_.Violate(absl::StrCat("SetDrawPlan: ", status.message()));
    }
    ApplyMember(process, std::move(effects));
  }
  std::vector<std::size_t> order(plan.buckets.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  random_.Shuffle(order);
  absl::Time at = now_;
  const auto schedule = [&](std::function<void()> action) {
    if (random_.Percent(scenario_.slow_percent)) {
      Note(Count::kSlowBuckets);
      at += 2 * scenario_.options.silence_timeout;
    }
    at += random_.Between(absl::ZeroDuration(), scenario_.think_high);
    const auto run = [this, &process, step, action](const auto& self) -> void {
      if (!Awake(process, [self] { self(self); })) return;
      if (process.withholds) return;
      if (!process.member->failed() && !process.leaving && process.member->step() == step) action();
    };
    At(at, [run] { run(run); });
  };
  for (std::size_t index : order) {
    schedule([this, &process, &bucket = plan.buckets[index]] { StartBucket(process, bucket); });
  }
  if (!plan.end_step) return;
  Note(Count::kPartialSteps);
  schedule([this, &process] {
    client::Effects effects;
    if (absl::Status status = process.member->EndStep(effects); !status.ok()) {
      return checker_.Violate(absl::StrCat("EndStep: ", status.message()));
    }
    ApplyMember(process, std::move(effects));
  });
}

void Simulation::StartBucket(Process& process, const std::vector<std::uint32_t>& parameters) {
  const client::Ticket ticket = next_ticket_++;
  OpenBucket& open = process.buckets[ticket];
  open.id = parameters.front();
  open.buffer = std::make_shared<ByteVector>(
      checker_.GradientBytes(process.rank, process.member->step(), parameters));
  std::vector<ParameterSpec> specs;
  for (std::uint32_t p : parameters) specs.push_back(scenario_.options.manifest[p]);
  const DType dtype = specs.front().dtype;
  absl::StatusOr<GradBucket> bucket = GradBucket::Make(
      0, TensorView{dtype, open.buffer->data(), open.buffer->size() / ByteSize(dtype)}, specs);
  if (!bucket.ok()) return checker_.Violate(std::string(bucket.status().message()));
  open.bucket = std::make_unique<GradBucket>(*std::move(bucket));
  client::Effects effects;
  if (absl::Status status = process.member->StartBucket(ticket, *open.bucket, effects);
      !status.ok()) {
    return checker_.Violate(absl::StrCat("StartBucket: ", status.message()));
  }
  if (process.in_place) process.member->SendAhead(parameters.front());
  ApplyMember(process, std::move(effects));
}

void Simulation::Leave(Process& process) {
  process.leaving = true;
  const auto call = [this, &process](const auto& self) -> void {
    if (DaemonPaused([self] { self(self); }, false)) return;
    server::Effects effects;
    const absl::Status status = session_.Leave(process.rank, process.start_id, now_, effects);
    const bool failed = session_.state() == server::SessionCore::State::kFailed;
    if (status.ok() && !failed) process.left = true;
    if (!status.ok() && !failed) checker_.Violate(std::string(status.message()));
    Apply(std::move(effects));
  };
  After(NetworkDelay(), [call] { call(call); });
}

}  // namespace gradwire::sim
