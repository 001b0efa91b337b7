// The cores of a member whose session outlives the loss of its shards, and what they tell each
// other.
#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/shard_reports.h"
#include "tests/sim/places.h"
#include "tests/sim/shard_recovery_simulation.h"

namespace gradwire::sim {

// ---- Streams

// A daemon that does not know the token is another one.
void ShardRecoverySimulation::Connect(Place& place) {
  if (place.life->over) return OnLost(place, std::nullopt);
  OpenLink(place, *place.life);
}

void ShardRecoverySimulation::OpenLink(Place& place, Life& life) {
  auto& link = links_.emplace_back(std::make_unique<Link>());
  *link = {.id = ++next_link_, .place = &place, .life = &life};
  place.link = link.get();
  place.stream = link->id;
  SendUp(place, {.header = wire::Hello{
                     .token = "t", .start_id = AskOf(place).start_id, .step = place.core->step()}});
  if (!place.welcomed) return;
  client::Effects effects;
  place.core->Resumed(effects);
  ApplyMember(place, std::move(effects));
}

void ShardRecoverySimulation::SendUp(Place& place, wire::Frame frame) {
  if (place.link == nullptr || place.link->life->over) return;
  place.link->up.push_back(std::move(frame));
}

void ShardRecoverySimulation::OnFrame(Place& place, const wire::Frame& frame) {
  client::Effects effects;
  const std::int64_t before = place.core->steps_reduced_again();
  const bool awaits = place.core->awaits_welcome();
  // As the client does where chunks wait on the way.
  if (random_.Percent(10)) {
    place.core->SetWindow(
        static_cast<std::uint32_t>(random_.Between(1, static_cast<int>(options_.window_chunks))));
  }
  place.core->Receive(frame, effects);
  if (place.core->steps_reduced_again() > before) Note(ShardRecoveryCount::kReducedAgain);
  ApplyMember(place, std::move(effects));
  const auto* welcome = std::get_if<wire::Welcome>(&frame.header);
  if (welcome == nullptr || place.core->failed()) return;
  if (!welcome->recovery) return Violate("a session that does not outlive its daemons");
  if (!awaits || place.shard != 0) return;
  for (Place& other : place.owner->places) {
    if (&other == &place) continue;
    Push(place, other, [this, &other, recovery = *welcome->recovery] { Follow(other, recovery); });
  }
}

// ---- Effects

void ShardRecoverySimulation::ApplyMember(Place& place, client::Effects effects) {
  for (client::Effect& effect : effects) {
    std::visit([&](auto& one) { On(place, one); }, effect);
  }
}

void ShardRecoverySimulation::On(Place& place, client::SendFrameEffect& effect) {
  SendUp(place, {.header = std::move(effect.header), .payload = std::move(effect.payload)});
}

// The chunk stays where it is, if that is in the user's buffer: of kept gradients the daemon knows
// no memory.
bool ShardRecoverySimulation::SendInPlace(Place& place, client::SendChunkEffect& effect) {
  const Member& member = *place.owner;
  if (!member.in_place || effect.announce || place.link == nullptr || place.link->life->over) {
    return false;
  }
  const std::span<const std::byte> raw = effect.run->Raw(effect.range);
  if (raw.empty()) return false;
  const std::less<> before;
  for (const auto& open : member.buckets) {
    const ByteVector& buffer = *open->buffer;
    if (before(raw.data(), buffer.data()) || !before(raw.data(), buffer.data() + buffer.size())) {
      continue;
    }
    const auto offset = static_cast<std::size_t>(raw.data() - buffer.data());
    auto memory = std::make_shared<GradientPlace>(open->buffer, offset, raw.size(), member.rank,
                                                  place.link->id);
    effect.header.shared = wire::SharedBytes{
        .offset = memory->offset(), .bytes = memory->bytes(), .raw = true, .takes_result = true};
    place.core->Expose(effect.header.id.bucket);
    SendUp(place, {.header = effect.header, .payload = std::move(memory)});
    return true;
  }
  return false;
}

void ShardRecoverySimulation::On(Place& place, client::SendChunkEffect& effect) {
  if (SendInPlace(place, effect)) return;
  ByteVector bytes(effect.bytes);
  if (absl::Status status = effect.run->Encode(effect.range, bytes); !status.ok()) {
    return Violate(absl::StrCat("Encode: ", status.message()));
  }
  wire::Frame frame{.header = effect.header, .payload = MakePayload(std::move(bytes), random_)};
  if (effect.announce) frame.header = *effect.announce;
  SendUp(place, std::move(frame));
}

void ShardRecoverySimulation::On(Place& place, client::SendCollectiveEffect& effect) {
  const auto* data = place.owner->broadcast.data() + effect.offset;
  SendUp(place, {.header = effect.header,
                 .payload = MakePayload(ByteVector(data, data + effect.bytes), random_)});
}

void ShardRecoverySimulation::On(Place& place, client::ReceiveCollectiveEffect& effect) {
  const ByteVector content = Flatten(effect.payload.get());
  std::ranges::copy(content,
                    place.owner->broadcast.begin() + static_cast<std::ptrdiff_t>(effect.offset));
}

void ShardRecoverySimulation::On(Place& place, client::WelcomeEffect& /*effect*/) {
  place.welcomed = true;
  welcomed_ = std::ranges::all_of(members_, [](const auto& member) {
    return std::ranges::all_of(member->places, [](const Place& one) { return one.welcomed; });
  });
}

// As Runtime: when the device is through. A resume repeats it, and another daemon decides anew.
void ShardRecoverySimulation::On(Place& place, client::PreparedEffect& effect) {
  if (!random_.Percent(device_percent_)) return Tell(place, effect);
  Note(ShardRecoveryCount::kLateDevices);
  place.calls.emplace_back([this, &place, effect, stream = place.stream] {
    if (stream == place.stream && !place.is_lost) Tell(place, effect);
  });
}

void ShardRecoverySimulation::Tell(Place& place, const client::PreparedEffect& effect) {
  Member& member = *place.owner;
  const auto outcome = member.vote.OnPrepared(place.shard, effect);
  if (!outcome.ok()) return Violate(std::string(outcome.status().message()));
  if (!*outcome) return;
  if ((*outcome)->verdict != effect.verdict) Note(ShardRecoveryCount::kSkipsOfOthers);
  Push(place, member.lead(), [this, &lead = member.lead(), said = **outcome] {
    client::Effects effects;
    lead.core->SayReady(said.verdict, said.digest, effects);
    ApplyMember(lead, std::move(effects));
  });
}

void ShardRecoverySimulation::On(Place& place, client::StepDoneEffect& effect) {
  Member& member = *place.owner;
  if (place.shard == 0) {
    NoteChain(place);
    member.vote.Conclude(member.vote.step());
    for (Place& other : member.places) {
      if (&other == &place) continue;
      Push(place, other, [this, &other, effect] {
        client::Effects effects;
        other.core->ConcludeAs(effect, effects);
        ApplyMember(other, std::move(effects));
      });
    }
  }
  if (effect.step != static_cast<std::int64_t>(place.steps_told + place.over.size())) {
    Violate(absl::StrCat("rank ", member.rank, ", shard ", place.shard, ": step ", effect.step,
                         " ends out of turn; ", Where()));
  }
  place.over.push_back(effect);
  if (std::exchange(place.ends_step, false)) TellEnd(place);
}

// The same for all members, whose reports go to shard 0.
void ShardRecoverySimulation::NoteChain(const Place& lead) {
  const wire::MemberReport report = lead.core->Report();
  const std::uint64_t known = chains_.try_emplace(report.step, report.chain).first->second;
  if (report.chain == known && (known != 0) == (report.step > 0)) return;
  Violate(absl::StrCat("rank ", lead.owner->rank, " has another chain before step ", report.step));
}

void ShardRecoverySimulation::CheckChains() {
  for (const auto& member : members_) {
    if (member->lead().core->outlives_daemon()) NoteChain(member->lead());
  }
}

void ShardRecoverySimulation::On(Place& place, client::FailedEffect& effect) {
  Violate(absl::StrCat("rank ", place.owner->rank, " fails at shard ", place.shard, ": ",
                       effect.status.message(), "; ", Where()));
}

// ---- Losses

void ShardRecoverySimulation::Push(Place& from, Place& to, std::function<void()> call) {
  if (from.pushes.empty() && !random_.Percent(stall_percent_)) {
    to.calls.push_back(std::move(call));
    return;
  }
  Note(ShardRecoveryCount::kLatePushes);
  from.pushes.emplace_back(&to, std::move(call));
}

void ShardRecoverySimulation::OnLost(Place& place, std::optional<std::uint64_t> asked) {
  place.is_lost = true;
  Member& member = *place.owner;
  const client::ShardLosses::Next next =
      member.losses.OnLost(place.shard, {.report = place.core->Report(), .asked = asked});
  if (next.report) member.vote.Restart();
  for (const std::uint32_t other : next.ask) {
    Push(place, member.places[other],
         [this, &one = member.places[other], lost = place.shard, number = next.number] {
           AskToGather(one, lost, number);
         });
  }
  if (next.ends_with) Violate("a session ends with its daemon");
  if (!next.report) return;
  Push(place, member.lead(), [this, &lead = member.lead(), report = *next.report] {
    if (lead.is_lost) BeginRejoin(lead, report);
  });
}

void ShardRecoverySimulation::AskToGather(Place& place, std::uint32_t lost_shard,
                                          std::uint64_t number) {
  // The place that told it was slow: all were lost since, or this one knows already.
  if (!place.owner->losses.IsAsked(place.shard, number)) {
    return Note(ShardRecoveryCount::kOldAsks);
  }
  if (!place.is_lost) {
    Note(ShardRecoveryCount::kAskedToGather);
    client::Effects effects;
    place.core->AskToGather(lost_shard, effects);
    return ApplyMember(place, std::move(effects));
  }
  Note(ShardRecoveryCount::kAskedWithoutPlace);
  GiveUpJoin(place);
  OnLost(place, number);
}

void ShardRecoverySimulation::Follow(Place& place, const wire::Recovery& lead) {
  // Another loss may have been told since.
  if (!place.is_lost || place.owner->losses.HasTold(place.shard)) return;
  place.life_of_lead = lead.life;
  BeginRejoin(place, client::ReportToFollow(place.core->Report(), lead.roster));
}

void ShardRecoverySimulation::BeginRejoin(Place& place, const wire::MemberReport& report) {
  GiveUpJoin(place);
  auto& call = calls_.emplace_back(std::make_unique<Call>());
  call->place = &place;
  call->number = place.tries;
  call->ask = AskOf(place);
  call->ask.report = report;
}

// The daemon may get it all the same.
void ShardRecoverySimulation::GiveUpJoin(Place& place) {
  ++place.tries;
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    Call& call = *calls_[i];
    if (call.place != &place || call.abandoned || call.answer != nullptr) continue;
    Note(ShardRecoveryCount::kJoinsGivenUp);
    call.abandoned = true;
  }
}

server::JoinAsk ShardRecoverySimulation::AskOf(const Place& place) const {
  return {.world_size = options_.world_size,
          .rank = place.owner->rank,
          .start_id = Mix(seed_, 5, place.owner->rank) | 1,
          .spec = options_.spec,
          .manifest = options_.manifest,
          .shard = place.shard,
          .life = place.life_of_lead,
          .addresses = options_.shard.addresses};
}

void ShardRecoverySimulation::OnJoined(Place& place, Life& life) {
  place.life = &life;
  place.is_lost = false;
  place.core->Rejoined(life.number);
  if (!life.over) OpenLink(place, life);
}

}  // namespace gradwire::sim
