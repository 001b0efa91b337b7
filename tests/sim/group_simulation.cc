#include "tests/sim/group_simulation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "hooks/cpu/host_device.h"
#include "hooks/device_hooks.h"
#include "tests/sim/reduce_now.h"

namespace gradwire::sim {
namespace {

constexpr std::size_t kMostEvents = 200'000;
constexpr absl::Duration kTick = absl::Milliseconds(100);
// A death is known after the grace, and everybody within this time.
constexpr absl::Duration kToldWithin = absl::Seconds(2);

}  // namespace

std::string Name(GroupCount count) {
  constexpr std::array<const char*, static_cast<std::size_t>(GroupCount::kNumCounts)> kNames = {
      "steps",
      "skips",
      "exchanges",
      "gathers",
      "resumes",
      "deaths",
      "deaths in an operation",
      "failures",
      "low-rank steps",
      "members alone",
      "daemons lost",
      "daemons lost in an operation",
      "daemons lost while gathering",
      "steps dropped",
      "steps dropped under a user",
      "steps ended by reports",
      "states taken back",
      "members replaced",
      "members healed",
      "members gone",
      "steps of fewer",
      "shares moved",
      "members left behind"};
  return kNames[static_cast<std::size_t>(count)];
}

GroupSimulation::GroupSimulation(std::uint64_t seed, bool recovers)
    : random_(Mix(seed, 1)), scenario_(MakeGroupScenario(seed, recovers)) {
  BeginLife(scenario_.options);
  for (int rank = 0; rank < scenario_.options.world_size; ++rank) {
    auto member = std::make_unique<Member>();
    member->rank = rank;
    member->start_id = next_start_id_++;
    member->group = scenario_.groups[static_cast<std::size_t>(rank)];
    members_.push_back(std::move(member));
  }
  names_[life_] = scenario_.groups;
  groups_ = GroupsOf({}, life_);
  reference_ = *testing::HookWorld::Make(static_cast<int>(groups_.size()), scenario_.options.spec,
                                         scenario_.options.manifest.list());
}

GroupSimulation::~GroupSimulation() = default;

void GroupSimulation::After(absl::Duration delay, std::function<void()> action) {
  events_.Add(now_ + delay, std::move(action));
}

void GroupSimulation::Violate(const std::string& what) {
  if (violation_.empty()) violation_ = what;
}

std::string GroupSimulation::Run() {
  for (auto& member : members_) {
    After(Delay(), [this, &one = *member] { Join(one); });
  }
  After(kTick, [this] { Tick(); });
  std::size_t ran = 0;
  while (violation_.empty() && !events_.empty() && ran < kMostEvents) {
    events_.RunNext(now_);
    if (++ran == scenario_.dies_after) MaybeDie();
    MaybeBreak(ran);
    if (IsOver()) return Conclude();
  }
  if (violation_.empty()) {
    Violate(absl::StrCat("the session does not end: ", session_->WaitingFor(now_)));
  }
  return violation_;
}

std::string GroupSimulation::Conclude() {
  if (!death_) {
    for (const auto& member : members_) {
      if (member->failed) Violate(absl::StrCat("the session failed: ", failure_));
    }
  }
  return violation_;
}

void GroupSimulation::Tick() {
  server::Effects effects;
  session_->Tick(now_, effects);
  Apply(std::move(effects));
  // Heartbeats: nobody is silent here.
  for (auto& member : members_) {
    if (member->connection != 0 && !member->dead) SendUp(*member, {.header = wire::Heartbeat{}});
  }
  const bool told = std::all_of(members_.begin(), members_.end(), [](const auto& one) {
    return one->dead || one->failed || one->done;
  });
  const absl::Duration grace = scenario_.options.resume_grace + kToldWithin;
  const bool running = session_->state() == server::SessionCore::State::kRunning;
  if (death_ && running && !told && now_ - *death_ > grace) {
    return Violate("a member died, and the others were not told");
  }
  After(kTick, [this] { Tick(); });
}

// ---- The daemon

void GroupSimulation::Apply(server::Effects effects) {
  if (session_->state() == server::SessionCore::State::kRunning && !names_.contains(life_)) {
    for (const auto& one : members_) names_[life_].push_back(one->group);
  }
  for (server::Effect& effect : effects) {
    std::visit([this](auto& one) { On(one); }, effect);
  }
  if (!session_->awaits_successor()) return;
  server::SessionOptions options = session_->options();
  options.node_groups = session_->node_groups();
  BeginLife(std::move(options));
}

void GroupSimulation::On(server::SendEffect& effect) { SendDown(effect.rank, effect.frame); }

void GroupSimulation::On(server::FanOutEffect& effect) {
  for (const int rank : effect.ranks) SendDown(rank, effect.frame);
}

void GroupSimulation::On(server::ResultEffect& effect) {
  for (const int rank : effect.ranks) {
    SendDown(rank, {.header = effect.header, .payload = effect.result->kept()});
  }
}

void GroupSimulation::On(server::ReduceEffect& effect) {
  After(Delay(), [this, effect, life = life_] {
    if (life != life_) return;
    const ReducedNow reduced = ReduceNow(effect, random_);
    server::Effects effects;
    session_->Reduced(effect.id, effect.chunk, reduced.result, {.finite = reduced.finite},
                      absl::ZeroDuration(), effects);
    Apply(std::move(effects));
  });
}

void GroupSimulation::On(server::ComputeEffect& effect) {
  After(Delay(), [this, effect, life = life_] {
    if (life != life_) return;
    effect.work->Run();
    server::Effects effects;
    session_->Computed(effect.id, *effect.work, effects);
    Apply(std::move(effects));
  });
}

void GroupSimulation::On(server::ChoreEffect& effect) {
  After(Delay(), [this, effect, life = life_] {
    if (life != life_) return;
    effect.chore->Run();
    server::Effects effects;
    session_->ChoreDone(effects);
    Apply(std::move(effects));
  });
}

void GroupSimulation::SendDown(int rank, wire::Frame frame) {
  Member& member = *members_[static_cast<std::size_t>(rank)];
  if (member.connection == 0) return;
  const absl::Time arrives = std::max(member.last_down, now_ + Delay());
  member.last_down = arrives;
  After(arrives - now_, [this, &member, frame = std::move(frame), connection = member.connection] {
    if (member.dead || member.connection != connection) return;
    // As the client does where chunks wait on the way.
    if (random_.Percent(10)) {
      member.member->SetWindow(static_cast<std::uint32_t>(
          random_.Between(1, static_cast<int>(scenario_.options.window_chunks))));
    }
    client::Effects effects;
    member.member->Receive(frame, effects);
    const auto* const welcome = std::get_if<wire::Welcome>(&frame.header);
    const bool shrinks = welcome != nullptr && welcome->recovery && welcome->recovery->roster;
    const std::vector<int> all;
    if (welcome != nullptr) {
      member.groups = GroupsOf(shrinks ? welcome->recovery->roster->ranks : all, member.life);
    }
    Apply(member, std::move(effects));
    MaybeCut(member);
  });
}

// ---- The members' streams

void GroupSimulation::Attach(Member& member) {
  if (member.dead) return;
  if (member.life != life_) return Lose(member, member.life);
  const bool resumes = member.member != nullptr && !std::exchange(member.rejoins, false);
  if (member.member == nullptr) {
    const server::SessionOptions& options = scenario_.options;
    member.hook = *MakeHook(options.spec, MakeHostDevice());
    member.member = std::make_unique<client::GroupedMember>(
        client::MemberOptions{.rank = member.rank,
                              .world_size = options.world_size,
                              .generation = options.generation + life_,
                              .chunk_bytes = options.chunk_bytes,
                              .window_chunks = options.window_chunks,
                              .eager_bytes = options.eager_bytes,
                              .draw_plan = true,
                              .large_chunk_bytes = options.chunk_bytes,
                              .manifest = options.manifest.list()},
        member.hook.get(), options.spec.comm_hook == "batched_power_sgd");
  }
  if (member.member->failed()) return;
  member.connection = next_connection_++;
  server::Effects effects;
  const absl::Status attached = session_->Attach(
      member.rank, member.start_id, member.member->step(), member.connection, now_, effects);
  Apply(std::move(effects));
  if (!attached.ok()) {
    // The others have gone on without it since it joined.
    if (scenario_.options.shrinks()) return Lose(member, member.life);
    if (!death_) Violate(std::string(attached.message()));
    client::Effects failed;
    member.member->Fail(attached, failed);
    return Apply(member, std::move(failed));
  }
  if (!resumes) return;
  Note(GroupCount::kResumes);
  client::Effects again;
  if (member.welcomed) member.member->Resumed(again);
  Apply(member, std::move(again));
}

void GroupSimulation::SendUp(Member& member, wire::Frame frame) {
  if (member.connection == 0) return;  // Resumed says it again
  const absl::Time arrives = std::max(member.last_up, now_ + Delay());
  member.last_up = arrives;
  After(arrives - now_,
        [this, &member, frame = std::move(frame), connection = member.connection, life = life_] {
          if (member.connection != connection || life != life_) return;
          server::Effects effects;
          session_->Receive(member.rank, connection, frame, now_, effects);
          Apply(std::move(effects));
        });
}

void GroupSimulation::MaybeCut(Member& member) {
  // A stream to a daemon that is lost does not break once more.
  if (member.failed || member.done || member.life != life_ ||
      !random_.Percent(scenario_.cut_percent))
    return;
  const std::uint64_t lost = std::exchange(member.connection, 0);
  if (lost == 0) return;
  server::Effects effects;
  session_->Detach(member.rank, lost, now_, effects);
  Apply(std::move(effects));
  After(random_.Between(absl::ZeroDuration(), scenario_.options.resume_grace / 2),
        [this, &member, life = member.life] {
          if (member.life == life && member.connection == 0) Attach(member);
        });
}

void GroupSimulation::MaybeDie() {
  if (scenario_.dying_rank < 0) return;
  Member& member = *members_[static_cast<std::size_t>(scenario_.dying_rank)];
  if (member.done || member.failed) return;
  Note(GroupCount::kDeaths);
  if (member.in_operation) Note(GroupCount::kDeathsInAnOperation);
  member.dead = true;
  death_ = now_;
  server::Effects effects;
  const std::uint64_t lost = std::exchange(member.connection, 0);
  if (lost != 0) session_->Detach(member.rank, lost, now_, effects);
  Apply(std::move(effects));
}

}  // namespace gradwire::sim
