// The daemons of a session that outlives them, one life after another, and who is killed.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "hooks/coordinator_hook.h"
#include "tests/sim/places.h"
#include "tests/sim/recovery_simulation.h"
#include "tests/sim/reduce_now.h"

namespace gradwire::sim {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(250);

}  // namespace

// Another daemon's, or the same one's after it has lost a member.
RecoverySimulation::Life& RecoverySimulation::NewLife(
    const std::optional<wire::MemberReport>& report) {
  const bool succeeds =
      !lives_.empty() && !lives_.back()->replaced && lives_.back()->session->awaits_successor();
  auto& life = lives_.emplace_back(std::make_unique<Life>());
  life->number = lives_.size();
  server::SessionOptions options = options_;
  options.generation = life->number;
  options.lineage = report && !succeeds ? report->lineage : 4711;
  options.session_key = report && !succeeds ? report->session_key : session_key_;
  options.gathers = report.has_value() || succeeds;
  if (succeeds) options.gone = lives_[lives_.size() - 2]->session->gone();
  life->session = std::make_unique<server::SessionCore>(
      options, *MakeCoordinatorHook(options.spec, manifest_), now_);
  return *life;
}

// In which steps something is lost: in those where members are, or will be when they have heard all
// that the daemon has said; with a member, the one after a concluded one, too.
void RecoverySimulation::NoteLoss() {
  const server::SessionCore& session = *lives_.back()->session;
  const bool gathers = session.state() == server::SessionCore::State::kJoining;
  for (const auto& member : members_) {
    if (member->core == nullptr) continue;
    const std::int64_t first = member->core->step();
    // Those that gather may have been told of two steps.
    const std::int64_t last = std::max(first, session.step()) + (gathers ? 3 : 1);
    for (std::int64_t s = first; s <= last && s < std::ssize(steps_); ++s) {
      steps_[static_cast<std::size_t>(s)].lost_in = true;
    }
  }
}

// Whether the others can go on without it.
bool RecoverySimulation::MayKill(const Member& member) const {
  if (member.core == nullptr || member.finished()) return false;
  if (!options_.shrinks()) {
    return std::ranges::any_of(members_, [&](const auto& one) {
      return one->rank != member.rank && one->has_model && !one->leaves && !one->gone;
    });
  }
  // As the session counts; who has not been welcomed knows of no roster. The others may know less
  // than this one.
  struct Furthest {
    std::pair<std::int64_t, std::uint64_t> place{-1, 0};
    std::vector<int> voters{};
    void Take(const wire::MemberReport& report) {
      const std::pair here(report.step, report.roster->number);
      if (here > place) *this = {.place = here, .voters = report.concluded};
    }
  };
  Furthest of_all;
  Furthest of_others;
  std::vector<int> others;
  wire::Roster latest;
  for (const auto& one : members_) {
    const bool is_here = !one->dead && !one->gone && one->core != nullptr;
    if (!is_here || one->core->roster() == nullptr) continue;
    const wire::MemberReport report = one->core->Report();
    if (report.roster->number > latest.number) latest = *report.roster;
    of_all.Take(report);
    if (one->rank != member.rank) of_others.Take(report);
    // Those that others have gone on without, or are about to, do not know it yet.
    const bool is_gone = !lives_.back()->over && lives_.back()->session->member_state(one->rank) ==
                                                     server::MemberState::kGone;
    const bool stays = !report.newcomer && !is_gone && !one->leaves;
    for (int r = one->rank; one->rank != member.rank && stays && r < one->rank + one->stands_for;) {
      others.push_back(r++);
    }
  }
  std::erase_if(others, [&](int r) { return std::ranges::count(latest.ranks, r) == 0; });
  const auto is_majority = [&](const std::vector<int>& of) {
    const auto left =
        std::ranges::count_if(others, [&](int r) { return std::ranges::count(of, r) > 0; });
    return 2 * left > std::ssize(of);
  };
  if (std::ssize(others) < options_.shrinks_to || !MayFollowClaims(others, latest)) return false;
  return options_.may_be_minority ||
         (is_majority(of_all.voters) && is_majority(of_others.voters) && is_majority(latest.ranks));
}

