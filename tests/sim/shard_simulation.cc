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
// A loss is known after the grace, and everybody within this time.
constexpr absl::Duration kToldWithin = absl::Seconds(2);
// Frames of the end of a step are lost so much more often than others.
constexpr int kMoreCuts = 4;

std::uint64_t StartId(int rank) { return static_cast<std::uint64_t>(rank) + 1; }

bool EndsStep(const wire::Frame& frame) {
  return std::holds_alternative<wire::Ready>(frame.header) ||
         std::holds_alternative<wire::Concluded>(frame.header) ||
         std::holds_alternative<wire::Prepared>(frame.header) ||
         std::holds_alternative<wire::StepDone>(frame.header);
}

}  // namespace

std::string Name(ShardCount count) {
  constexpr std::array<const char*, static_cast<std::size_t>(ShardCount::kNumCounts)> kNames = {
      "steps",
      "skips",
      "skips of other shards",
      "low-rank steps",
      "sliced buckets",
      "divided buckets",
      "shards without parameters",
      "sessions of one shard",
      "members alone",
      "draw plans",
      "resumes",
      "resumes ahead",
      "resumes behind",
      "lost READYs",
      "lost conclusions",
      "lost verdicts of shards",
      "lost StepDones",
      "early restarts",
      "early leaves",
      "deaths",
      "lost daemons",
      "evictions",
      "last words",
      "failures"};
  return kNames[static_cast<std::size_t>(count)];
}

ShardSimulation::ShardSimulation(std::uint64_t seed)
    : random_(Mix(seed, 1)),
      scenario_(MakeShardScenario(seed)),
      divide_(scenario_.map, scenario_.options.manifest.list()) {
  const server::SessionOptions& options = scenario_.options;
  const auto members = static_cast<std::size_t>(options.world_size);
  for (std::uint32_t number = 0; number < scenario_.shards(); ++number) {
    Shard& shard = shards_.emplace_back();
    shard.number = number;
    shard.session = std::make_unique<server::SessionCore>(
        scenario_.OptionsOf(number), *MakeCoordinatorHook(options.spec, options.manifest), now_);
    // A factor that exceeds a chunk is gathered whole from every member.
    shard.most_bytes =
        options.PayloadBytes() + shard.session->hook_state().bytes() / 3 * (members + 1);
    if (scenario_.map->ParametersOf(number) == 0) Note(ShardCount::kEmptyShards);
  }
  if (scenario_.shards() == 1) Note(ShardCount::kOneShard);
  if (options.world_size == 1) Note(ShardCount::kAlone);
  for (int rank = 0; rank < options.world_size; ++rank) {
    auto& member = *members_.emplace_back(std::make_unique<Member>(rank, scenario_.shards()));
    for (std::uint32_t shard = 0; shard < scenario_.shards(); ++shard) {
      auto& link = *member.links.emplace_back(std::make_unique<Link>());
      link.owner = &member;
      link.shard = shard;
      link.hook =
          std::make_unique<WatchedHook>(*MakeHook(options.spec, MakeHostDevice()),
                                        [this](const std::string& breach) { Violate(breach); });
      link.core = std::make_unique<client::Member>(
          client::MemberOptions{.rank = rank,
                                .world_size = options.world_size,
                                .generation = options.generation,
                                .chunk_bytes = options.chunk_bytes,
                                .window_chunks = options.window_chunks,
                                .eager_bytes = options.eager_bytes,
                                .draw_plan = true,
                                .shard = shard,
                                .shards = scenario_.map,
                                .large_chunk_bytes = options.chunk_bytes,
                                .manifest = options.manifest.list()},
          link.hook.get());
    }
  }
  reference_ = *testing::HookWorld::Make(options.world_size, options.spec, options.manifest.list());
}

ShardSimulation::~ShardSimulation() = default;

void ShardSimulation::After(absl::Duration delay, std::function<void()> action) {
  events_.Add(now_ + delay, std::move(action));
}

void ShardSimulation::Violate(const std::string& what) {
  if (violation_.empty()) violation_ = what;
}

