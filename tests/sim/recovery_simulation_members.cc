// The members of a session that outlives its daemon.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "hooks/cpu/host_device.h"
#include "server/core/step.h"
#include "server/core/step_digests.h"
#include "tests/sim/places.h"
#include "tests/sim/recovery_simulation.h"

namespace gradwire::sim {
// ---- Members

void RecoverySimulation::Connect(Member& member) {
  Life* const life = Reachable();
  if (life == nullptr || member.life != life->number) return Join(member);
  auto& link = links_.emplace_back(std::make_unique<Link>());
  *link = {.id = ++next_link_, .rank = member.rank, .life = life};
  member.link = link.get();
  const std::int64_t step = member.core->step();
  SendUp(member, {.header = wire::Hello{.token = "t",
                                        .start_id = member.start_id,
                                        .step = step,
                                        .takes_residuals = true,
                                        .may_miss = true}});
  if (!member.welcomed) return;
  client::Effects effects;
  member.core->Resumed(effects);
  ApplyMember(member, std::move(effects));
}

void RecoverySimulation::Join(Member& member) {
  server::JoinAsk ask{.world_size = options_.world_size,
                      .rank = member.rank,
                      .start_id = member.start_id,
                      .spec = options_.spec,
                      .manifest = options_.manifest};
  if (member.stands_for > 1) {
    ask.leaf_ranks = member.stands_for;
    ask.leaf = "node";
  }
  if (member.welcomed) ask.report = member.core->Report();
  if (Reachable() != nullptr && lives_.back()->draining) return;  // later
  const bool alone = Reachable() == nullptr;
  // To a daemon that knows nothing of the session, its members must come first.
  const bool too_early = processes_ > 0 && !member.welcomed && alone &&
                         (lives_.back()->replaced || !lives_.back()->session->awaits_successor());
  if (too_early) return;
  if (alone) NewLife(ask.report);
  Life& life = *lives_.back();
  server::Effects effects;
  const auto rank = life.session->Join(ask, life.session->options().CheckSame(ask), now_, effects);
  Apply(life, std::move(effects));
  const bool may_wait = !member.welcomed || options_.shrinks();
  if (absl::IsUnavailable(rank.status()) && may_wait) return;  // later
  if (IsLeftBehind(rank.status())) return Restart(member);
  if (leaves_at_end_ && IsOfAnEnd(rank.status())) {
    if (member.finished()) return NoteGoneAtEnd(member);
    if (OnlyEndsAreLeft()) return;
  }
  if (!rank.ok()) return Violate(absl::StrCat("Join: ", rank.status().message(), "; ", Where()));
  member.life = life.number;
  if (member.core == nullptr) {
    member.core = std::make_unique<client::Member>(
        client::MemberOptions{.rank = member.rank,
                              .world_size = options_.world_size,
                              .generation = life.number,
                              .chunk_bytes = options_.chunk_bytes,
                              .window_chunks = options_.window_chunks,
                              .eager_bytes = options_.eager_bytes,
                              .draw_plan = true,
                              .large_chunk_bytes = options_.chunk_bytes,
                              .manifest = manifest_,
                              .keep_gradients = member.keeps_gradients,
                              .device = MakeHostDevice(),
                              .ledger = member.ledger,
                              .misses_early = !is_power_sgd() && random_.Percent(70)},
        member.hook.get());
  } else {
    member.core->Rejoined(life.number);
  }
}

void RecoverySimulation::OnFrame(Member& member, const wire::Frame& frame) {
  client::Effects effects;
  const std::int64_t before = member.core->steps_reduced_again();
  if (late_) NoteMoved(member, frame);
  const auto* const welcome = std::get_if<wire::Welcome>(&frame.header);
  if (welcome != nullptr && welcome->group) {  // as client::GroupedMember does
    member.core->SetGroup(static_cast<int>(welcome->group->group),
                          static_cast<int>(welcome->group->groups));
  }
  // As the client does where chunks wait on the way.
  if (random_.Percent(10)) {
    member.core->SetWindow(
        static_cast<std::uint32_t>(random_.Between(1, static_cast<int>(options_.window_chunks))));
  }
  member.core->Receive(frame, effects);
  if (welcome != nullptr) {
    const wire::Roster* const roster = member.core->roster();
    member.weight = Weight(member.rank, roster == nullptr ? std::vector<int>() : roster->ranks);
  }
  if (member.core->steps_reduced_again() > before) Note(RecoveryCount::kReducedAgain);
  ApplyMember(member, std::move(effects));
}

void RecoverySimulation::SendUp(Member& member, wire::Frame frame) {
  if (member.link == nullptr || member.link->life->over) return;
  member.link->up.push_back(std::move(frame));
}

void RecoverySimulation::ApplyMember(Member& member, client::Effects effects) {
  for (client::Effect& effect : effects) {
    if (auto* send = std::get_if<client::SendFrameEffect>(&effect)) {
      SendUp(member, {.header = std::move(send->header), .payload = std::move(send->payload)});
    } else if (auto* chunk = std::get_if<client::SendChunkEffect>(&effect)) {
      OnChunk(member, *chunk);
    } else if (auto* bytes = std::get_if<client::SendCollectiveEffect>(&effect)) {
      const auto* data = member.broadcast.data() + bytes->offset;
      SendUp(member, {.header = bytes->header,
                      .payload = MakePayload(ByteVector(data, data + bytes->bytes), random_)});
    } else if (auto* got = std::get_if<client::ReceiveCollectiveEffect>(&effect)) {
      const ByteVector content = Flatten(got->payload.get());
      std::copy(content.begin(), content.end(),
                member.broadcast.begin() + static_cast<std::ptrdiff_t>(got->offset));
    } else if (auto* done = std::get_if<client::BucketDoneEffect>(&effect)) {
      FinishBucket(member.buckets.at(done->ticket));
    } else if (auto* prepared = std::get_if<client::PreparedEffect>(&effect)) {
      client::Effects more;
      member.core->SayReady(prepared->verdict, prepared->digest, more);
      ApplyMember(member, std::move(more));
    } else if (auto* over = std::get_if<client::StepDoneEffect>(&effect)) {
      NoteChain(member);
      const bool moves = over->change && !member.has_model;
      if (member.core->roster() != nullptr && over->verdict == Verdict::kApply)
        NoteRanks(member, over->step);
      if (over->step != static_cast<std::int64_t>(member.step + member.over.size()) && !moves) {
        Violate(absl::StrCat("rank ", member.rank, ": step ", over->step,
                             over->dropped ? " (dropped)" : "", " ends after ", member.over.size(),
                             " others; ", Where()));
      }
      member.over.push_back(*over);
    } else if (auto* given = std::get_if<client::HandedOverEffect>(&effect)) {
      OnHandedOver(member, *given);
    } else if (auto* collective = std::get_if<client::CollectiveDoneEffect>(&effect)) {
      FinishCollective(member, collective->status);
    } else if (auto* welcome = std::get_if<client::WelcomeEffect>(&effect)) {
      member.welcomed = true;
      if (member.core->roster() != nullptr) member.ranks = member.core->roster()->ranks;
      if (welcome->change) {
        member.step = static_cast<std::size_t>(member.core->step());
        member.heals = welcome->change->root;
        if (!member.finished()) steps_[member.step].replaced.insert(member.rank);
      }
      welcomed_ = std::all_of(members_.begin(), members_.end(),
                              [](const auto& one) { return one->welcomed; });
    } else if (auto* failed = std::get_if<client::FailedEffect>(&effect)) {
      if (IsLeftBehind(failed->status)) return Restart(member);
      if (leaves_at_end_ && member.finished() && IsOfAnEnd(failed->status)) {
        NoteGoneAtEnd(member);
      } else if (!model_is_lost_) {
        Violate(absl::StrCat("rank ", member.rank, " fails: ", failed->status.message()));
      }
    }
  }
}

bool RecoverySimulation::IsLeftBehind(const absl::Status& status) const {
  return options_.shrinks() && FindCode(std::string(status.message())) == ErrorCode::kLeftBehind;
}

// The others have gone on without it.
void RecoverySimulation::Restart(Member& member) {
  Note(RecoveryCount::kLeftBehind);
  has_losses_ = true;
  reference_holds_ = false;
  if (member.link != nullptr) Cut(member);
  Spawn(member.rank, ++processes_);
}

// Whose mean a step is that is applied: as the member is in it, the same for all, and as the user
// has been told or is told with its end.
void RecoverySimulation::NoteRanks(const Member& member, std::int64_t number) {
  Step& step = steps_[static_cast<std::size_t>(number)];
  const std::vector<int>& ranks = member.core->roster()->ranks;
  if (step.ranks.empty()) step.ranks = ranks;
  if (step.ranks != ranks) Violate(absl::StrCat("step ", number, " has two rosters"));
  if (std::ssize(ranks) == options_.world_size) return;
  Note(RecoveryCount::kStepsOfFewer);
  if (2 * std::ssize(ranks) <= options_.world_size) Note(RecoveryCount::kStepsOfMinority);
  reference_holds_ = false;  // it is of all
}

void RecoverySimulation::NoteChain(const Member& member) {
  const wire::MemberReport report = member.core->Report();
  if (report.step == 0 || (report.newcomer && report.chain == 0)) return;
  const std::uint64_t known = chains_.try_emplace(report.step, report.chain).first->second;
  if (report.chain == known && known != 0) return;
  Violate(absl::StrCat("rank ", member.rank, " has another chain before step ", report.step));
}

// What only a member heard that is gone may be decided otherwise: there is nobody to contradict.
void RecoverySimulation::ForgetChainsOf(const Member& gone) {
  std::int64_t heard = 0;
  for (const auto& member : members_) {
    if (member == nullptr || member.get() == &gone || member->core == nullptr) continue;
    heard = std::max(heard, member->core->step());
  }
  chains_.erase(chains_.upper_bound(heard), chains_.end());
}

// What daemons said of steps that no member has heard of the end of is not known here.
void RecoverySimulation::CheckChains() {
  for (const auto& member : members_) {
    if (member->core != nullptr && member->core->outlives_daemon()) NoteChain(*member);
  }
  for (const auto& life : lives_) {
    for (const auto& [step, chain] : life->session->progress().digests().Range(0, steps_.size())) {
      const auto known = chains_.find(step + 1);
      if (known == chains_.end() || known->second == chain) continue;
      Violate(absl::StrCat("daemon ", life->number, " has another chain after step ", step));
    }
  }
}

void RecoverySimulation::OnChunk(Member& member, client::SendChunkEffect& effect) {
  if (member.in_place && !effect.announce && member.link != nullptr && !member.link->life->over) {
    const std::span<const std::byte> raw = effect.run->Raw(effect.range);
    for (const auto& [ticket, open] : member.buckets) {
      if (raw.empty() || open.id != effect.header.id.bucket) continue;
      const std::less<> before;
      if (before(raw.data(), open.buffer->data()) ||
          !before(raw.data(), open.buffer->data() + open.buffer->size())) {
        continue;  // kept gradients, of which the daemon knows no memory
      }
      const auto offset = static_cast<std::size_t>(raw.data() - open.buffer->data());
      auto place = std::make_shared<GradientPlace>(open.buffer, offset, raw.size(), member.rank,
                                                   member.link->id);
      effect.header.shared = wire::SharedBytes{
          .offset = place->offset(), .bytes = place->bytes(), .raw = true, .takes_result = true};
      member.core->Expose(effect.header.id.bucket);
      return SendUp(member, {.header = effect.header, .payload = std::move(place)});
    }
  }
  ByteVector bytes(effect.bytes);
  if (absl::Status status = effect.run->Encode(effect.range, bytes); !status.ok()) {
    return Violate(absl::StrCat("Encode: ", status.message()));
  }
  wire::PayloadRef payload = MakePayload(std::move(bytes), random_);
  if (effect.announce) {
    return SendUp(member, {.header = *effect.announce, .payload = std::move(payload)});
  }
  SendUp(member, {.header = effect.header, .payload = std::move(payload)});
}

// A process that was not in the session, and one that is of another session.
void RecoverySimulation::Stranger() {
  if (lives_.empty() || lives_.back()->over || lives_.back()->draining) return;
  Life& life = *lives_.back();
  if (life.session->state() != server::SessionCore::State::kJoining || life.number == 1) return;
  server::JoinAsk ask{.world_size = options_.world_size,
                      .rank = -1,
                      .start_id = 999,
                      .spec = options_.spec,
                      .manifest = options_.manifest};
  if (random_.Percent(50)) {
    ask.rank = random_.Between(0, options_.world_size - 1);
    ask.report = wire::MemberReport{
        .session_key = std::string(wire::kSessionKeyBytes, 'x'), .lineage = 4711, .step = 1000};
  }
  server::Effects effects;
  const auto rank = life.session->Join(ask, life.session->options().CheckSame(ask), now_, effects);
  Apply(life, std::move(effects));
  if (rank.ok()) Violate("a stranger was admitted");
  Note(RecoveryCount::kRefusedStrangers);
}

}  // namespace gradwire::sim
