#include "tests/sim/scenario.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/hooks/registry.h"
#include "tests/sim/random.h"

namespace gradwire::sim {
namespace {

constexpr std::size_t kChunkBytes = 64;

std::vector<ParameterSpec> MakeManifest(Random& random) {
  static constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16,
                                      DType::kBFloat16};
  const std::size_t count = random.Percent(3) ? 0 : 1 + random.Below(7);
  const bool mixed = random.Percent(30);
  const DType common = random.Percent(60) ? DType::kFloat32 : kDTypes[random.Below(4)];
  std::vector<ParameterSpec> manifest;
  for (std::size_t i = 0; i < count; ++i) {
    ParameterSpec spec{.name = absl::StrCat("p", i), .shape = {}, .dtype = common};
    if (mixed) spec.dtype = kDTypes[random.Below(4)];
    if (random.Percent(12)) {
      spec.shape = {3, 0};
    } else {
      spec.shape = {random.Between(1, random.Percent(30) ? 90 : 24)};
    }
    manifest.push_back(spec);
  }
  return manifest;
}

// Small enough for thousands of runs, large enough that a factor takes several chunks.
std::vector<ParameterSpec> MakeMatrices(Random& random) {
  static constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16,
                                      DType::kBFloat16};
  const DType common = random.Percent(70) ? DType::kFloat32 : kDTypes[random.Below(4)];
  const bool mixed = random.Percent(15);
  std::vector<ParameterSpec> manifest(1 + random.Below(4));
  for (std::size_t i = 0; i < manifest.size(); ++i) {
    ParameterSpec& spec = manifest[i];
    spec.name = absl::StrCat("p", i);
    spec.dtype = mixed ? kDTypes[random.Below(4)] : common;
    if (random.Percent(65)) {
      spec.shape = {random.Between(2, random.Percent(20) ? 40 : 12), random.Between(2, 12)};
    } else if (random.Percent(50)) {
      spec.shape = {random.Between(1, 6), random.Between(1, 4), random.Between(1, 3)};
    } else if (random.Percent(60)) {
      spec.shape = {random.Between(0, 24)};
    }
  }
  return manifest;
}

void ChoosePowerSgd(Scenario& scenario, Random& random) {
  HookSpec& spec = scenario.options.spec;
  scenario.power_sgd = true;
  spec.comm_hook = random.Percent(50) ? "power_sgd" : "batched_power_sgd";
  static constexpr const char* kWrappers[] = {"no", "no", "fp16", "bf16"};
  spec.comm_wrapper = kWrappers[random.Below(4)];
  static constexpr std::int64_t kStarts[] = {0, 0, 1, 1, 2, 3};
  static constexpr double kRates[] = {0.25, 0.5, 1, 2};
  auto& options = spec.comm_state_option;
  options["matrix_approximation_rank"] = std::int64_t{random.Between(1, 3)};
  options["start_powerSGD_iter"] = kStarts[random.Below(6)];
  options["min_compression_rate"] = kRates[random.Below(4)];
  options["random_seed"] = static_cast<std::int64_t>(random.Below(1000));
  options["error_feedback"] = std::string(random.Percent(50) ? "aggregate" : "local");
  if (random.Percent(10)) options["use_error_feedback"] = false;
  if (random.Percent(20)) options["batch_tensors_with_same_shape"] = true;
  if (random.Percent(20)) options["orthogonalization_epsilon"] = 1e-8;
  if (random.Percent(40)) {
    options["rounds"] = std::int64_t{1};
  } else if (random.Percent(30)) {
    options["warm_start"] = false;
  }
}

