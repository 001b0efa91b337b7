// The daemons of a session's shards, one life after another, and their ends.
#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "hooks/coordinator_hook.h"
#include "tests/sim/places.h"
#include "tests/sim/reduce_now.h"
#include "tests/sim/shard_recovery_simulation.h"

namespace gradwire::sim {
namespace {

constexpr std::uint64_t kLineage = 4711;  // and that of each further shard

}  // namespace

ShardRecoverySimulation::Life* ShardRecoverySimulation::LifeOf(std::uint32_t shard) const {
  const auto& lives = daemons_[shard].lives;
  return lives.empty() || lives.back()->over ? nullptr : lives.back().get();
}

// As Registry::Identify has it: a session that all have left to gather again is followed by the
// same one, and so is one that members bring along.
ShardRecoverySimulation::Life& ShardRecoverySimulation::NewLife(std::uint32_t shard,
                                                                const server::JoinAsk& ask) {
  const Life* const last = LifeOf(shard);
  Daemon& daemon = daemons_[shard];
  auto& life = daemon.lives.emplace_back(std::make_unique<Life>());
  life->shard = shard;
  life->number = daemon.lives.size();
  server::SessionOptions options = options_;
  options.shard.number = shard;
  options.generation = life->number;
  options.lineage = ask.report ? ask.report->lineage : kLineage + shard;
  options.session_key = ask.report
                            ? ask.report->session_key
                            : std::string(wire::kSessionKeyBytes, static_cast<char>('a' + shard));
  options.gathers = ask.report.has_value();
  if (last != nullptr && last->session->awaits_successor()) {
    options.lineage = last->session->options().lineage;
    options.session_key = last->session->options().session_key;
    options.gathers = true;
  }
  if (options.follows()) options.life = ask.life;
  life->session = std::make_unique<server::SessionCore>(
      options, *MakeCoordinatorHook(options.spec, options_.manifest), now_);
  return *life;
}

// In which steps something is lost: in those where members are, or will be when they have heard all
// that the daemons have said.
void ShardRecoverySimulation::NoteLoss(std::uint32_t shard) {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  std::int64_t last = 0;
  for (const auto& member : members_) {
    for (const Place& place : member->places) {
      first = std::min(first, place.core->step());
      last = std::max(last, place.core->step());
    }
  }
  for (std::uint32_t s = 0; s < map_->shards(); ++s) {
    if (LifeOf(s) != nullptr) last = std::max(last, LifeOf(s)->session->step());
  }
  if (LifeOf(shard)->gathers()) {
    Note(shard == 0 ? ShardRecoveryCount::kLeadLostWhileGathering
                    : ShardRecoveryCount::kOtherLostWhileGathering);
  }
  for (std::int64_t s = first; s <= last + 1 && s < std::ssize(steps_); ++s) {
    steps_[static_cast<std::size_t>(s)].lost_in = true;
  }
}

bool ShardRecoverySimulation::KillDaemon(std::uint32_t shard) {
  if (LifeOf(shard) == nullptr || daemons_[shard].draining) return false;
  Note(ShardRecoveryCount::kShardsKilled);
  NoteLoss(shard);
  EndDaemon(daemons_[shard], /*loses_frames=*/true);
  return true;
}

bool ShardRecoverySimulation::HandOver(std::uint32_t shard) {
  Life* const life = LifeOf(shard);
  if (life == nullptr || daemons_[shard].draining) return false;
  Note(ShardRecoveryCount::kHandedOver);
  NoteLoss(shard);
  daemons_[shard].draining = true;
  server::Effects effects;
  life->session->HandOver(effects);
  Apply(*life, std::move(effects));
  return true;
}

// Some of what it has sent last may be lost with it.
void ShardRecoverySimulation::EndDaemon(Daemon& daemon, bool loses_frames) {
  daemon.draining = false;
  daemon.down = true;
  std::erase_if(calls_, [&](const auto& call) {
    return call->abandoned && &daemons_[call->place->shard] == &daemon;
  });
  for (auto& life : daemon.lives) {
    if (std::exchange(life->over, true)) continue;
    life->answers.clear();
    for (const auto& link : links_) {
      if (link->life != life.get()) continue;
      link->up.clear();
      if (loses_frames && !link->down.empty()) {
        link->down.resize(random_.Below(link->down.size() + 1));
      }
      link->closed = true;
    }
  }
}

void ShardRecoverySimulation::Apply(Life& life, server::Effects effects) {
  for (server::Effect& effect : effects) {
    if (auto* send = std::get_if<server::SendEffect>(&effect)) {
      Deliver(life, send->rank, send->frame);
    } else if (auto* fan_out = std::get_if<server::FanOutEffect>(&effect)) {
      for (const int rank : fan_out->ranks) Deliver(life, rank, fan_out->frame);
    } else if (auto* result = std::get_if<server::ResultEffect>(&effect)) {
      for (const int rank : result->ranks) DeliverResult(life, rank, *result);
    } else if (auto* close = std::get_if<server::CloseEffect>(&effect)) {
      for (auto& link : links_) {
        if (link->id == close->connection) link->closed = true;
      }
    } else if (auto* log = std::get_if<server::LogEffect>(&effect)) {
      if (life.shard == 0) NoteLog(*log);
    } else {
      Compute(life, effect);
    }
  }
  if (life.session->state() == server::SessionCore::State::kFailed) {
    Violate(absl::StrCat("shard ", life.shard, ": ", life.session->failure().message()));
  }
}

// What shard 0 has made of the reports.
void ShardRecoverySimulation::NoteLog(const server::LogEffect& log) {
  const auto says = [&](const char* text) { return log.message.find(text) != std::string::npos; };
  if (!says("lost daemon")) return;
  std::set<std::int64_t> at;
  for (const auto& member : members_) at.insert(member->lead().core->step());
  if (at.size() > 1) return Note(ShardRecoveryCount::kFollowed);
  if (says("which nobody has a result of") || says("which is reduced again")) {
    Note(ShardRecoveryCount::kWentOn);
  }
  if (says("applied")) Note(ShardRecoveryCount::kConcludedByReports);
}

void ShardRecoverySimulation::Deliver(Life& life, int rank, wire::Frame frame) {
  const auto found = life.links.find(rank);
  if (found == life.links.end() || found->second->closed) return;
  if (found->second->place == nullptr) return;
  found->second->down.push_back(std::move(frame));
}

void ShardRecoverySimulation::DeliverResult(Life& life, int rank,
                                            const server::ResultEffect& effect) {
  const auto found = life.links.find(rank);
  if (found == life.links.end()) return;
  wire::Frame frame{.header = effect.header};
  server::ResultDelivery delivery =
      effect.result->DeliveryTo({.rank = rank, .stream = found->second->id});
  std::get<wire::Result>(frame.header).in_place = std::holds_alternative<server::InPlace>(delivery);
  if (auto* resent = std::get_if<server::ResentCopy>(&delivery)) frame.payload = resent->make();
  if (auto* carried = std::get_if<server::InFrame>(&delivery)) frame.payload = carried->payload;
  Deliver(life, rank, std::move(frame));
}

// The sum is computed, and written where it may be, now; the session hears of it later.
void ShardRecoverySimulation::Reduce(Life& life, const server::ReduceEffect& effect) {
  std::vector<wire::PayloadRef> places;
  for (const wire::PayloadRef& input : effect.inputs) {
    if (effect.in_place && input != nullptr && input->result_room() != nullptr) {
      places.push_back(input);
    }
  }
  ReducedNow sum = ReduceNow(effect, random_);
  server::ResultRef result = std::move(sum.result);
  if (!places.empty()) {
    Note(ShardRecoveryCount::kInPlace);
    const bool keeps = places.size() < effect.inputs.size();
    result = std::make_shared<PlacedResult>(Flatten(result->kept().get()), effect.segment.dtype,
                                            effect.raw.dtype, std::move(places), keeps, random_);
  }
  life.answers.emplace_back(
      [id = effect.id, chunk = effect.chunk, result = std::move(result), finite = sum.finite](
          server::SessionCore& session, server::Effects& effects) {
        session.Reduced(id, chunk, result, {.finite = finite}, absl::ZeroDuration(), effects);
      });
}

void ShardRecoverySimulation::Compute(Life& life, const server::Effect& effect) {
  if (const auto* reduce = std::get_if<server::ReduceEffect>(&effect)) {
    Reduce(life, *reduce);
  } else if (const auto* compute = std::get_if<server::ComputeEffect>(&effect)) {
    life.answers.emplace_back(
        [one = *compute](server::SessionCore& session, server::Effects& effects) {
          one.work->Run();
          session.Computed(one.id, *one.work, effects);
        });
  } else if (const auto* chore = std::get_if<server::ChoreEffect>(&effect)) {
    life.answers.emplace_back(
        [one = *chore](server::SessionCore& session, server::Effects& effects) {
          one.chore->Run();
          session.ChoreDone(effects);
        });
  } else if (const auto* restore = std::get_if<server::RestoreEffect>(&effect)) {
    Note(ShardRecoveryCount::kStatesTakenBack);
    life.answers.emplace_back(
        [one = *restore](server::SessionCore& session, server::Effects& effects) {
          session.Restored(session.ReadCopy(one), effects);
        });
  }
}

// ---- Streams

void ShardRecoverySimulation::TakeUp(Link& link) {
  const wire::Frame frame = std::move(link.up.front());
  link.up.pop_front();
  if (link.place == nullptr) return;
  Life& life = *link.life;
  const int rank = link.place->owner->rank;
  server::Effects effects;
  if (const auto* hello = std::get_if<wire::Hello>(&frame.header)) {
    life.links[rank] = &link;
    link.attached = true;
    const absl::Status attached =
        life.session->Attach(rank, hello->start_id, hello->step, link.id, now_, effects);
    if (!attached.ok()) {
      if (life.open()) Violate(absl::StrCat("Attach: ", attached.message()));
      link.refused = true;
      link.closed = true;
    }
  } else {
    life.session->Receive(rank, link.id, frame, now_, effects);
  }
  Apply(life, std::move(effects));
}

void ShardRecoverySimulation::TakeDown(Link& link) {
  if (link.down.empty()) return End(link);
  const wire::Frame frame = std::move(link.down.front());
  link.down.pop_front();
  OnFrame(*link.place, frame);
}

void ShardRecoverySimulation::End(Link& link) {
  Place& place = *std::exchange(link.place, nullptr);
  place.link = nullptr;
  link.up.clear();
  const auto found = link.life->links.find(place.owner->rank);
  if (found != link.life->links.end() && found->second == &link) link.life->links.erase(found);
  if (link.refused) OnLost(place, std::nullopt);
}

// Both directions lose what is on its way.
void ShardRecoverySimulation::Cut(Place& place) {
  Link& link = *place.link;
  Note(ShardRecoveryCount::kCuts);
  if (link.life->gathers()) Note(ShardRecoveryCount::kCutsWhileGathering);
  link.down.clear();
  link.refused = false;
  End(link);
  if (link.life->over || !link.attached) return;
  server::Effects effects;
  link.life->session->Detach(place.owner->rank, link.id, now_, effects);
  Apply(*link.life, std::move(effects));
}

// ---- Joins

bool ShardRecoverySimulation::Take(Call& call) {
  if (call.answer == nullptr) return TakeJoin(call);
  Place& place = *call.place;
  place.calls.emplace_back([this, &place, number = call.number, life = call.answer] {
    if (number == place.tries) OnJoined(place, *life);
  });
  return false;
}

bool ShardRecoverySimulation::TakeJoin(Call& call) {
  const std::uint32_t shard = call.place->shard;
  if (!daemons_[shard].answers()) return !call.abandoned;
  Life* life = LifeOf(shard);
  if (life == nullptr || !life->open()) life = &NewLife(shard, call.ask);
  server::Effects effects;
  server::SessionCore& session = *life->session;
  const auto rank = session.Join(call.ask, session.options().CheckSame(call.ask), now_, effects);
  Apply(*life, std::move(effects));
  if (call.abandoned) Note(ShardRecoveryCount::kLateJoins);
  if (absl::IsUnavailable(rank.status())) {
    Note(life->open() ? ShardRecoveryCount::kRefusedLives : ShardRecoveryCount::kClosedByJoin);
    return !call.abandoned;
  }
  if (call.abandoned) return false;
  if (!rank.ok()) {
    Violate(absl::StrCat("Join at shard ", shard, ": ", rank.status().message(), "; ", Where()));
  }
  call.answer = life;
  return true;
}

}  // namespace gradwire::sim
