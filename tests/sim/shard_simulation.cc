#include "tests/sim/shard_simulation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "hooks/cpu/host_device.h"
#include "hooks/device_hooks.h"
#include "tests/sim/reduce_now.h"

namespace gradwire::sim {
namespace {

constexpr std::size_t kMostEvents = 200'000;
constexpr absl::Duration kTick = absl::Milliseconds(100);
// Frames of the end of a step are lost so much more often than others.
constexpr int kMoreCuts = 4;

bool EndsStep(const wire::Frame& frame) {
  return std::holds_alternative<wire::Ready>(frame.header) ||
         std::holds_alternative<wire::Concluded>(frame.header) ||
         std::holds_alternative<wire::Prepared>(frame.header) ||
         std::holds_alternative<wire::StepDone>(frame.header);
}

// Behind a leaf members send whole buckets to one daemon.
client::ShardBuckets Undivided(const server::Manifest& manifest) {
  return {std::make_shared<const ShardMap>(*ShardMap::Make(HookSpec(), manifest.list(), 1)),
          manifest.list()};
}

}  // namespace

ShardSimulation::ShardSimulation(ShardScenario scenario)
    : random_(Mix(scenario.seed, 1)),
      scenario_(std::move(scenario)),
      divide_(scenario_.map, scenario_.options.manifest.list()),
      undivided_(Undivided(scenario_.options.manifest)) {
  at_broadcasts_.resize(scenario_.broadcasts.size());
  MakeDaemons();
  MakeMembers();
  reference_ = *testing::HookWorld::Make(static_cast<int>(scenario_.groups.size()),
                                         scenario_.options.spec, scenario_.options.manifest.list());
}

ShardSimulation::~ShardSimulation() = default;

void ShardSimulation::MakeDaemons() {
  const auto add = [this](const server::SessionOptions& options) -> Daemon& {
    Daemon& daemon = *daemons_.emplace_back(std::make_unique<Daemon>());
    daemon.shard = options.shard.number;
    daemon.session = std::make_unique<server::SessionCore>(
        options, *MakeCoordinatorHook(options.spec, options.manifest), now_);
    daemon.links.resize(static_cast<std::size_t>(options.world_size));
    // A factor that exceeds a chunk is gathered whole from every member.
    daemon.most_bytes = options.PayloadBytes() +
                        daemon.session->hook_state().bytes() / 3 * (scenario_.groups.size() + 1);
    return daemon;
  };
  for (std::uint32_t number = 0; number < scenario_.shards(); ++number) {
    add(scenario_.OptionsOf(number));
    if (scenario_.map->ParametersOf(number) == 0) Note(ShardCount::kEmptyShards);
  }
  for (std::size_t g = 0; g < scenario_.groups.size(); ++g) {
    auto& leaf = leaves_.emplace_back();
    if (!scenario_.groups[g].leaf) continue;
    Note(ShardCount::kLeaves);
    leaf = std::make_unique<Leaf>();
    leaf->place = scenario_.groups[g];
    leaf->daemon = &add(scenario_.OptionsOfLeaf(g));
    leaf->daemon->leaf = leaf.get();
  }
  if (scenario_.shards() == 1) Note(ShardCount::kOneShard);
  if (scenario_.options.world_size == 1) Note(ShardCount::kAlone);
}

void ShardSimulation::MakeMembers() {
  for (int rank = 0; rank < scenario_.options.world_size; ++rank) {
    AddMember(rank, nullptr, leaves_[scenario_.GroupOf(rank)].get());
  }
  for (auto& leaf : leaves_) {
    if (leaf != nullptr) leaf->client = &AddMember(leaf->place.first, leaf.get(), nullptr);
  }
}

ShardSimulation::Member& ShardSimulation::AddMember(int rank, Leaf* client_of, Leaf* behind) {
  const std::uint32_t shards = behind != nullptr ? 1 : scenario_.shards();
  Member& member =
      *members_.emplace_back(std::make_unique<Member>(rank, scenario_.GroupOf(rank), shards));
  member.client_of = client_of;
  member.behind = behind;
  for (std::uint32_t shard = 0; shard < shards; ++shard) {
    AddLink(member, behind != nullptr ? *behind->daemon : *daemons_[shard]);
  }
  return member;
}

void ShardSimulation::AddLink(Member& member, Daemon& daemon) {
  Link& link = *member.links.emplace_back(std::make_unique<Link>());
  link.owner = &member;
  link.daemon = &daemon;
  daemon.links[static_cast<std::size_t>(member.rank)] = &link;
  const server::SessionOptions& options = daemon.session->options();
  link.hook = std::make_unique<WatchedHook>(*MakeHook(options.spec, MakeHostDevice()),
                                            [this](const std::string& breach) { Violate(breach); });
  link.core = std::make_unique<client::GroupedMember>(
      client::MemberOptions{
          .rank = member.rank,
          .ranks = member.client_of == nullptr ? 1 : member.client_of->place.ranks,
          .world_size = options.world_size,
          .generation = options.generation,
          .chunk_bytes = options.chunk_bytes,
          .window_chunks = options.window_chunks,
          .eager_bytes = options.eager_bytes,
          .draw_plan = member.behind == nullptr,
          .shard = daemon.shard,
          .shards = member.behind == nullptr ? scenario_.map : nullptr,
          .large_chunk_bytes = options.chunk_bytes,
          .manifest = options.manifest.list()},
      link.hook.get(), /*whole_buckets=*/false);
  if (member.behind == nullptr) return;
  const ShardGroup& place = member.behind->place;
  link.core->SetNode(member.rank - place.first, place.ranks);
}

void ShardSimulation::After(absl::Duration delay, std::function<void()> action) {
  events_.Add(now_ + delay, std::move(action));
}

void ShardSimulation::Violate(const std::string& what) {
  if (violation_.empty()) violation_ = what;
}

std::string ShardSimulation::Run() {
  for (auto& member : members_) {
    if (member->client_of != nullptr) continue;
    for (auto& link : member->links) {
      After(Delay(), [this, &one = *link] { Join(one); });
    }
  }
  After(kTick, [this] { Tick(); });
  std::size_t ran = 0;
  while (violation_.empty() && ran < kMostEvents) {
    events_.RunNext(now_);
    if (++ran == scenario_.fault_after) fault_due_ = true;
    if (fault_due_) MaybeFail();
    const bool over = std::all_of(members_.begin(), members_.end(),
                                  [](const auto& one) { return one->over(); }) &&
                      std::none_of(daemons_.begin(), daemons_.end(),
                                   [](const auto& one) { return one->running(); });
    if (!over) continue;
    CheckEnd();
    return violation_;
  }
  for (const auto& daemon : daemons_) {
    Violate(absl::StrCat("the session does not end: shard ", daemon->shard,
                         daemon->leaf != nullptr ? " (a leaf) " : " ",
                         daemon->session->WaitingFor(now_)));
  }
  return violation_;
}

void ShardSimulation::Tick() {
  for (auto& daemon : daemons_) {
    if (daemon->dead) continue;
    server::Effects effects;
    daemon->session->Tick(now_, effects);
    Apply(*daemon, std::move(effects));
  }
  // Heartbeats: nobody is silent here.
  for (auto& member : members_) {
    for (auto& link : member->links) SendUp(*link, {.header = wire::Heartbeat{}});
  }
  CheckTold();
  After(kTick, [this] { Tick(); });
}

// ---- The daemons

void ShardSimulation::Apply(Daemon& daemon, server::Effects effects) {
  if (daemon.dead) return;
  for (server::Effect& effect : effects) {
    std::visit([&](auto& one) { On(daemon, one); }, effect);
  }
  if (daemon.session->held_bytes() > daemon.most_bytes) {
    Violate(absl::StrCat("shard ", daemon.shard, " holds ", daemon.session->held_bytes(),
                         " bytes; it reserved ", daemon.most_bytes));
  }
  if (daemon.leaf != nullptr) EndLeaf(*daemon.leaf);
}

void ShardSimulation::On(Daemon& daemon, server::SendEffect& effect) {
  SendDown(daemon, effect.rank, std::move(effect.frame));
}

void ShardSimulation::On(Daemon& daemon, server::FanOutEffect& effect) {
  for (const int rank : effect.ranks) SendDown(daemon, rank, effect.frame);
}

void ShardSimulation::On(Daemon& daemon, server::ResultEffect& effect) {
  for (const int rank : effect.ranks) {
    SendDown(daemon, rank, {.header = effect.header, .payload = effect.result->kept()});
  }
}

void ShardSimulation::On(Daemon& daemon, server::ReduceEffect& effect) {
  if (daemon.leaf != nullptr) return ReduceAtLeaf(*daemon.leaf, effect);
  After(Delay(), [this, &daemon, effect] {
    const ReducedNow reduced = ReduceNow(effect, random_);
    server::Effects effects;
    daemon.session->Reduced(effect.id, effect.chunk, reduced.result, {.finite = reduced.finite},
                            absl::ZeroDuration(), effects);
    Apply(daemon, std::move(effects));
  });
}

void ShardSimulation::On(Daemon& daemon, server::ComputeEffect& effect) {
  After(Delay(), [this, &daemon, effect] {
    effect.work->Run();
    server::Effects effects;
    daemon.session->Computed(effect.id, *effect.work, effects);
    Apply(daemon, std::move(effects));
  });
}

void ShardSimulation::On(Daemon& daemon, server::ChoreEffect& effect) {
  After(Delay(), [this, &daemon, effect] {
    effect.chore->Run();
    server::Effects effects;
    daemon.session->ChoreDone(effects);
    Apply(daemon, std::move(effects));
  });
}

void ShardSimulation::SendDown(Daemon& daemon, int rank, wire::Frame frame) {
  Link* const to = daemon.links[static_cast<std::size_t>(rank)];
  if (to == nullptr) return Violate(absl::StrCat("a frame goes to rank ", rank, ", not here"));
  Link& link = *to;
  // A stream whose Hello is on its way is none of the daemon's.
  if (!link.attached) return;
  link.last_down = std::max(link.last_down, now_ + Delay());
  const absl::Duration takes = link.last_down - now_;
  const bool begins = scenario_.has_leaves() && std::holds_alternative<wire::Welcome>(frame.header);
  if (begins || EndsStep(frame)) CutWithin(link, takes);
  After(takes, [this, &link, frame = std::move(frame), connection = link.connection] {
    if (link.connection != connection) return Lose(link, frame);
    Deliver(link, frame);
    MaybeCut(link, scenario_.cut_percent);
  });
}

// ---- Frames from members

void ShardSimulation::SendUp(Link& link, wire::Frame frame) {
  if (link.connection == 0 || link.left) return LoseWords(link, frame);  // Resumed says the rest
  link.last_up = std::max(link.last_up, now_ + Delay());
  const absl::Duration takes = link.last_up - now_;
  const bool ends = scenario_.has_leaves() && std::holds_alternative<wire::Failure>(frame.header);
  if (ends || EndsStep(frame)) CutWithin(link, takes);
  After(takes, [this, &link, frame = std::move(frame), connection = link.connection] {
    if (link.connection != connection) return Lose(link, frame);
    Arrive(link, frame);
  });
}

void ShardSimulation::CutWithin(Link& link, absl::Duration time) {
  if (!random_.Percent(scenario_.cut_percent * kMoreCuts)) return;
  After(random_.Between(absl::ZeroDuration(), time), [this, &link] { Cut(link); });
}

void ShardSimulation::Arrive(Link& link, const wire::Frame& frame) {
  Daemon& daemon = *link.daemon;
  if (daemon.dead) return;
  if (std::holds_alternative<wire::Failure>(frame.header)) {
    Note(ShardCount::kLastWords);
    heard_words_ |= IsFaulty(link.owner->client_of);
  }
  if (const auto* concluded = std::get_if<wire::Concluded>(&frame.header)) {
    daemon.concluded = std::max(daemon.concluded, concluded->step);
  }
  server::Effects effects;
  daemon.session->Receive(link.owner->rank, link.connection, frame, now_, effects);
  Apply(daemon, std::move(effects));
}

}  // namespace gradwire::sim