void ChooseHook(Scenario& scenario, Random& random) {
  HookSpec& spec = scenario.options.spec;
  scenario.user_hook = random.Percent(40);
  if (scenario.user_hook) {
    spec.comm_hook = "sim_feedback";
    static constexpr DType kWires[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
    scenario.feedback = {.wire = kWires[random.Below(3)],
                         .rounds = random.Between(1, 2),
                         .empty_round = random.Percent(20),
                         .side_numel = random.Percent(30) ? random.Below(70) : 0};
    return;
  }
  static constexpr const char* kHooks[] = {"no", "no", "fp16", "bf16", "noop"};
  spec.comm_hook = kHooks[random.Below(5)];
  if (random.Percent(15)) spec.comm_wrapper = random.Percent(50) ? "fp16" : "bf16";
}

std::vector<CollectivePlan> MakeCollectives(int world_size, Random& random) {
  std::vector<CollectivePlan> plans;
  if (!random.Percent(20)) return plans;
  const int count = random.Between(1, 3);
  for (int i = 0; i < count; ++i) {
    CollectivePlan plan;
    if (random.Percent(60)) {
      plan.kind = wire::CollectiveKind::kBroadcast;
      plan.root = random.Between(0, world_size - 1);
      plan.bytes = random.Percent(15) ? 0 : random.Below(6 * kChunkBytes);
    }
    plans.push_back(plan);
  }
  return plans;
}

// Parameters of one dtype to a bucket, as GradBucket demands.
StepPlan MakeStep(const Scenario& scenario, Random& random) {
  const auto& manifest = scenario.options.manifest;
  StepPlan step{.collectives = MakeCollectives(scenario.options.world_size, random)};
  const bool partial = random.Percent(15);
  std::vector<std::uint32_t> order;
  for (std::uint32_t p = 0; p < manifest.size(); ++p) {
    if (!partial || random.Percent(60)) order.push_back(p);
  }
  random.Shuffle(order);
  for (std::uint32_t p : order) {
    if (!step.buckets.empty() && random.Percent(50)) {
      auto& bucket = step.buckets[random.Below(step.buckets.size())];
      if (manifest[bucket.front()].dtype == manifest[p].dtype) {
        bucket.push_back(p);
        continue;
      }
    }
    step.buckets.push_back({p});
  }
  step.end_step = order.size() < manifest.size() || manifest.empty() || random.Percent(30);
  if (!order.empty() && random.Percent(12)) {
    step.nonfinite_rank = random.Between(0, scenario.options.world_size - 1);
    step.nonfinite_parameter = order[random.Below(order.size())];
    step.nonfinite_only_at_first = random.Percent(30);
  }
  return step;
}

// Buckets that come again, since a factor serves more than one step; and, between steps, a state
// that goes out and in.
void AdaptSteps(Scenario& scenario, Random& random) {
  const std::size_t trained = scenario.steps.size() - 1;
  for (std::size_t s = 1; s < trained; ++s) {
    StepPlan& step = scenario.steps[s];
    if (random.Percent(70)) {
      step.buckets = scenario.steps.front().buckets;
      step.end_step = scenario.steps.front().end_step;
    }
    if (random.Percent(15)) {
      step.reimports = true;
      step.collectives.insert(step.collectives.begin(), CollectivePlan{});
    }
  }
}

// In time: before the first step that compresses, or in it. Some of it as the steps' buckets are.
void ChooseDrawPlan(Scenario& scenario, Random& random) {
  const auto start =
      std::get<std::int64_t>(scenario.options.spec.comm_state_option.at("start_powerSGD_iter"));
  const auto last = static_cast<std::int64_t>(scenario.steps.size()) - 2;
  scenario.draw_plan_step =
      static_cast<std::int64_t>(random.Below(static_cast<std::size_t>(std::min(start, last)) + 1));
  DrawBuckets plan = scenario.steps.front().buckets;
  if (random.Percent(30)) {
    for (auto& bucket : plan) random.Shuffle(bucket);
  }
  random.Shuffle(plan);
  if (plan.size() > 1 && random.Percent(30)) plan.pop_back();
  if (plan.empty()) plan = {{0}};
  scenario.draw_plan = std::move(plan);
}

void ChooseNetwork(Scenario& scenario, Random& random) {
  scenario.delay_low = absl::Microseconds(50);
  scenario.delay_high = absl::Microseconds(random.Percent(70) ? 3000 : 60000);
  scenario.think_high = absl::Microseconds(random.Percent(60) ? 4000 : 0);
  // The longest: a member is cut off and back while a sum is computed.
  constexpr int kMicroseconds[] = {2000, 2000, 2000, 20'000, 300'000};
  scenario.reduce_high = absl::Microseconds(kMicroseconds[random.Below(std::size(kMicroseconds))]);
  scenario.reduce_inline_percent = random.Percent(30) ? 100 : random.Between(0, 60);
  scenario.duplicate_percent = random.Percent(35) ? random.Between(3, 40) : 0;
  scenario.stale_percent = random.Percent(50) ? random.Between(5, 40) : 0;
  scenario.slow_percent = random.Percent(6) ? 15 : 0;
  scenario.attach_delay_high =
      random.Percent(8) ? 2 * scenario.options.token_timeout : absl::Milliseconds(5);
}

// The bulk lane may be as fast as the main one, or much slower.
void ChooseLanes(Scenario& scenario, Random& random) {
  scenario.lanes = random.Percent(50);
  scenario.small_bytes = random.Percent(50) ? kChunkBytes / 2 : random.Below(kChunkBytes);
  constexpr int kSlower[] = {1, 4, 4, 30};
  scenario.bulk_delay_high = std::min(
      scenario.delay_high * kSlower[random.Below(std::size(kSlower))], absl::Milliseconds(300));
}

void AddFault(Scenario& scenario, FaultKind kind, Random& random) {
  scenario.faults.push_back({.kind = kind,
                             .process = random.Below(scenario.world()),
                             .at_event = random.Below(std::size_t{1} << random.Between(3, 10))});
}

void ChooseFaults(Scenario& scenario, Random& random) {
  if (random.Percent(55)) {
    const int cuts = random.Between(1, random.Percent(20) ? 8 : 3);
    for (int i = 0; i < cuts; ++i) AddFault(scenario, FaultKind::kCut, random);
  }
  if (random.Percent(15)) AddFault(scenario, FaultKind::kShortStall, random);
  if (random.Percent(8)) AddFault(scenario, FaultKind::kDaemonPause, random);
  if (random.Percent(15)) AddFault(scenario, FaultKind::kReplacement, random);
  static constexpr FaultKind kFatal[] = {FaultKind::kDeath,         FaultKind::kLongStall,
                                         FaultKind::kEarlyLeave,    FaultKind::kHostile,
                                         FaultKind::kOldGeneration, FaultKind::kUnreachable};
  if (random.Percent(35)) AddFault(scenario, kFatal[random.Below(std::size(kFatal))], random);
  if (random.Percent(10)) AddFault(scenario, FaultKind::kBulkStuck, random);  // if it has one
  std::sort(scenario.faults.begin(), scenario.faults.end(),
            [](const Fault& a, const Fault& b) { return a.at_event < b.at_event; });
}

// A member that is gone before the session runs, and the process that takes its place.
void ChooseSuccession(Scenario& scenario, Random& random) {
  if (scenario.world() == 1 || !random.Percent(5)) return;
  scenario.faults.clear();
  const std::size_t gone = random.Below(scenario.world());
  if (random.Percent(40)) {
    scenario.dies_unattached = static_cast<int>(gone);
    return;
  }
  scenario.late_process = static_cast<int>((gone + 1) % scenario.world());
  scenario.faults.push_back(
      {.kind = FaultKind::kSuccession, .process = gone, .at_event = random.Below(4)});
}

// One fault, and a session that ends with it: nothing else takes so long.
void ChooseStandstill(Scenario& scenario, Random& random) {
  if (scenario.world() == 1 || !random.Percent(6)) return;
  const FaultKind kind = random.Percent(40) ? FaultKind::kDeaf : FaultKind::kWithholds;
  scenario.faults.clear();
  AddFault(scenario, kind, random);
  scenario.faults.front().at_event %= 128;
  scenario.slow_percent = 0;
  if (kind == FaultKind::kWithholds) scenario.options.step_timeout = absl::Seconds(20);
}

// With numbers of its own, so that all else of the seed stays as it is.
void ChoosePauses(Scenario& scenario) {
  Random random(Mix(scenario.seed, 11));
  if (!random.Percent(15)) return;
  const int pauses = random.Between(1, 3);
  std::size_t at = 0;
  for (int i = 0; i < pauses; ++i) {
    at += random.Below(200);
    const absl::Duration length = random.Between(absl::Seconds(1), absl::Seconds(30));
    scenario.pauses.push_back({.at_event = at,
                               .length = length,
                               .resumed_after = random.Percent(50)
                                                    ? random.Between(absl::ZeroDuration(), length)
                                                    : length});
  }
}

// What the session can have queued for a member that reads and keeps the protocol.
server::QueueLimits::Limits QueueLimitsFor(const Scenario& scenario) {
  const server::SessionOptions& options = scenario.options;
  const std::size_t window = options.window_chunks;
  const std::size_t open = options.open_buckets;
  const std::size_t parameters = options.manifest.size();
  // Results of a window, or of all where they need none, and each bucket's grant.
  const bool unbounded = scenario.power_sgd || scenario.in_place_percent > 0;
  const std::size_t results = unbounded ? options.StepChunks() : open * window;
  // Welcome, StateReset, StepDone, the frames of a collective, and Restarts of others' resumes.
  const std::size_t others = 12 + 2 * window + scenario.faults.size();
  return {.max_bytes = options.chunk_bytes * window * (2 * open + 1) + options.eager_bytes,
          .max_frames = results + 2 * parameters + others};
}

}  // namespace

