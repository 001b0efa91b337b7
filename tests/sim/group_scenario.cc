#include "tests/sim/group_scenario.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/wire/member_report.h"
#include "tests/sim/bytes.h"
#include "tests/sim/random.h"
#include "tests/sim/random_buckets.h"

namespace gradwire::sim {
namespace {

std::string RandomHook(Random& random) {
  const std::string low_rank =
      ",start_powerSGD_iter=1,matrix_approximation_rank=2,min_compression_rate=0.5";
  const std::vector<std::string> hooks = {"no",
                                          "fp16",
                                          "no,comm_wrapper=bf16",
                                          "power_sgd" + low_rank,
                                          "power_sgd,rounds=1" + low_rank,
                                          "batched_power_sgd" + low_rank};
  return hooks[random.Below(hooks.size())];
}

std::vector<ParameterSpec> RandomModel(Random& random) {
  std::vector<ParameterSpec> model;
  const int parameters = random.Between(2, 6);
  for (int p = 0; p < parameters; ++p) {
    ParameterSpec parameter{.name = absl::StrCat("p", p), .shape = {}, .dtype = DType::kFloat32};
    parameter.shape = {random.Between(random.Percent(10) ? 0 : 1, 12)};
    if (random.Percent(60)) parameter.shape.push_back(random.Between(1, 9));
    model.push_back(parameter);
  }
  return model;
}

void AddSteps(GroupScenario& scenario, int steps, Random& random) {
  for (int step = 0; step < steps; ++step) {
    auto buckets = RandomBuckets(scenario.options.manifest.size(), random);
    const bool ends = random.Percent(50);
    if (ends && buckets.size() > 1 && random.Percent(50)) buckets.pop_back();
    scenario.steps.push_back(std::move(buckets));
    scenario.ended.push_back(ends);
  }
}

void Recover(GroupScenario& scenario, Random random) {
  server::SessionOptions& options = scenario.options;
  scenario.recovers = true;
  scenario.dying_rank = -1;
  options.coordinator_grace = absl::Seconds(60);
  options.session_key = std::string(wire::kSessionKeyBytes, 'k');
  options.lineage = 5;
  AddSteps(scenario, random.Between(1, 4), random);
  // A resume repeats what only the coordinator knows of the state, in a hundred frames.
  scenario.cut_percent = std::min(scenario.cut_percent, options.spec.OnlyCasts() ? 3 : 1);
  // A newcomer has factors of parameters only that have been in steps since, and the same buckets.
  if (!options.spec.OnlyCasts()) {
    for (auto& step : scenario.steps) step = RandomBuckets(options.manifest.size(), random);
  }
  if (options.spec.comm_hook == "batched_power_sgd") {
    std::fill(scenario.steps.begin() + 1, scenario.steps.end(), scenario.steps.front());
  }
  const auto moments = [&](int count) {
    std::vector<std::size_t> all;
    for (int i = 0; i < count; ++i) all.push_back(random.Below(400 * scenario.steps.size()));
    std::sort(all.begin(), all.end());
    return all;
  };
  scenario.losses = moments(random.Between(0, 3));
  if (!random.Percent(60)) return;
  options.member_grace = absl::Seconds(60);
  for (const std::size_t at : moments(random.Between(0, 3))) {
    scenario.deaths.emplace_back(at, random.Next());
  }
  Random shrinking(Mix(scenario.seed, 0x736872696e6b));
  // Without groups gradients are held until the Welcome (recovery_simulation.h).
  const bool any = std::ranges::any_of(scenario.groups, [&](const std::string& name) {
    return !name.empty() && std::ranges::count(scenario.groups, name) > 1;
  });
  if (!any || !shrinking.Percent(50)) return;
  options.shrinks_to = 1;
  options.shrink_after = options.resume_grace;
  AddSteps(scenario, 2, shrinking);
  if (options.spec.comm_hook == "batched_power_sgd") {
    std::fill(scenario.steps.begin() + 1, scenario.steps.end(), scenario.steps.front());
  }
}

}  // namespace

GroupScenario MakeGroupScenario(std::uint64_t seed, bool recovers) {
  Random random(Mix(seed, 0x67726f757073));
  GroupScenario scenario;
  scenario.seed = seed;
  const int world = random.Between(2, 6);
  const int names = random.Between(1, 3);
  for (int rank = 0; rank < world; ++rank) {
    const int name = random.Between(0, names);
    scenario.groups.push_back(name == 0 ? "" : absl::StrCat("g", name));
  }
  server::SessionOptions& options = scenario.options;
  options.name = "groups";
  options.world_size = world;
  options.spec = *HookSpec::Parse(RandomHook(random));
  options.manifest = RandomModel(random);
  options.generation = 7;
  options.chunk_bytes = 64;
  options.window_chunks = static_cast<std::uint32_t>(random.Between(1, 3));
  options.open_buckets = static_cast<std::uint32_t>(random.Between(1, 3));
  options.eager_bytes = random.Percent(50) ? 0 : 256;
  options.join_timeout = absl::Seconds(60);
  options.step_timeout = absl::Seconds(60);
  const int steps = random.Between(1, 4);
  AddSteps(scenario, steps, random);
  if (random.Percent(15)) scenario.nonfinite_step = random.Between(0, steps - 1);
  if (random.Percent(40)) scenario.cut_percent = random.Between(1, 3);
  if (random.Percent(30)) {
    scenario.dying_rank = random.Between(0, world - 1);
    scenario.dies_after = random.Below(600);
  }
  if (recovers) Recover(scenario, Random(Mix(seed, 0x7265636f766572)));
  return scenario;
}

double GroupScenario::Gradient(int rank, std::int64_t step, std::uint32_t parameter,
                               std::size_t i) const {
  if (step == nonfinite_step && rank == 0 && i == 0 &&
      parameter == steps.at(static_cast<std::size_t>(step)).front().front()) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const std::uint64_t bits = Mix(seed, rank, step, parameter, i);
  return static_cast<double>(static_cast<float>(static_cast<double>(bits >> 11) * 0x1p-52 - 1.0));
}

std::vector<std::byte> GroupScenario::GradientBytes(int rank, std::int64_t step,
                                                    std::uint32_t parameter) const {
  const ParameterSpec& spec = options.manifest[parameter];
  std::vector<std::byte> bytes(spec.numel() * ByteSize(spec.dtype));
  for (std::size_t i = 0; i < spec.numel(); ++i) {
    PutElement(spec.dtype, bytes, i, Gradient(rank, step, parameter, i));
  }
  return bytes;
}

std::string Describe(const GroupScenario& scenario) {
  return absl::StrCat("groups \"", absl::StrJoin(scenario.groups, "\", \""), "\", hook ",
                      scenario.options.spec.ToString(), ", ", scenario.steps.size(), " steps, ",
                      scenario.options.manifest.size(), " parameters, window ",
                      scenario.options.window_chunks, ", open ", scenario.options.open_buckets,
                      ", eager ", scenario.options.eager_bytes, ", cuts ", scenario.cut_percent,
                      " %, rank ", scenario.dying_rank, " dies after ", scenario.dies_after, ", ",
                      scenario.losses.size(), " daemons lost, ", scenario.deaths.size(), " members",
                      scenario.options.shrinks() ? ", shrinks" : "");
}

}  // namespace gradwire::sim