std::string ShardSimulation::Run() {
  for (auto& member : members_) {
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
                      std::none_of(shards_.begin(), shards_.end(),
                                   [this](const Shard& one) { return running(one); });
    if (!over) continue;
    CheckEnd();
    return violation_;
  }
  for (const Shard& shard : shards_) {
    Violate(absl::StrCat("the session does not end: shard ", shard.number, " ",
                         shard.session->WaitingFor(now_)));
  }
  return violation_;
}

void ShardSimulation::Tick() {
  for (Shard& shard : shards_) {
    server::Effects effects;
    shard.session->Tick(now_, effects);
    Apply(shard, std::move(effects));
  }
  // Heartbeats: nobody is silent here.
  for (auto& member : members_) {
    for (auto& link : member->links) SendUp(*link, {.header = wire::Heartbeat{}});
  }
  CheckTold();
  After(kTick, [this] { Tick(); });
}

// ---- The daemons

void ShardSimulation::Apply(Shard& shard, server::Effects effects) {
  for (server::Effect& effect : effects) {
    std::visit([&](auto& one) { On(shard, one); }, effect);
  }
  if (shard.session->held_bytes() > shard.most_bytes) {
    Violate(absl::StrCat("shard ", shard.number, " holds ", shard.session->held_bytes(),
                         " bytes; it reserved ", shard.most_bytes));
  }
}

void ShardSimulation::On(Shard& shard, server::SendEffect& effect) {
  SendDown(shard, effect.rank, std::move(effect.frame));
}

void ShardSimulation::On(Shard& shard, server::FanOutEffect& effect) {
  for (const int rank : effect.ranks) SendDown(shard, rank, effect.frame);
}

void ShardSimulation::On(Shard& shard, server::ResultEffect& effect) {
  for (const int rank : effect.ranks) {
    SendDown(shard, rank, {.header = effect.header, .payload = effect.result->kept()});
  }
}

void ShardSimulation::On(Shard& shard, server::ReduceEffect& effect) {
  After(Delay(), [this, &shard, effect] {
    const ReducedNow reduced = ReduceNow(effect, random_);
    server::Effects effects;
    shard.session->Reduced(effect.id, effect.chunk, reduced.result, reduced.finite,
                           absl::ZeroDuration(), effects);
    Apply(shard, std::move(effects));
  });
}

void ShardSimulation::On(Shard& shard, server::ComputeEffect& effect) {
  After(Delay(), [this, &shard, effect] {
    effect.work->Run();
    server::Effects effects;
    shard.session->Computed(effect.id, *effect.work, effects);
    Apply(shard, std::move(effects));
  });
}

void ShardSimulation::On(Shard& shard, server::ChoreEffect& effect) {
  After(Delay(), [this, &shard, effect] {
    effect.chore->Run();
    server::Effects effects;
    shard.session->ChoreDone(effects);
    Apply(shard, std::move(effects));
  });
}

void ShardSimulation::SendDown(Shard& shard, int rank, wire::Frame frame) {
  Link& link = *members_[static_cast<std::size_t>(rank)]->links[shard.number];
  if (link.connection == 0) return;
  link.last_down = std::max(link.last_down, now_ + Delay());
  const absl::Duration takes = link.last_down - now_;
  if (EndsStep(frame) && random_.Percent(scenario_.cut_percent * kMoreCuts)) {
    After(random_.Between(absl::ZeroDuration(), takes), [this, &link] { Cut(link); });
  }
  After(takes, [this, &link, frame = std::move(frame), connection = link.connection] {
    if (link.connection != connection) return Lose(frame);
    Deliver(link, frame);
    MaybeCut(link, scenario_.cut_percent);
  });
}

// ---- Streams

void ShardSimulation::Join(Link& link) {
  if (link.owner->over()) return;
  const server::SessionOptions& options = ShardOf(link).session->options();
  const server::JoinAsk ask{.world_size = options.world_size,
                            .rank = link.owner->rank,
                            .start_id = StartId(link.owner->rank),
                            .spec = options.spec,
                            .manifest = options.manifest,
                            .shard = link.shard,
                            .addresses = options.shard.addresses};
  server::Effects effects;
  const auto rank = ShardOf(link).session->Join(ask, options.CheckSame(ask), now_, effects);
  if (!rank.ok() && !fault_) Violate(std::string(rank.status().message()));
  Apply(ShardOf(link), std::move(effects));
  After(Delay(), [this, &link] { Attach(link); });
}