bool Scenario::Has(FaultKind kind) const {
  return std::any_of(faults.begin(), faults.end(),
                     [kind](const Fault& fault) { return fault.kind == kind; });
}

std::unique_ptr<Hook> Scenario::MakeHook() const {
  if (user_hook) return std::make_unique<FeedbackHook>(feedback, [](const std::string&) {});
  return *HookRegistry::Global().Make(options.spec);
}

std::unique_ptr<CoordinatorHook> Scenario::MakeCoordinator() const {
  if (user_hook) return nullptr;
  return *MakeCoordinatorHook(options.spec, options.manifest);
}

double Scenario::Gradient(int rank, std::int64_t step, std::uint32_t parameter,
                          std::size_t element) const {
  const StepPlan& plan = steps[static_cast<std::size_t>(step)];
  if (plan.nonfinite_rank == rank && plan.nonfinite_parameter == parameter && element == 0 &&
      !plan.nonfinite_only_at_first) {
    return data_seed % 2 == 0 ? std::numeric_limits<double>::quiet_NaN()
                              : std::numeric_limits<double>::infinity();
  }
  // Thirds of eighths: every dtype rounds them, so that error feedback has something to feed back.
  const auto bits = static_cast<int>(Mix(data_seed, rank, step, parameter, element) % 127) - 63;
  return static_cast<double>(bits) / 24.0;
}

