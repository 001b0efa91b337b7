// The members of a session that outlives its daemon, and what their users do.
#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "hooks/cpu/host_device.h"
#include "server/core/step.h"
#include "server/core/step_digests.h"
#include "tests/sim/places.h"
#include "tests/sim/recovery_simulation.h"

namespace gradwire::sim {
namespace {

constexpr std::byte kClipped{0x55};

}  // namespace

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
                                        .may_miss = late_}});
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
  if (welcome != nullptr && welcome->group && !member.welcomed) {  // as client::GroupedMember does
    member.core->SetGroup(static_cast<int>(welcome->group->group),
                          static_cast<int>(welcome->group->groups));
  }
  member.core->Receive(frame, effects);
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
      if (!model_is_lost_) {
        Violate(absl::StrCat("rank ", member.rank, " fails: ", failed->status.message()));
      }
    }
  }
}

// The memory is the user's again, who may clip the gradients before the step's end.
void RecoverySimulation::FinishBucket(OpenBucket& bucket) {
  if (bucket.done) Violate("a bucket is done twice");
  bucket.done = true;
  bucket.result = *bucket.buffer;
  bucket.is_changed = random_.Percent(50);
  if (bucket.is_changed) std::ranges::fill(*bucket.buffer, kClipped);
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
  reference_holds_ = false;  // it is of all
}