// It takes a while until the daemon knows.
void RecoverySimulation::Kill(std::size_t index) {
  Member& member = *members_[index];
  const bool has_left = std::ranges::any_of(members_, [this](const auto& one) {
    return !lives_.back()->over &&
           lives_.back()->session->member_state(one->rank) == server::MemberState::kLeft;
  });
  if (member.dead || !MayKill(member) || (has_left && !options_.shrinks())) return;
  Note(RecoveryCount::kMembersKilled);
  if (member.stands_for > 1) Note(RecoveryCount::kLeavesLost);
  has_losses_ = true;
  NoteLoss();
  Replace(member);
  Pass(2 * kRecoveryResumeGrace);
}

void RecoverySimulation::Replace(Member& member) {
  const int rank = member.rank;
  if (member.link != nullptr) Cut(member);
  Spawn(rank, ++processes_);
  MemberOf(rank).dead = options_.shrinks();
  reference_holds_ &= !options_.shrinks();
}

void RecoverySimulation::Pass(absl::Duration time) {
  for (const absl::Time until = now_ + time; now_ < until; now_ += kTick) {
    for (std::size_t i = 0; i < lives_.size(); ++i) {
      Life& life = *lives_[i];
      // Of others only an arbiter keeps those from going on that have few members.
      if (life.over || (i + 1 < lives_.size() && !options_.claims())) continue;
      server::Effects effects;
      life.session->Tick(now_, effects);
      Apply(life, std::move(effects));
    }
  }
}

// Another process comes for a rank without which the others have gone on, or are about to.
void RecoverySimulation::Return(Member& dead) {
  Note(RecoveryCount::kTakenIn);
  dead.dead = false;
}

void RecoverySimulation::EndLife(bool hands_over) {
  if (lives_.empty() || lives_.back()->over || lives_.back()->draining) return;
  Life& life = *lives_.back();
  const bool gathering = life.session->state() == server::SessionCore::State::kJoining;
  Note(hands_over ? RecoveryCount::kHandedOver : RecoveryCount::kLivesLost);
  if (gathering) Note(RecoveryCount::kLostWhileGathering);
  NoteLoss();
  if (!hands_over) return Disconnect(life, /*loses_frames=*/true);
  life.draining = true;
  server::Effects effects;
  life.session->HandOver(effects);
  Apply(life, std::move(effects));
}

RecoverySimulation::Life* RecoverySimulation::Reachable() const {
  const bool none = lives_.empty() || lives_.back()->over || lives_.back()->replaced;
  return none ? nullptr : lives_.back().get();
}

// Not where members share memory with it: who starts the next one has to end it first.
void RecoverySimulation::Split() {
  Life* const life = Reachable();
  const bool may_write =
      std::ranges::any_of(members_, [](const auto& member) { return member->in_place; });
  if (life == nullptr || life->draining || may_write) return;
  Note(RecoveryCount::kSplit);
  NoteLoss();
  life->replaced = was_split_ = true;
}

// Some of what it has sent last may be lost with it.
void RecoverySimulation::Disconnect(Life& life, bool loses_frames) {
  life.over = true;
  for (const auto& link : links_) {
    if (link->life != &life || (link->closed && !link->ends_well)) continue;
    link->ends_well = false;
    link->up.clear();
    if (loses_frames && !link->down.empty()) {
      link->down.resize(random_.Below(link->down.size() + 1));
    }
    link->closed = true;
  }
  life.answers.clear();
}

