#include "tests/sim/shard_scenario.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/sim/random.h"
#include "tests/sim/random_buckets.h"

namespace gradwire::sim {
namespace {

std::string RandomHook(Random& random) {
  const std::string low_rank =
      ",start_powerSGD_iter=1,matrix_approximation_rank=2,min_compression_rate=0.5";
  const std::vector<std::string> hooks = {"no",
                                          "fp16",
                                          "bf16",
                                          "no,comm_wrapper=bf16",
                                          "power_sgd" + low_rank,
                                          "power_sgd" + low_rank,
                                          "power_sgd,rounds=1" + low_rank};
  return hooks[random.Below(hooks.size())];
}

std::vector<ParameterSpec> RandomModel(bool large, Random& random) {
  std::vector<ParameterSpec> model;
  const int parameters = random.Between(1, large ? 4 : 6);
  for (int p = 0; p < parameters; ++p) {
    ParameterSpec parameter{.name = absl::StrCat("p", p), .shape = {}, .dtype = DType::kFloat32};
    if (large && random.Percent(60)) {
      parameter.shape = {random.Between(1, 5000)};
    } else if (large) {
      parameter.shape = {random.Between(10, 50), random.Between(10, 60)};
    } else {
      parameter.shape = {random.Between(random.Percent(10) ? 0 : 1, 12)};
      if (random.Percent(60)) parameter.shape.push_back(random.Between(1, 9));
    }
    model.push_back(parameter);
  }
  return model;
}

// A shard without parameters knows only from its members that a step is over.
void ChooseSteps(ShardScenario& scenario, Random& random) {
  bool all_have_some = true;
  for (std::uint32_t shard = 0; shard < scenario.shards(); ++shard) {
    all_have_some &= scenario.map->ParametersOf(shard) > 0;
  }
  const int steps = random.Between(1, 4);
  for (int step = 0; step < steps; ++step) {
    auto buckets = RandomBuckets(scenario.options.manifest.size(), random);
    const bool ends = !all_have_some || random.Percent(60);
    if (ends && random.Percent(35)) buckets.pop_back();
    scenario.steps.push_back(std::move(buckets));
    scenario.ended.push_back(ends);
  }
}

void ChooseNonFinite(ShardScenario& scenario, Random& random) {
  const std::size_t step = random.Below(scenario.steps.size());
  if (scenario.steps[step].empty()) return;
  const auto& bucket = scenario.steps[step][random.Below(scenario.steps[step].size())];
  const std::uint32_t parameter = bucket[random.Below(bucket.size())];
  const std::size_t numel = scenario.options.manifest[parameter].numel();
  if (numel == 0) return;
  scenario.nonfinite = {.step = static_cast<std::int64_t>(step),
                        .rank = random.Between(0, scenario.options.world_size - 1),
                        .parameter = parameter,
                        .element = random.Below(numel)};
}

void ChooseDrawPlan(ShardScenario& scenario, Random& random) {
  scenario.draw_plan = RandomBuckets(scenario.options.manifest.size(), random);
  if (scenario.draw_plan.size() > 1 && random.Percent(30)) scenario.draw_plan.pop_back();
  scenario.draw_plan_step = scenario.steps.size() > 1 ? random.Between(0, 1) : 0;
}

void ChooseFault(ShardScenario& scenario, Random& random) {
  constexpr ShardFault kFaults[] = {ShardFault::kDeath, ShardFault::kCutOff, ShardFault::kEvicted};
  scenario.fault = kFaults[random.Below(std::size(kFaults))];
  scenario.fault_rank = random.Between(0, scenario.options.world_size - 1);
  scenario.fault_shard = static_cast<std::uint32_t>(random.Below(scenario.shards()));
  scenario.fault_after = random.Below(random.Percent(50) ? 300 : 2000);
}

std::string Name(ShardFault fault) {
  switch (fault) {
    case ShardFault::kNone:
      return "nothing";
    case ShardFault::kDeath:
      return "a death";
    case ShardFault::kCutOff:
      return "a lost daemon";
    case ShardFault::kEvicted:
      return "an eviction";
  }
  return "";
}

}  // namespace

ShardScenario MakeShardScenario(std::uint64_t seed) {
  Random random(Mix(seed, 0x736861726473));
  ShardScenario scenario;
  scenario.seed = seed;
  server::SessionOptions& options = scenario.options;
  options.name = "shards";
  options.world_size = random.Between(1, 5);
  options.spec = *HookSpec::Parse(RandomHook(random));
  const bool large = random.Percent(20);
  options.manifest = RandomModel(large, random);
  options.generation = 7;
  options.chunk_bytes = large ? std::size_t{1024} << random.Below(4) : 64;
  options.window_chunks = static_cast<std::uint32_t>(random.Between(1, 3));
  options.open_buckets = static_cast<std::uint32_t>(random.Between(1, 3));
  options.eager_bytes = random.Percent(50) ? 0 : 256;
  options.join_timeout = absl::Seconds(60);
  options.step_timeout = absl::Seconds(60);
  const auto shards = static_cast<std::uint32_t>(random.Percent(8) ? 1 : random.Between(2, 4));
  scenario.map = std::make_shared<const ShardMap>(
      *ShardMap::Make(options.spec, options.manifest.list(), shards));
  for (std::uint32_t shard = 0; shards > 1 && shard < shards; ++shard) {
    options.shard.addresses.push_back(absl::StrCat("daemon-", shard, ":29610"));
  }
  ChooseSteps(scenario, random);
  if (random.Percent(30)) ChooseNonFinite(scenario, random);
  if (random.Percent(30)) ChooseDrawPlan(scenario, random);
  scenario.longest_delay = absl::Milliseconds(random.Percent(70) ? 5 : 40);
  scenario.longest_thought = random.Percent(75) ? scenario.longest_delay : absl::Seconds(3);
  if (random.Percent(50)) scenario.cut_percent = random.Between(1, 4);
  if (random.Percent(30)) ChooseFault(scenario, random);
  return scenario;
}

server::SessionOptions ShardScenario::OptionsOf(std::uint32_t shard) const {
  server::SessionOptions own = options;
  own.shard.number = shard;
  if (shards() > 1) own.shard.map = map;
  return own;
}

std::vector<std::byte> ShardScenario::GradientBytes(int rank, std::int64_t step,
                                                    std::uint32_t parameter) const {
  Random random(Mix(seed, rank, step, parameter));
  std::vector<float> values(options.manifest[parameter].numel());
  for (float& value : values) {
    value = static_cast<float>(static_cast<double>(random.Next() >> 11) * 0x1p-52 - 1.0);
  }
  if (step == nonfinite.step && rank == nonfinite.rank && parameter == nonfinite.parameter) {
    values[nonfinite.element] = std::numeric_limits<float>::quiet_NaN();
  }
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::string Describe(const ShardScenario& scenario) {
  const server::SessionOptions& options = scenario.options;
  std::string text = absl::StrCat(
      scenario.shards(), " shards, world ", options.world_size, ", hook ", options.spec.ToString(),
      ", ", scenario.steps.size(), " steps, window ", options.window_chunks, ", open ",
      options.open_buckets, ", eager ", options.eager_bytes, ", chunks of ", options.chunk_bytes,
      ", cuts ", scenario.cut_percent, " %, ", Name(scenario.fault), " of rank ",
      scenario.fault_rank, " or shard ", scenario.fault_shard, " after ", scenario.fault_after,
      " events, NaN in step ", scenario.nonfinite.step, ", draw plan before step ",
      scenario.draw_plan_step, ", parameters");
  for (const ParameterSpec& spec : options.manifest) absl::StrAppend(&text, " ", spec.numel());
  return text;
}

}  // namespace gradwire::sim
