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

// Of a leaf daemon, or of anybody at the root.
void ChooseLeafFault(ShardScenario& scenario, Random& random) {
  constexpr ShardFault kFaults[] = {
      ShardFault::kDeath,     ShardFault::kDeath,  ShardFault::kCutOff, ShardFault::kEvicted,
      ShardFault::kLeafDeath, ShardFault::kAbsent, ShardFault::kQuit};
  ChooseFault(scenario, random);
  scenario.fault = kFaults[random.Below(std::size(kFaults))];
  std::vector<int> leaves;
  for (std::size_t g = 0; g < scenario.groups.size(); ++g) {
    if (scenario.groups[g].leaf) leaves.push_back(static_cast<int>(g));
  }
  const bool may_be_leaf =
      scenario.fault == ShardFault::kCutOff || scenario.fault == ShardFault::kEvicted;
  if (leaves.empty()) {
    if (scenario.fault == ShardFault::kLeafDeath) scenario.fault = ShardFault::kDeath;
  } else if (scenario.fault == ShardFault::kLeafDeath || (may_be_leaf && random.Percent(50))) {
    scenario.fault_leaf = leaves[random.Below(leaves.size())];
  }
  if (scenario.fault == ShardFault::kAbsent) {
    scenario.fault_after = 1 + random.Below(60);
    scenario.options.join_timeout = absl::Seconds(5);
  }
  scenario.fault_before = static_cast<std::int64_t>(random.Below(scenario.steps.size()));
}

void ChooseGroups(ShardScenario& scenario, Random& random) {
  const int leaves = random.Percent(5) ? 0 : random.Between(1, 3);
  const int trainers = random.Between(leaves == 0 ? 1 : 0, 2);
  const bool equal = random.Percent(30);
  const int ranks = random.Between(1, 3);
  std::vector<ShardGroup>& groups = scenario.groups;
  for (int leaf = 0; leaf < leaves; ++leaf) {
    groups.push_back({.ranks = equal ? ranks : random.Between(1, 3), .leaf = true});
  }
  groups.resize(groups.size() + static_cast<std::size_t>(trainers));
  random.Shuffle(groups);
  int first = 0;
  for (ShardGroup& group : groups) {
    group.first = first;
    first += group.ranks;
  }
  scenario.options.world_size = first;
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
    case ShardFault::kLeafDeath:
      return "a leaf's death";
    case ShardFault::kAbsent:
      return "an absence";
    case ShardFault::kQuit:
      return "an early departure";
  }
  return "";
}

void ChooseSession(ShardScenario& scenario, Random& random) {
  server::SessionOptions& options = scenario.options;
  options.name = "shards";
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
  const int alone = scenario.has_leaves() ? 35 : 8;
  const auto shards = static_cast<std::uint32_t>(random.Percent(alone) ? 1 : random.Between(2, 4));
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
}

// Of up to several windows.
void ChooseBroadcasts(ShardScenario& scenario, Random& random) {
  const server::SessionOptions& options = scenario.options;
  scenario.broadcast_step = static_cast<std::int64_t>(random.Below(scenario.steps.size()));
  const std::size_t most = options.chunk_bytes * options.window_chunks * 4;
  scenario.broadcasts.resize(static_cast<std::size_t>(random.Between(1, 3)));
  for (ShardScenario::Broadcast& one : scenario.broadcasts) {
    one.root = random.Between(0, options.world_size - 1);
    if (!random.Percent(10)) one.bytes = 1 + random.Below(std::min<std::size_t>(most, 8192));
  }
}

}  // namespace

ShardScenario MakeShardScenario(std::uint64_t seed) {
  Random random(Mix(seed, 0x736861726473));
  ShardScenario scenario;
  scenario.seed = seed;
  scenario.options.world_size = random.Between(1, 5);
  for (int rank = 0; rank < scenario.options.world_size; ++rank) {
    scenario.groups.push_back({.first = rank});
  }
  ChooseSession(scenario, random);
  if (random.Percent(30)) ChooseFault(scenario, random);
  return scenario;
}

ShardScenario MakeLeafScenario(std::uint64_t seed) {
  Random random(Mix(seed, 0x6C6561766573));
  ShardScenario scenario;
  scenario.seed = seed;
  ChooseGroups(scenario, random);
  ChooseSession(scenario, random);
  scenario.leaf_chunk_bytes = scenario.options.chunk_bytes << random.Below(3);
  if (scenario.groups.front().leaf) scenario.draw_plan_step = -1;  // rank 0 keeps no draws
  if (random.Percent(25)) {
    scenario.barrier_step = static_cast<std::int64_t>(random.Below(scenario.steps.size()));
  }
  if (random.Percent(40)) ChooseLeafFault(scenario, random);
  if (random.Percent(35)) ChooseBroadcasts(scenario, random);
  return scenario;
}

std::string ShardGroup::name() const { return absl::StrCat("node-", first); }

bool ShardScenario::has_leaves() const {
  return std::any_of(groups.begin(), groups.end(), [](const ShardGroup& one) { return one.leaf; });
}

std::size_t ShardScenario::GroupOf(int rank) const {
  const auto found = std::find_if(groups.begin(), groups.end(),
                                  [rank](const ShardGroup& one) { return one.Has(rank); });
  return static_cast<std::size_t>(found - groups.begin());
}

server::SessionOptions ShardScenario::OptionsOf(std::uint32_t shard) const {
  server::SessionOptions own = options;
  own.shard.number = shard;
  if (shards() > 1) own.shard.map = map;
  return own;
}

// As server/services/leaf_join.cc has it: a window holds any bucket, and all are open.
server::SessionOptions ShardScenario::OptionsOfLeaf(std::size_t group) const {
  server::SessionOptions own = options;
  own.generation = options.generation + 1 + group;
  own.leaf = {.first = groups[group].first, .members = groups[group].ranks, .hook = options.spec};
  own.spec = HookSpec();
  own.shard = {};
  own.chunk_bytes = leaf_chunk_bytes;
  own.window_chunks = 1024;
  own.open_buckets = static_cast<std::uint32_t>(std::max<std::size_t>(options.manifest.size(), 1));
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
      scenario.fault_rank, " or shard ", scenario.fault_shard, " or leaf ", scenario.fault_leaf,
      " after ", scenario.fault_after, " events, or before step ", scenario.fault_before,
      ", NaN in step ", scenario.nonfinite.step, ", draw plan before step ",
      scenario.draw_plan_step, ", barrier before step ", scenario.barrier_step);
  for (const ShardScenario::Broadcast& one : scenario.broadcasts) {
    absl::StrAppend(&text, ", ", one.bytes, " bytes from rank ", one.root, " before step ",
                    scenario.broadcast_step);
  }
  absl::StrAppend(&text, ", groups");
  for (const ShardGroup& group : scenario.groups) {
    absl::StrAppend(&text, group.leaf ? " leaf " : " ", group.ranks);
  }
  absl::StrAppend(&text, ", parameters");
  for (const ParameterSpec& spec : options.manifest) absl::StrAppend(&text, " ", spec.numel());
  return text;
}

}  // namespace gradwire::sim