void RecoverySimulation::Apply(Life& life, server::Effects effects) {
  for (server::Effect& effect : effects) {
    if (auto* send = std::get_if<server::SendEffect>(&effect)) {
      Deliver(life, send->rank, send->frame);
    } else if (auto* fan_out = std::get_if<server::FanOutEffect>(&effect)) {
      for (const int rank : fan_out->ranks) Deliver(life, rank, fan_out->frame);
    } else if (auto* result = std::get_if<server::ResultEffect>(&effect)) {
      for (const int rank : result->ranks) DeliverResult(life, rank, *result);
    } else if (auto* reduce = std::get_if<server::ReduceEffect>(&effect)) {
      Reduce(life, *reduce);
    } else if (std::holds_alternative<server::ComputeEffect>(effect) ||
               std::holds_alternative<server::ChoreEffect>(effect) ||
               std::holds_alternative<server::RestoreEffect>(effect)) {
      Compute(life, effect);
    } else if (const auto* claim = std::get_if<server::ClaimRosterEffect>(&effect)) {
      Claim(life, *claim);
    } else if (auto* close = std::get_if<server::CloseEffect>(&effect)) {
      for (auto& link : links_) {
        if (link->id != close->connection) continue;
        link->closed = true;
        link->ends_well = life.session->member_state(link->rank) == server::MemberState::kLeft;
      }
    } else if (auto* log = std::get_if<server::LogEffect>(&effect)) {
      const auto says = [&](const char* text) {
        return log->message.find(text) != std::string::npos;
      };
      if (says("goes on without gradients")) ++late_counts_.missed;
      if (says("did not come")) Note(RecoveryCount::kShrunk);
      if (says("is claimed already")) Note(RecoveryCount::kClaimsOfOthers);
      if (!says("lost daemon")) continue;
      std::set<std::int64_t> at;
      for (const auto& member : members_) {
        if (member->core != nullptr) at.insert(member->core->step());
      }
      if (at.size() > 1) {
        Note(RecoveryCount::kFollowed);
        continue;
      }
      if (says("which nobody has a result of") || says("which is reduced again")) {
        Note(RecoveryCount::kWentOn);
      }
      if (says("applied")) Note(RecoveryCount::kConcludedByReports);
    }
  }
  if (life.session->awaits_successor()) life.draining = true;
  if (life.session->state() == server::SessionCore::State::kFailed) {
    // Those that Kill has spared may be named as newcomers in a frame that is still on its way.
    const std::string why(life.session->failure().message());
    model_is_lost_ = processes_ > 0 && why.find("had the session's model") != std::string::npos;
    // With two daemons, members may be lost that only one of them knew to be the rest. And who
    // leaves does not ask whether the others are still enough.
    model_is_lost_ |=
        (was_split_ || left_too_few_) && why.find("no majority is here") != std::string::npos;
    // Those that are through need no daemon any more.
    const bool is_end = OnlyEndsAreLeft() && IsOfAnEnd(life.session->failure());
    if (!model_is_lost_ && !is_end) Violate(why);
  }
}

void RecoverySimulation::SendDown(Life& life, int rank, std::function<void()> arrives) {
  const auto found = life.links.find(rank);
  if (found != life.links.end() && !found->second->closed) {
    found->second->down.push_back(std::move(arrives));
  }
}

void RecoverySimulation::Deliver(Life& life, int rank, const wire::Frame& frame) {
  SendDown(life, rank, [this, rank, frame] { OnFrame(MemberOf(rank), frame); });
}

void RecoverySimulation::DeliverResult(Life& life, int rank, const server::ResultEffect& effect) {
  const auto found = life.links.find(rank);
  if (found == life.links.end()) return;
  wire::Frame frame{.header = effect.header};
  server::ResultDelivery delivery =
      effect.result->DeliveryTo({.rank = rank, .stream = found->second->id});
  std::get<wire::Result>(frame.header).in_place = std::holds_alternative<server::InPlace>(delivery);
  if (auto* resent = std::get_if<server::ResentCopy>(&delivery)) frame.payload = resent->make();
  if (auto* carried = std::get_if<server::InFrame>(&delivery)) frame.payload = carried->payload;
  Deliver(life, rank, frame);
}

