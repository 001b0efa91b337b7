// What the simulation of node groups does to a session that outlives its daemon.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "hooks/device_hooks.h"
#include "tests/sim/group_simulation.h"

namespace gradwire::sim {
namespace {

constexpr absl::Duration kTriesAgain = absl::Milliseconds(100);
constexpr absl::Duration kSuccessorComes = absl::Seconds(3);

}  // namespace

// The first one, or the next one, to which the members come with what they know.
void GroupSimulation::BeginLife(server::SessionOptions options) {
  const bool first = session_ == nullptr;
  if (!first) {
    ++life_;
    options.generation = scenario_.options.generation + life_;
    options.gathers = true;
    Note(GroupCount::kLivesLost);
  }
  session_ = std::make_unique<server::SessionCore>(
      options, *MakeCoordinatorHook(options.spec, options.manifest), now_);
}

server::JoinAsk GroupSimulation::AskOf(const Member& member) const {
  return {.world_size = scenario_.options.world_size,
          .rank = member.rank,
          .start_id = member.start_id,
          .spec = scenario_.options.spec,
          .manifest = scenario_.options.manifest,
          .group = {.name = scenario_.groups[static_cast<std::size_t>(member.rank)],
                    .communicator = "virtual 1"},
          .report = member.report};
}

// At first, or with a report, or in the place of a lost one.
void GroupSimulation::Join(Member& member) {
  if (member.dead || member.failed) return;
  server::Effects effects;
  const auto rank = session_->Join(AskOf(member), absl::OkStatus(), now_, effects);
  const std::uint64_t life = life_;
  Apply(std::move(effects));
  if (!rank.ok()) {
    // A newcomer may come before its predecessor is known to be lost.
    const bool may_come = scenario_.recovers && (absl::IsUnavailable(rank.status()) ||
                                                 absl::IsNotFound(rank.status()) || life != life_);
    if (!may_come) return Violate(std::string(rank.status().message()));
    return After(kTriesAgain, [this, &member] { Join(member); });
  }
  member.life = life;
  member.report.reset();
  if (member.member != nullptr) {
    member.rejoins = true;
    client::Effects mine;
    member.member->Rejoined(scenario_.options.generation + life, mine);
    Apply(member, std::move(mine));
  }
  After(Delay(), [this, &member, life] {
    if (member.life == life) Attach(member);
  });
}

// The member notices, or hears of it.
void GroupSimulation::Lose(Member& member, std::uint64_t life) {
  if (member.dead || member.failed || member.life != life || life == kNoLife) return;
  member.connection = 0;
  if (member.member != nullptr && member.member->outlives_daemon()) {
    member.report = member.member->Report();
  }
  member.life = kNoLife;
  After(Delay(), [this, &member] { Join(member); });
}

// What the lost daemon had sent may still arrive.
void GroupSimulation::LoseDaemon() {
  ++losses_;
  const bool in_operation = std::any_of(members_.begin(), members_.end(),
                                        [](const auto& one) { return one->in_operation; });
  if (in_operation) Note(GroupCount::kLivesLostInAnOperation);
  const bool gathers = session_->state() == server::SessionCore::State::kJoining;
  if (gathers) Note(GroupCount::kLivesLostWhileGathering);
  for (auto& member : members_) {
    After(Delay(), [this, &one = *member, life = member->life] { Lose(one, life); });
  }
  server::SessionOptions options = scenario_.options;
  BeginLife(std::move(options));
}

// The daemon ends the stream: what it has sent before arrives.
void GroupSimulation::On(server::CloseEffect& effect) {
  if (!scenario_.recovers) return;
  Member& member = *members_[static_cast<std::size_t>(effect.rank)];
  if (member.connection != effect.connection) return;
  const absl::Time arrives = std::max(member.last_down, now_ + Delay());
  member.last_down = arrives;
  After(arrives - now_, [this, &member, life = member.life, connection = effect.connection] {
    if (member.connection == connection && life != life_) Lose(member, life);
  });
}

void GroupSimulation::On(server::RestoreEffect& effect) {
  Note(GroupCount::kStatesTakenBack);
  After(Delay(), [this, effect, life = life_] {
    if (life != life_) return;
    server::Effects effects;
    session_->Restored(session_->ReadCopy(effect), effects);
    Apply(std::move(effects));
  });
}

// After the device's work: another stream may be there by then.
void GroupSimulation::On(Member& member, client::PreparedEffect& effect) {
  After(Delay(), [this, &member, effect, connection = member.connection] {
    if (member.dead || member.connection != connection || connection == 0) return;
    if (member.member->step() != effect.step) return;  // a resume had repeated it
    client::Effects effects;
    member.member->SayReady(effect.verdict, effect.digest, effects);
    Apply(member, std::move(effects));
  });
}

// Only when all have heard that the session has begun: before, nobody could report for them.
void GroupSimulation::MaybeBreak(std::size_t ran) {
  if (!scenario_.recovers) return;
  const bool begun = std::all_of(members_.begin(), members_.end(), [this](const auto& one) {
    return one->welcomed || !IsFirstProcess(*one);
  });
  if (!begun) return;
  // Who hears of nothing while steps end and are dropped by one daemon after another is left with a
  // step of which nobody can say any more how it ended.
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  std::int64_t last = 0;
  for (const auto& one : members_) {
    if (!one->welcomed) continue;
    first = std::min(first, one->member->step());
    last = std::max(last, one->member->step());
  }
  if (last - first > 1) return;
  if (next_loss_ < scenario_.losses.size() && ran >= scenario_.losses[next_loss_]) {
    ++next_loss_;
    LoseDaemon();
  }
  if (next_death_ < scenario_.deaths.size() && ran >= scenario_.deaths[next_death_].first) {
    MaybeReplace(scenario_.deaths[next_death_++].second);
  }
}

// With the last that has the model, the session ends.
void GroupSimulation::MaybeReplace(std::uint64_t chance) {
  const std::size_t rank = chance % members_.size();
  const auto has_model = [&](const auto& one) {
    if (one->rank == static_cast<int>(rank) || one->dead || !one->welcomed) return false;
    const client::GroupedMember& core = *one->member;
    return IsFirstProcess(*one) || (!core.awaits_welcome() && !core.Report().newcomer);
  };
  if (std::none_of(members_.begin(), members_.end(), has_model)) return;
  ++losses_;
  Note(GroupCount::kMembersReplaced);
  Member& lost = *members_[rank];
  lost.dead = true;
  if (!scenario_.options.spec.OnlyCasts()) has_reference_ = false;
  server::Effects effects;
  const std::uint64_t connection = std::exchange(lost.connection, 0);
  if (connection != 0 && lost.life == life_) {
    session_->Detach(lost.rank, connection, now_, effects);
  }
  auto member = std::make_unique<Member>();
  member->rank = lost.rank;
  member->group = lost.group;
  member->start_id = next_start_id_++;
  replaced_.push_back(std::exchange(members_[rank], std::move(member)));
  Apply(std::move(effects));
  After(random_.Between(absl::ZeroDuration(), kSuccessorComes),
        [this, &one = *members_[rank]] { Join(one); });
}

}  // namespace gradwire::sim