// Frames follow the Hello at once; the daemon sees it later.
void ShardSimulation::Attach(Link& link) {
  if (link.owner->dead || link.cut_off || link.leaving || link.core->failed()) return;
  link.connection = next_connection_++;
  link.last_up = std::max(link.last_up, now_ + Delay());
  After(link.last_up - now_, [this, &link, connection = link.connection, step = link.core->step()] {
    if (link.connection == connection) OnHello(link, step);
  });
  if (!link.welcomed) return;
  Note(ShardCount::kResumes);
  client::Effects again;
  link.core->Resumed(again);
  Apply(link, std::move(again));
}

void ShardSimulation::OnHello(Link& link, std::int64_t step) {
  Shard& shard = ShardOf(link);
  link.attached = true;
  if (running(shard) && link.shard > 0) {
    if (step == shard.session->step() + 1) Note(ShardCount::kResumesAhead);
    if (step == shard.session->step() - 1) Note(ShardCount::kResumesBehind);
  }
  server::Effects effects;
  const absl::Status attached = shard.session->Attach(link.owner->rank, StartId(link.owner->rank),
                                                      step, link.connection, now_, effects);
  Apply(shard, std::move(effects));
  if (attached.ok()) return;
  link.connection = 0;
  link.attached = false;
  if (link.leaving) return;  // its Leave was faster
  if (!fault_) Violate(std::string(attached.message()));
  After(Delay(), [this, &link, attached] {
    if (link.core->failed()) return;
    refused_ = true;
    client::Effects failed;
    link.core->Fail(attached, failed);
    Apply(link, std::move(failed));
  });
}

void ShardSimulation::SendUp(Link& link, wire::Frame frame) {
  if (link.connection == 0 || link.left) return;  // Resumed says it again
  link.last_up = std::max(link.last_up, now_ + Delay());
  const absl::Duration takes = link.last_up - now_;
  if (EndsStep(frame) && random_.Percent(scenario_.cut_percent * kMoreCuts)) {
    After(random_.Between(absl::ZeroDuration(), takes), [this, &link] { Cut(link); });
  }
  After(takes, [this, &link, frame = std::move(frame), connection = link.connection] {
    if (link.connection != connection) return Lose(frame);
    Arrive(link, frame);
  });
}

void ShardSimulation::Arrive(Link& link, const wire::Frame& frame) {
  Shard& shard = ShardOf(link);
  if (std::holds_alternative<wire::Failure>(frame.header)) Note(ShardCount::kLastWords);
  if (const auto* concluded = std::get_if<wire::Concluded>(&frame.header)) {
    shard.concluded = std::max(shard.concluded, concluded->step);
  }
  server::Effects effects;
  shard.session->Receive(link.owner->rank, link.connection, frame, now_, effects);
  Apply(shard, std::move(effects));
}

// The daemon sees the end of the stream behind all that was sent.
void ShardSimulation::Close(Link& link) {
  if (link.connection == 0) return;
  link.last_up = std::max(link.last_up, now_ + Delay());
  After(link.last_up - now_, [this, &link, connection = link.connection] {
    if (link.connection != connection) return;
    ShardOf(link).told |= link.core->failed() && !link.left;
    Cut(link);
  });
}

// A call of its own, which frames of the stream do not hold up.
void ShardSimulation::Leave(Link& link) {
  if (link.owner->over()) return;
  link.leaving = true;
  After(Delay(), [this, &link] {
    if (link.owner->over()) return;
    Shard& shard = ShardOf(link);
    if (running(shard) && shard.session->step() < link.core->step()) Note(ShardCount::kEarlyLeaves);
    server::Effects effects;
    const absl::Status left =
        shard.session->Leave(link.owner->rank, StartId(link.owner->rank), now_, effects);
    Apply(shard, std::move(effects));
    if (!left.ok()) return Violate(std::string(left.message()));
    After(Delay(), [this, &link] {
      link.left = true;
      Close(link);
      Member& member = *link.owner;
      if (member.over()) return;
      if (link.shard + 1 < member.links.size()) return Leave(*member.links[link.shard + 1]);
      member.left = true;
    });
  });
}

