#include "tests/sim/shard_recovery_simulation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "hooks/coordinator_hook.h"
#include "hooks/cpu/host_device.h"
#include "hooks/device_hooks.h"
#include "tests/sim/power_sgd_forms.h"
#include "tests/sim/random_buckets.h"

namespace gradwire::sim {
namespace {

constexpr int kMostActions = 100'000;
// Of a thousand actions, soon after a loss.
constexpr int kBurstPercent = 60;
// Lossless: the simulation has no time in which a member could be declared lost.
constexpr absl::Duration kLong = absl::Hours(1000);

}  // namespace

ShardRecoverySimulation::ShardRecoverySimulation(std::uint64_t seed)
    : seed_(seed), random_(Mix(seed, 0x6C6F7373)) {
  MakeScenario();
  MakeSteps();
  MakeSessions();
}

ShardRecoverySimulation::~ShardRecoverySimulation() = default;

void ShardRecoverySimulation::MakeScenario() {
  const bool low_rank = random_.Percent(40);
  if (low_rank)
    options_.spec = *HookSpec::Parse(kPowerSgdForms[random_.Below(kPowerSgdForms.size())]);
  MakeModel(low_rank);
  options_.name = "s";
  options_.world_size = random_.Between(2, 3);
  options_.manifest = server::Manifest(manifest_);
  options_.window_chunks = static_cast<std::uint32_t>(random_.Between(1, 3));
  options_.open_buckets = static_cast<std::uint32_t>(random_.Between(1, 2));
  options_.eager_bytes = random_.Percent(50) ? 128 : 0;
  options_.coordinator_grace = absl::Minutes(1);
  options_.join_timeout = options_.step_timeout = options_.silence_timeout = kLong;
  options_.resume_grace = options_.token_timeout = kLong;
  const auto shards = static_cast<std::uint32_t>(random_.Between(2, 3));
  if (shards == 3) Note(ShardRecoveryCount::kThreeShards);
  map_ = std::make_shared<const ShardMap>(*ShardMap::Make(options_.spec, manifest_, shards));
  for (std::uint32_t s = 0; s < shards; ++s) {
    options_.shard.addresses.push_back(absl::StrCat("daemon-", s, ":29610"));
  }
  options_.shard.map = map_;
  divide_ = std::make_unique<client::ShardBuckets>(map_, manifest_);
  keep_percent_ = random_.Percent(50) ? 0 : random_.Percent(70) ? 100 : 60;
  stall_percent_ = random_.Percent(60) ? 0 : random_.Between(2, 40);
  restart_percent_ = random_.Percent(50) ? 100 : 10;
  join_percent_ = random_.Percent(40) ? 100 : random_.Between(2, 15);
  late_percent_ = random_.Between(2, 20);
  push_percent_ = random_.Percent(50) ? 100 : random_.Between(2, 10);
  device_percent_ = random_.Percent(50) ? 0 : 50;
  faults_left_ = random_.Between(1, 6);
  fault_percent_ = random_.Between(3, 20);
  options_.ledger = random_.Percent(50);
}

// With slices a bucket has some at each shard only if it is large.
void ShardRecoverySimulation::MakeModel(bool low_rank) {
  const bool large = !low_rank && random_.Percent(15);
  const int parameters = random_.Between(1, large ? 2 : 4);
  for (int p = 0; p < parameters; ++p) {
    std::vector<std::int64_t> shape = {random_.Between(random_.Percent(10) ? 0 : 1, 40)};
    if (large && (p == 0 || random_.Percent(50))) shape = {random_.Between(2000, 4500)};
    if (low_rank && random_.Percent(70)) shape = {random_.Between(4, 8), random_.Between(4, 8)};
    manifest_.push_back(
        {.name = absl::StrCat("p", p), .shape = std::move(shape), .dtype = DType::kFloat32});
  }
  options_.chunk_bytes = large ? 2048 : 64;
}

void ShardRecoverySimulation::MakeSteps() {
  const int steps = random_.Between(3, 6);
  for (int s = 0; s < steps; ++s) {
    Step& step = steps_.emplace_back();
    step.buckets = RandomBuckets(manifest_.size(), random_);
    if (random_.Percent(15)) {
      step.nonfinite_rank = random_.Between(0, options_.world_size - 1);
      step.nonfinite_parameter = static_cast<std::uint32_t>(random_.Below(manifest_.size()));
      if (manifest_[step.nonfinite_parameter].numel() == 0) step.nonfinite_rank = -1;
    }
    while (random_.Percent(20)) {
      step.collectives.push_back(random_.Percent(50) ? wire::CollectiveKind::kBarrier
                                                     : wire::CollectiveKind::kBroadcast);
    }
  }
  if (map_->has_slices()) return;
  reference_ = *testing::HookWorld::Make(options_.world_size, options_.spec, manifest_);
  if (random_.Percent(50)) draw_plan_ = RandomBuckets(manifest_.size(), random_);
}

void ShardRecoverySimulation::MakeSessions() {
  daemons_.resize(map_->shards());
  for (int rank = 0; rank < options_.world_size; ++rank) {
    Member& member = *members_.emplace_back(std::make_unique<Member>(map_->shards()));
    member.rank = rank;
    member.keeps_gradients = random_.Percent(keep_percent_);
    member.in_place = map_->has_slices() && random_.Percent(30);
    for (std::uint32_t shard = 0; shard < map_->shards(); ++shard) AddPlace(member, shard);
  }
}

void ShardRecoverySimulation::AddPlace(Member& member, std::uint32_t shard) {
  Place& place = member.places[shard];
  place.owner = &member;
  place.shard = shard;
  place.hook = *MakeHook(options_.spec, MakeHostDevice());
  if (options_.LedgerRows() > 0) {
    auto hook = std::make_unique<LedgerHook>(std::move(place.hook), manifest_);
    place.ledger = hook.get();
    place.hook = std::move(hook);
  }
  const server::JoinAsk ask = AskOf(place);
  Life& life = daemons_[shard].lives.empty() ? NewLife(shard, ask) : *LifeOf(shard);
  server::Effects effects;
  const auto rank = life.session->Join(ask, life.session->options().CheckSame(ask), now_, effects);
  if (!rank.ok()) Violate(absl::StrCat("first Join: ", rank.status().message()));
  Apply(life, std::move(effects));
  place.life = &life;
  place.core = std::make_unique<client::Member>(
      client::MemberOptions{.rank = member.rank,
                            .world_size = options_.world_size,
                            .generation = life.number,
                            .chunk_bytes = options_.chunk_bytes,
                            .window_chunks = options_.window_chunks,
                            .eager_bytes = options_.eager_bytes,
                            .draw_plan = true,
                            .shard = shard,
                            .shards = map_,
                            .large_chunk_bytes = options_.chunk_bytes,
                            .manifest = manifest_,
                            .keep_gradients = member.keeps_gradients,
                            .device = MakeHostDevice(),
                            .ledger = place.ledger},
      place.hook.get());
}

void ShardRecoverySimulation::Violate(const std::string& what) {
  if (violation_.empty()) violation_ = what;
}

bool ShardRecoverySimulation::AllFinished() const {
  return std::ranges::all_of(members_,
                             [this](const auto& one) { return one->step == steps_.size(); });
}

// Who is through with its steps may still know how one ended that others do not.
void ShardRecoverySimulation::PossibleOf(Place& place, Actions& actions) {
  if (!place.pushes.empty()) {
    if (!random_.Percent(push_percent_)) return;
    actions.push_back([&place] {
      auto& [to, call] = place.pushes.front();
      to->calls.push_back(std::move(call));
      place.pushes.pop_front();
    });
    return;
  }
  if (!place.calls.empty()) {
    actions.push_back([&place] {
      const auto call = std::move(place.calls.front());
      place.calls.pop_front();
      call();
    });
  }
  if (place.link == nullptr) {
    if (!place.is_lost && !daemons_[place.shard].down)
      actions.push_back([this, &place] { Connect(place); });
  } else if (!place.link->down.empty() || place.link->closed) {
    actions.push_back([this, &place] { TakeDown(*place.link); });
  }
  if (place.core->has_chunks()) {
    actions.push_back([this, &place] {
      client::Effects effects;
      place.core->SendNext(effects);
      ApplyMember(place, std::move(effects));
    });
  }
}

void ShardRecoverySimulation::Possible(Actions& actions) {
  for (auto& member : members_) {
    for (Place& place : member->places) PossibleOf(place, actions);
    Member& one = *member;
    if (CanAct(one)) actions.push_back([this, &one] { Act(one); });
  }
  std::erase_if(links_, [](const auto& link) {
    return link->place == nullptr && (link->life->over || link->up.empty());
  });
  for (auto& link : links_) {
    Link& one = *link;
    if (!one.up.empty() && !one.life->over) actions.push_back([this, &one] { TakeUp(one); });
  }
  for (auto& pending : calls_) {
    Call& call = *pending;
    const bool waits = call.answer == nullptr && !daemons_[call.place->shard].answers();
    if (!call.abandoned && waits) continue;
    if (!random_.Percent(call.abandoned ? late_percent_ : join_percent_)) continue;
    actions.push_back([this, &call] {
      if (!Take(call)) std::erase_if(calls_, [&](const auto& one) { return one.get() == &call; });
    });
  }
  for (Daemon& daemon : daemons_) {
    if (daemon.draining) {
      actions.push_back([this, &daemon] { EndDaemon(daemon, /*loses_frames=*/false); });
    }
    if (daemon.down && random_.Percent(restart_percent_)) {
      actions.push_back([&daemon] { daemon.down = false; });
    }
    for (auto& life : daemon.lives) {
      Life& one = *life;
      if (one.over || one.answers.empty()) continue;
      actions.push_back([this, &one] {
        const auto answer = std::move(one.answers.front());
        one.answers.pop_front();
        server::Effects effects;
        answer(*one.session, effects);
        Apply(one, std::move(effects));
      });
    }
  }
}

void ShardRecoverySimulation::MaybeFault() {
  const int percent = burst_ > 0 ? std::max(kBurstPercent, fault_percent_) : fault_percent_;
  if (burst_ > 0) --burst_;
  if (!welcomed_ || faults_left_ == 0 || random_.Below(1000) >= static_cast<std::size_t>(percent)) {
    return;
  }
  --faults_left_;
  if (random_.Percent(30)) return CutSomebody();
  Kill();
}

void ShardRecoverySimulation::CutSomebody() {
  Member& member = *members_[random_.Below(members_.size())];
  const bool all = random_.Percent(30);
  const std::size_t one = random_.Below(member.places.size());
  for (std::size_t i = 0; i < member.places.size(); ++i) {
    if ((all || i == one) && member.places[i].link != nullptr) Cut(member.places[i]);
  }
}

void ShardRecoverySimulation::Kill() {
  const std::uint32_t shards = map_->shards();
  const bool soon = burst_ > 0;
  bool any = false;
  if (random_.Percent(20)) {
    any = HandOver(static_cast<std::uint32_t>(random_.Below(shards)));
  } else {
    // A life that shard 0 has begun, and not all the others, ends with shard 0.
    const bool leads = soon && random_.Percent(40);
    const auto first = leads ? 0U : static_cast<std::uint32_t>(random_.Below(shards));
    any = KillDaemon(first);
    const int others = random_.Percent(70) ? 0 : random_.Percent(50) ? 50 : 100;
    for (std::uint32_t s = 0; s < shards; ++s) {
      if (s == first || !random_.Percent(others) || !KillDaemon(s)) continue;
      if (any) Note(ShardRecoveryCount::kKilledTogether);
      any = true;
    }
  }
  if (!any) return;
  if (soon) Note(ShardRecoveryCount::kSoonAfterAnother);
  if (random_.Percent(50)) burst_ = random_.Between(10, 250);
}

std::string ShardRecoverySimulation::Where() const {
  std::string where;
  for (std::uint32_t shard = 0; shard < map_->shards(); ++shard) {
    const Life* const life = LifeOf(shard);
    absl::StrAppend(&where, where.empty() ? "" : "; ", "shard ", shard, ": ",
                    life == nullptr ? "no session"
                                    : absl::StrCat("session ", life->number, ", life ",
                                                   life->session->options().life, ", step ",
                                                   life->session->step(), ", ",
                                                   life->session->WaitingFor(now_)));
  }
  for (const auto& member : members_) {
    absl::StrAppend(&where, "; rank ", member->rank, " in step ", member->step, ", bucket ",
                    member->next_bucket, " of ", member->order.size(),
                    member->entered > 0 ? ", in a collective" : "", member->ended ? ", ended" : "");
    for (const Place& place : member->places) {
      absl::StrAppend(&where, ", shard ", place.shard, ": step ", place.core->step(),
                      place.is_lost ? " lost" : "", place.core->awaits_welcome() ? " awaits" : "",
                      place.link == nullptr ? " no stream" : "", " session ", place.life->number);
    }
  }
  return where;
}

// Something is possible that was not drawn.
bool ShardRecoverySimulation::IsSlow() const {
  const auto stalls = [](const Place& place) { return !place.pushes.empty(); };
  return !calls_.empty() || std::ranges::any_of(daemons_, &Daemon::down) ||
         std::ranges::any_of(members_, [&](const auto& member) {
           return std::ranges::any_of(member->places, stalls);
         });
}

std::string ShardRecoverySimulation::Run() {
  Note(ShardRecoveryCount::kRuns);
  int taken = 0;
  Actions actions;
  while (violation_.empty() && !AllFinished()) {
    if (++taken > kMostActions) {
      Violate(absl::StrCat("no end: ", Where()));
      break;
    }
    now_ += absl::Milliseconds(1);
    actions.clear();
    Possible(actions);
    if (actions.empty() && !IsSlow()) {
      Violate(absl::StrCat("stuck: ", Where()));
      break;
    }
    if (actions.empty()) continue;
    actions[random_.Below(actions.size())]();
    MaybeFault();
  }
  if (violation_.empty()) CheckLedger();
  if (violation_.empty()) CheckChains();
  return violation_.empty() ? "" : absl::StrCat("seed ", seed_, ": ", violation_);
}

}  // namespace gradwire::sim
