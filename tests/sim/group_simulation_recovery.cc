// What the simulation of node groups does to a session that outlives its daemon.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
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
          .group = {.name = member.group, .communicator = "virtual 1"},
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
    if (!may_come && IsLeftBehind(rank.status())) {
      Note(GroupCount::kLeftBehind);
      member.dead = true;
      return Replace(member.rank);
    }
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
    if (!one->welcomed || one->dead) continue;
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

// With the last that has the model, the session ends; and without a majority of those who have it.
bool GroupSimulation::MayLose(int rank) const {
  std::size_t most = 0;  // in any roster that somebody is in, or has concluded a step in
  std::size_t stay = 0;
  const auto is_here = [](const auto& one) { return !one->dead && one->welcomed; };
  wire::Roster latest;
  for (const auto& one : members_) {
    const auto roster = is_here(one) ? one->member->Report().roster : std::nullopt;
    if (roster && roster->number > latest.number) latest = *roster;
  }
  for (const auto& one : members_) {
    const bool is_left = latest.number > 0 && !std::ranges::binary_search(latest.ranks, one->rank);
    if (!is_here(one) || is_left) continue;
    const client::GroupedMember& core = *one->member;
    const wire::MemberReport report = core.Report();
    const std::size_t in_roster = report.roster ? report.roster->ranks.size() : 0;
    most = std::max({most, in_roster, report.concluded.size()});
    const bool has_model = IsFirstProcess(*one) || (!core.awaits_welcome() && !report.newcomer);
    if (one->rank != rank && has_model) ++stay;
  }
  return scenario_.options.shrinks() ? 2 * stay > most : stay > 0;
}

void GroupSimulation::MaybeReplace(std::uint64_t chance) {
  const int rank = static_cast<int>(chance % members_.size());
  Member& lost = *members_[static_cast<std::size_t>(rank)];
  if (lost.dead || !MayLose(rank)) return;
  Kill(lost);
  const bool comes_again = !scenario_.options.shrinks() || (chance >> 32) % 2 == 0;
  if (!comes_again) return Note(GroupCount::kMembersGone);
  Note(GroupCount::kMembersReplaced);
  Replace(rank);
}

void GroupSimulation::Kill(Member& lost) {
  ++losses_;
  lost.dead = true;
  if (!scenario_.options.spec.OnlyCasts()) has_reference_ = false;
  server::Effects effects;
  const std::uint64_t connection = std::exchange(lost.connection, 0);
  if (connection != 0 && lost.life == life_) {
    session_->Detach(lost.rank, connection, now_, effects);
  }
  Apply(std::move(effects));
}

void GroupSimulation::Replace(int rank) {
  std::unique_ptr<Member>& place = members_[static_cast<std::size_t>(rank)];
  auto member = std::make_unique<Member>();
  member->rank = rank;
  member->group = place->group;
  if (scenario_.options.shrinks() && random_.Percent(30)) {  // on another node
    member->group = scenario_.groups[random_.Below(scenario_.groups.size())];
  }
  member->start_id = next_start_id_++;
  replaced_.push_back(std::exchange(place, std::move(member)));
  if (scenario_.options.shrinks()) ++losses_;  // that it comes drops steps, too
  After(random_.Between(absl::ZeroDuration(), kSuccessorComes),
        [this, &one = *place] { Join(one); });
}

bool GroupSimulation::IsOver() const {
  bool waits = false;
  for (const auto& one : members_) {
    if (one->dead || one->done || one->failed) continue;
    if (one->welcomed || !scenario_.options.shrinks()) return false;
    waits = true;
  }
  return !waits || std::ranges::any_of(members_, [](const auto& one) { return one->done; });
}

bool GroupSimulation::IsLeftBehind(const absl::Status& status) const {
  return scenario_.options.shrinks() && absl::StrContains(status.message(), "went on without rank");
}

std::vector<GroupSimulation::Group> GroupSimulation::GroupsOf(const std::vector<int>& roster,
                                                              std::uint64_t life) const {
  const std::vector<std::string>& names = names_.at(life);
  std::vector<Group> groups;
  std::map<std::string, std::size_t> named;
  for (int rank = 0; rank < scenario_.options.world_size; ++rank) {
    if (!roster.empty() && !std::ranges::binary_search(roster, rank)) continue;
    const std::string& name = names[static_cast<std::size_t>(rank)];
    const auto [known, is_new] = named.try_emplace(name, groups.size());
    if (is_new || name.empty()) groups.emplace_back();
    Group& group = name.empty() ? groups.back() : groups[known->second];
    group.ranks.push_back(rank);
  }
  return groups;
}

}  // namespace gradwire::sim