// ---- Faults

void ShardSimulation::Lose(const wire::Frame& frame) {
  if (std::holds_alternative<wire::Ready>(frame.header)) Note(ShardCount::kLostReady);
  if (std::holds_alternative<wire::Concluded>(frame.header)) Note(ShardCount::kLostConcluded);
  if (std::holds_alternative<wire::Prepared>(frame.header)) Note(ShardCount::kLostPrepared);
  if (std::holds_alternative<wire::StepDone>(frame.header)) Note(ShardCount::kLostStepDone);
}

void ShardSimulation::MaybeCut(Link& link, int percent) {
  if (random_.Percent(percent)) Cut(link);
}

// A stream that the daemon does not know yet stays: the grace runs from the first break on.
void ShardSimulation::Cut(Link& link) {
  if (!link.attached || link.connection == 0) return;
  const std::uint64_t lost = std::exchange(link.connection, 0);
  link.attached = false;
  server::Effects effects;
  ShardOf(link).session->Detach(link.owner->rank, lost, now_, effects);
  Apply(ShardOf(link), std::move(effects));
  if (link.core->failed() || link.left) return;
  After(random_.Between(absl::ZeroDuration(), scenario_.options.resume_grace / 2),
        [this, &link] { Attach(link); });
}

void ShardSimulation::MaybeFail() {
  bool done = true;
  switch (scenario_.fault) {
    case ShardFault::kNone:
      break;
    case ShardFault::kDeath:
      done = Die();
      break;
    case ShardFault::kCutOff:
      done = CutOff();
      break;
    case ShardFault::kEvicted:
      done = Evict();
      break;
  }
  fault_due_ = !done;
}

// Once a session runs: before, there is nobody to miss it.
bool ShardSimulation::Die() {
  Member& member = *members_[static_cast<std::size_t>(scenario_.fault_rank)];
  if (member.over() || member.links.front()->leaving) return true;
  if (std::none_of(shards_.begin(), shards_.end(),
                   [this](const Shard& one) { return running(one); })) {
    return false;
  }
  Note(ShardCount::kDeaths);
  fault_ = now_;
  member.dead = true;
  for (auto& link : member.links) {
    link->cut_off = true;
    Cut(*link);
    link->connection = 0;
  }
  return true;
}

bool ShardSimulation::CutOff() {
  Member& member = *members_[static_cast<std::size_t>(scenario_.fault_rank)];
  Link& link = *member.links[scenario_.fault_shard];
  if (member.over() || link.leaving) return true;
  if (!running(ShardOf(link)) || !link.attached) return false;
  Note(ShardCount::kCutOffs);
  fault_ = now_;
  link.cut_off = true;
  Cut(link);
  // As Reconnect has it.
  After(scenario_.options.resume_grace, [this, &link] {
    if (link.owner->over() || link.leaving) return;
    client::Effects failed;
    link.core->Fail(absl::UnavailableError("lost the daemon"), failed);
    Apply(link, std::move(failed));
  });
  return true;
}

bool ShardSimulation::Evict() {
  Shard& shard = shards_[scenario_.fault_shard];
  if (shard.session->state() == server::SessionCore::State::kClosed) return true;
  if (!running(shard)) return false;
  Note(ShardCount::kEvictions);
  fault_ = now_;
  server::Effects effects;
  shard.session->Fail(absl::AbortedError("an operator evicted the session"), -1, effects);
  Apply(shard, std::move(effects));
  return true;
}

void ShardSimulation::CheckTold() {
  if (!fault_ || now_ - *fault_ <= scenario_.options.resume_grace + kToldWithin) return;
  for (const auto& member : members_) {
    if (!member->over()) {
      Violate(absl::StrCat("rank ", member->rank, " was not told of the failure in time"));
    }
  }
  for (const Shard& shard : shards_) {
    if (running(shard)) {
      Violate(absl::StrCat("shard ", shard.number, " was not told of the failure in time"));
    }
  }
}

}  // namespace gradwire::sim