void RecoverySimulation::NoteChain(const Member& member) {
  const wire::MemberReport report = member.core->Report();
  if (report.step == 0 || (report.newcomer && report.chain == 0)) return;
  const std::uint64_t known = chains_.try_emplace(report.step, report.chain).first->second;
  if (report.chain == known && known != 0) return;
  Violate(absl::StrCat("rank ", member.rank, " has another chain before step ", report.step));
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

// ---- The user

bool RecoverySimulation::CanAct(const Member& member) const {
  if (!member.welcomed || member.finished() || member.in_collective || member.leaves) return false;
  const bool waits = member.ended && member.over.empty();
  return !waits && now_ >= member.sleeps_until;
}

void RecoverySimulation::Act(Member& member) {
  if (member.heals) return Heal(member);
  if (BeginLeave(member)) return;
  Step& step = steps_[member.step];
  if (member.next_bucket == 0 && !member.ended && member.order.empty()) {
    if (member.collectives < step.collectives.size()) return EnterCollective(member);
    if (member.rank == 0 && !member.has_set_plan && !draw_plan_.empty()) SetDrawPlan(member);
    member.order.resize(step.buckets.size());
    std::iota(member.order.begin(), member.order.end(), std::size_t{0});
    random_.Shuffle(member.order);
  }
  if (late_ && random_.Percent(6)) {
    member.sleeps_until = now_ + random_.Between(absl::Milliseconds(50), absl::Seconds(1));
    return;
  }
  if (member.next_bucket < member.order.size()) {
    const auto& parameters = step.buckets[member.order[member.next_bucket++]];
    // As the runtime has it: the rest of a dropped step is nothing.
    if (!member.over.empty() && member.over.front().dropped) return;
    if (late_ && TakePast(member, parameters)) return;
    if (!member.over.empty()) return Violate("a step ends before its last bucket");
    return StartBucket(member, parameters);
  }
  if (!member.ended && member.over.empty()) {
    member.ended = true;
    client::Effects effects;
    if (absl::Status ended = member.core->EndStep(effects); !ended.ok()) {
      Violate(absl::StrCat("EndStep: ", ended.message()));
    }
    return ApplyMember(member, std::move(effects));
  }
  FinishStep(member);
}

void RecoverySimulation::StartBucket(Member& member, const std::vector<std::uint32_t>& parameters) {
  const client::Ticket ticket = next_ticket_++;
  OpenBucket& open = member.buckets[ticket];
  open.id = parameters.front();
  open.buffer = std::make_shared<ByteVector>();
  std::vector<ParameterSpec> specs;
  for (const std::uint32_t p : parameters) specs.push_back(manifest_[p]);
  *open.buffer = Gradient(member.rank, member.step, parameters);
  open.bucket = std::make_unique<GradBucket>(
      *GradBucket::Make(0, {DType::kFloat32, open.buffer->data(), Numel(parameters)}, specs));
  client::Effects effects;
  if (absl::Status started = member.core->StartBucket(ticket, *open.bucket, effects);
      !started.ok()) {
    return Violate(absl::StrCat("StartBucket: ", started.message()));
  }
  NoteGradients(member, parameters);
  if (member.in_place && member.link != nullptr) member.core->SendAhead(open.id);
  ApplyMember(member, std::move(effects));
}

void RecoverySimulation::SetDrawPlan(Member& member) {
  Note(RecoveryCount::kDrawPlans);
  member.has_set_plan = true;
  client::Effects effects;
  if (absl::Status set = member.core->SetDrawPlan(draw_plan_, effects); !set.ok()) {
    Violate(absl::StrCat("SetDrawPlan: ", set.message()));
  }
  ApplyMember(member, std::move(effects));
}

// As the user's broadcast of a model and all that belongs to it.
void RecoverySimulation::Heal(Member& member) {
  member.broadcast = member.model;
  Enter(member, wire::CollectiveKind::kBroadcast, *member.heals);
}

void RecoverySimulation::Enter(Member& member, wire::CollectiveKind kind, int root) {
  member.in_collective = true;
  // As the runtime has it: the user has not heard of what makes it void.
  const bool has_change = std::any_of(member.over.begin(), member.over.end(),
                                      [](const auto& over) { return over.change.has_value(); });
  if (has_change) return FinishCollective(member, client::VoidCollective(kind));
  client::Effects effects;
  const auto entered = member.core->Enter(kind, root, member.broadcast.size(), effects);
  if (absl::IsFailedPrecondition(entered.status())) {
    return FinishCollective(member, entered.status());
  }
  if (!entered.ok()) Violate(absl::StrCat("Enter: ", entered.status().message()));
  ApplyMember(member, std::move(effects));
}

void RecoverySimulation::FinishCollective(Member& member, const absl::Status& status) {
  member.in_collective = false;
  if (absl::IsFailedPrecondition(status) && options_.shrinks()) {
    // Its root is gone, as all that are here hear. Who needs the model gets it from another one.
    if (!member.heals) ++member.collectives;
    member.heals.reset();
    return;
  }
  if (!status.ok()) {
    // The end of this step will say more; until then it goes on as the program is written.
    Note(RecoveryCount::kCollectivesVoid);
    if (!absl::IsAborted(status)) Violate("a collective fails");
    member.heals.reset();
    member.collectives = steps_[member.step].collectives.size();
    return;
  }
  if (member.heals) {
    Note(RecoveryCount::kHealed);
    member.model = member.broadcast;
    member.heals.reset();
    return;
  }
  ++member.collectives;
  for (std::size_t i = 0; i < member.broadcast.size(); ++i) {
    if (member.broadcast[i] == CollectiveByte(seed_, member.step, i)) continue;
    return Violate("a broadcast brought other bytes than the root's");
  }
}

void RecoverySimulation::EnterCollective(Member& member) {
  const auto kind = steps_[member.step].collectives[member.collectives];
  const bool is_broadcast = kind == wire::CollectiveKind::kBroadcast;
  Note(is_broadcast ? RecoveryCount::kBroadcasts : RecoveryCount::kBarriers);
  const std::size_t bytes = is_broadcast ? 150 : 0;
  member.broadcast.assign(bytes, std::byte{0});
  const int root = member.ranks.empty() ? 0 : member.ranks.front();
  if (member.rank == root) {
    for (std::size_t i = 0; i < bytes; ++i)
      member.broadcast[i] = CollectiveByte(seed_, member.step, i);
  }
  Enter(member, kind, root);
}

void RecoverySimulation::CheckBucket(const Member& member, std::size_t step,
                                     const OpenBucket& bucket) {
  for (const auto& parameters : steps_[step].buckets) {
    if (parameters.front() != bucket.id) continue;
    if (late_ || (is_power_sgd() && !reference_holds_)) {
      const auto& same = steps_[step].applied.try_emplace(bucket.id, bucket.result).first->second;
      if (bucket.result != same) Violate(absl::StrCat("step ", step, " has two results"));
      return;
    }
    if (is_power_sgd()) RunReference(step);
    const ByteVector expected =
        is_power_sgd() ? steps_[step].applied.at(bucket.id) : Expected(step, parameters);
    if (bucket.result != expected) {
      Violate(absl::StrCat("rank ", member.rank, " applies step ", step, " with another mean"));
    }
    const bool is_whole =
        bucket.is_changed
            ? std::ranges::all_of(*bucket.buffer, [](std::byte one) { return one == kClipped; })
            : *bucket.buffer == expected;
    if (!is_whole) Violate("results are written over a bucket that was done");
  }
}

bool RecoverySimulation::AllKeepGradients() const {
  return std::ranges::all_of(members_, [](const auto& one) { return one->keeps_gradients; });
}

void RecoverySimulation::FinishStep(Member& member) {
  const client::StepDoneEffect done = member.over.front();
  if (absl::Status ended = member.core->EndPast(done.step); !ended.ok()) {
    Violate(absl::StrCat("EndPast: ", ended.message()));
  }
  if (!done.ranks.empty()) member.ranks = done.ranks;
  if (std::cmp_greater(done.step, member.step)) {  // a newcomer has not been in those between
    member.step = static_cast<std::size_t>(done.step);
    if (member.finished()) return member.over.clear();
    // Nor has it any residual of them; the reference cannot have that of earlier ones only.
    reference_holds_ &= !member.has_applied;
    if (member.step + 1 < steps_.size()) steps_[member.step + 1].replaced.insert(member.rank);
  }
  Step& step = steps_[member.step];
  if (done.step != static_cast<std::int64_t>(member.step)) Violate("another step ends");
  if (step.verdict && *step.verdict != done.verdict) {
    Violate(absl::StrCat("step ", member.step, " is applied by some and skipped by others"));
  }
  step.verdict = done.verdict;
  if (done.verdict == Verdict::kApply) {
    Note(RecoveryCount::kApplied);
    if (std::cmp_less(members_.size(), options_.world_size)) Note(RecoveryCount::kStepsWithLeaves);
    if (member.core->roster() != nullptr && member.ranks != step.ranks) {
      Violate(
          absl::StrCat("rank ", member.rank, " was not told whose mean step ", member.step, " is"));
    }
    for (const auto& [ticket, bucket] : member.buckets) {
      if (!bucket.done) Violate("a step is applied without a bucket's result");
      CheckBucket(member, member.step, bucket);
    }
    if (member.buckets.size() != step.buckets.size()) Violate("a step is applied in part");
    const bool is_in =
        step.ranks.empty() || std::ranges::count(step.ranks, step.nonfinite_rank) > 0;
    if (step.nonfinite_rank >= 0 && is_in && !late_) Violate("a step with NaN is applied");
    member.model[member.step] = std::byte{1};
    member.has_model = member.has_applied = true;
    for (std::size_t s = 0; s <= member.step; ++s) {
      const bool applied = steps_[s].verdict == Verdict::kApply;
      if ((member.model[s] != std::byte{0}) == applied) continue;
      Violate(absl::StrCat("rank ", member.rank, " trains another model: step ", s));
    }
  } else {
    Note(done.dropped ? RecoveryCount::kDropped : RecoveryCount::kSkippedForValues);
    const bool all_kept = AllKeepGradients() && processes_ == 0 && !options_.shrinks();
    if (step.nonfinite_rank < 0 && all_kept) {
      Violate(absl::StrCat("step ", member.step, " is skipped, and its gradients are kept"));
    }
    const bool may_be_lost = step.lost_in || options_.shrinks();
    if (step.nonfinite_rank < 0 && !may_be_lost) {
      Violate(absl::StrCat("step ", member.step, " is skipped for no reason"));
    }
  }
  if (done.change && !done.change->newcomers.empty()) {
    member.heals = done.change->root;
    member.has_model &= std::ranges::count(done.change->newcomers, member.rank) == 0;
  }
  member.buckets.clear();
  member.over.pop_front();
  member.ended = false;
  member.next_bucket = 0;
  member.order.clear();
  member.collectives = 0;
  ++member.step;
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