Scenario MakeScenario(std::uint64_t seed) {
  Random random(seed);
  Scenario scenario;
  scenario.seed = seed;
  scenario.data_seed = random.Next();
  server::SessionOptions& options = scenario.options;
  options.name = "sim";
  options.world_size = random.Percent(10) ? 1 : random.Between(2, 4);
  if (random.Percent(3)) options.world_size = random.Between(5, 16);
  const bool power_sgd = random.Percent(25);
  options.manifest = power_sgd ? MakeMatrices(random) : MakeManifest(random);
  options.generation = 2;
  options.lineage = random.Next();
  options.chunk_bytes = kChunkBytes;
  options.window_chunks = static_cast<std::uint32_t>(random.Between(1, 3));
  options.open_buckets = static_cast<std::uint32_t>(random.Between(1, 3));
  options.eager_bytes = random.Percent(40) ? 0 : random.Below(3 * kChunkBytes);
  options.join_timeout = absl::Seconds(30);
  options.token_timeout = absl::Seconds(2);
  options.resume_grace = random.Between(absl::Milliseconds(700), absl::Milliseconds(1500));
  options.silence_timeout = random.Between(absl::Seconds(3), absl::Seconds(6));
  power_sgd ? ChoosePowerSgd(scenario, random) : ChooseHook(scenario, random);
  scenario.any_rank = random.Percent(20);
  const int steps = random.Between(1, power_sgd ? 6 : 5);
  for (int s = 0; s < steps; ++s) scenario.steps.push_back(MakeStep(scenario, random));
  scenario.steps.push_back(StepPlan{.collectives = MakeCollectives(options.world_size, random)});
  if (power_sgd) AdaptSteps(scenario, random);
  ChooseNetwork(scenario, random);
  ChooseFaults(scenario, random);
  const bool takes_results =
      std::all_of(options.manifest.begin(), options.manifest.end(),
                  [&](const ParameterSpec& p) { return options.spec.TakesResults(p.dtype); });
  if (!scenario.user_hook && takes_results) {
    scenario.in_place_percent = static_cast<int>(random.Below(3)) * 50;
    // Cut off and back while a sum that goes over its gradients is computed.
    if (random.Percent(40)) scenario.reduce_high = absl::Seconds(1);
  }
  ChooseLanes(scenario, random);
  if (power_sgd && random.Percent(60)) ChooseDrawPlan(scenario, random);
  ChooseSuccession(scenario, random);
  if (scenario.faults.size() > 1) ChooseStandstill(scenario, random);
  ChoosePauses(scenario);
  scenario.queue = QueueLimitsFor(scenario);
  if (random.Percent(25)) {
    scenario.inbox_frames =
        std::size_t{options.window_chunks} * options.open_buckets + random.Below(4);
  }
  return scenario;
}

std::string Describe(const Scenario& scenario) {
  std::string text = absl::StrCat(
      "world ", scenario.options.world_size, ", window ", scenario.options.window_chunks, ", open ",
      scenario.options.open_buckets, ", hook ", scenario.options.spec.ToString(), " (rounds ",
      scenario.feedback.rounds, scenario.feedback.empty_round ? " after an empty one" : "", "), ",
      scenario.steps.size() - 1, " steps, ",
      scenario.lanes ? absl::StrCat("a bulk lane above ", scenario.small_bytes, " bytes, ") : "",
      "parameters");
  for (const ParameterSpec& spec : scenario.options.manifest) {
    absl::StrAppend(&text, " ", spec.numel(), "x", Name(spec.dtype));
  }
  absl::StrAppend(&text, ", faults");
  for (const Fault& fault : scenario.faults) {
    absl::StrAppend(&text, " ", static_cast<int>(fault.kind), "@", fault.at_event, ":",
                    fault.process);
  }
  return text;
}

}  // namespace gradwire::sim