// The sum is computed, and written where it may be, now; the session hears of it later.
void RecoverySimulation::Reduce(Life& life, const server::ReduceEffect& effect) {
  std::vector<wire::PayloadRef> places;
  for (const wire::PayloadRef& input : effect.inputs) {
    if (effect.in_place && input != nullptr && input->result_room() != nullptr) {
      places.push_back(input);
    }
  }
  ReducedNow sum = ReduceNow(effect, random_);
  server::ResultRef result = std::move(sum.result);
  if (!places.empty()) {
    Note(RecoveryCount::kInPlace);
    const bool keeps = places.size() < effect.inputs.size();
    result = std::make_shared<PlacedResult>(Flatten(result->kept().get()), effect.segment.dtype,
                                            effect.raw.dtype, std::move(places), keeps, random_);
  }
  life.answers.emplace_back([id = effect.id, chunk = effect.chunk, result, finite = sum.finite](
                                server::SessionCore& session, server::Effects& effects) {
    session.Reduced(id, chunk, result, {.finite = finite}, absl::ZeroDuration(), effects);
  });
}

void RecoverySimulation::Compute(Life& life, const server::Effect& effect) {
  if (const auto* compute = std::get_if<server::ComputeEffect>(&effect)) {
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
    Note(RecoveryCount::kStatesTakenBack);
    life.answers.emplace_back(
        [one = *restore](server::SessionCore& session, server::Effects& effects) {
          session.Restored(session.ReadCopy(one), effects);
        });
  }
}

void RecoverySimulation::TakeUp(Link& link) {
  const wire::Frame frame = std::move(link.up.front());
  link.up.pop_front();
  Life& life = *link.life;
  server::Effects effects;
  if (const auto* hello = std::get_if<wire::Hello>(&frame.header)) {
    life.links[link.rank] = &link;
    link.attached = true;
    const absl::Status attached = life.session->Attach(
        link.rank, hello->start_id, hello->step, link.id, now_, effects,
        {.takes_residuals = hello->takes_residuals, .may_miss = hello->may_miss});
    if (!attached.ok()) {
      // Its place may be free again, if it has not come in time.
      const bool gathers = life.session->state() == server::SessionCore::State::kJoining;
      Member& member = MemberOf(link.rank);
      const bool wants_to_leave = member.leaves || (leaves_at_end_ && member.finished());
      const bool has_left = life.session->member_state(link.rank) == server::MemberState::kLeft;
      if (wants_to_leave && has_left) return Go(member);
      if (!life.draining && !gathers && !options_.shrinks()) {
        Violate(absl::StrCat("Attach: ", attached.message()));
      }
      link.closed = true;
      MemberOf(link.rank).life = 0;  // it looks for another daemon
    }
  } else {
    life.session->Receive(link.rank, link.id, frame, now_, effects);
  }
  Apply(life, std::move(effects));
}

void RecoverySimulation::TakeDown(Link& link) {
  Member& member = MemberOf(link.rank);
  if (link.down.empty()) {
    link.closed = false;
    if (member.link != &link) return;
    const bool wants_to_leave = member.leaves || (leaves_at_end_ && member.finished());
    if (link.ends_well && wants_to_leave) return Go(member);
    member.has_lost_last |= member.finished();
    member.link = nullptr;
    return;
  }
  const auto arrives = std::move(link.down.front());
  link.down.pop_front();
  if (member.link == &link) arrives();
}

// Both directions lose what is on its way.
void RecoverySimulation::Cut(Member& member) {
  Link& link = *member.link;
  Note(RecoveryCount::kCuts);
  link.up.clear();
  link.down.clear();
  link.closed = false;
  member.link = nullptr;
  if (link.life->over || !link.attached) return;
  server::Effects effects;
  link.life->session->Detach(link.rank, link.id, now_, effects);
  Apply(*link.life, std::move(effects));
}

}  // namespace gradwire::sim
