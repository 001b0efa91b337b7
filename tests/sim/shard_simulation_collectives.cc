// Barriers and broadcasts of the simulation of shards, and what a leaf passes on of them.
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/core/member_collectives.h"
#include "tests/sim/bytes.h"
#include "tests/sim/shard_simulation.h"

namespace gradwire::sim {

void ShardSimulation::NextCollective(Member& member) {
  if (member.over()) return;
  const auto step = static_cast<std::int64_t>(member.steps);
  if (step == scenario_.broadcast_step && member.broadcasts < scenario_.broadcasts.size()) {
    return EnterBroadcast(member);
  }
  if (step != scenario_.barrier_step || member.had_barrier) return StartBuckets(member);
  member.had_barrier = true;
  ++at_barrier_;
  EnterBarrier(member);
}

// As ShardedClient does it: on all shards.
void ShardSimulation::EnterBarrier(Member& member) {
  if (member.over()) return;
  member.entered = member.links.size();
  for (auto& link : member.links) {
    client::Effects effects;
    const auto entered = link->core->Enter(wire::CollectiveKind::kBarrier, 0, 0, effects);
    if (!entered.ok() && !link->core->failed()) Violate(std::string(entered.status().message()));
    Apply(*link, std::move(effects));
  }
}

ByteVector ShardSimulation::BroadcastBytes(std::size_t number) const {
  ByteVector bytes(scenario_.broadcasts[number].bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = CollectiveByte(scenario_.seed, number, i);
  }
  return bytes;
}

// On shard 0 alone.
void ShardSimulation::EnterBroadcast(Member& member) {
  const ShardScenario::Broadcast& plan = scenario_.broadcasts[member.broadcasts];
  member.broadcast =
      member.rank == plan.root ? BroadcastBytes(member.broadcasts) : ByteVector(plan.bytes);
  member.entered = 1;
  member.broadcasting = true;
  ++at_broadcasts_[member.broadcasts];
  Link& link = *member.links.front();
  client::Effects effects;
  const auto entered =
      link.core->Enter(wire::CollectiveKind::kBroadcast, plan.root, plan.bytes, effects);
  if (!entered.ok() && !link.core->failed()) Violate(std::string(entered.status().message()));
  Apply(link, std::move(effects));
}

void ShardSimulation::EndBroadcast(Member& member) {
  member.broadcasting = false;
  if (member.client_of != nullptr) return;  // its leaf knows
  if (at_broadcasts_[member.broadcasts] < scenario_.options.world_size) {
    Violate(absl::StrCat("rank ", member.rank, " is through broadcast ", member.broadcasts,
                         " that only ", at_broadcasts_[member.broadcasts],
                         " members have entered"));
  }
  if (member.broadcast != BroadcastBytes(member.broadcasts)) {
    Violate(
        absl::StrCat("rank ", member.rank, " has other bytes of broadcast ", member.broadcasts));
  }
  Note(ShardCount::kBroadcasts);
  ++member.broadcasts;
  After(Delay(), [this, &member] { NextCollective(member); });
}

void ShardSimulation::On(Link& link, client::CollectiveDoneEffect&) {
  Member& member = *link.owner;
  if (!member.broadcasting && at_barrier_ < scenario_.options.world_size) {
    Violate(absl::StrCat("rank ", member.rank, " is through a barrier that only ", at_barrier_,
                         " members have entered"));
  }
  if (--member.entered > 0) return;
  if (member.broadcasting) return EndBroadcast(member);
  if (member.client_of != nullptr) return GoOn(*member.client_of, {});
  Note(ShardCount::kBarriers);
  After(Delay(), [this, &member] { NextCollective(member); });
}

void ShardSimulation::On(Link& link, client::SendCollectiveEffect& effect) {
  Member& member = *link.owner;
  ByteVector bytes(effect.bytes);
  if (member.client_of != nullptr) {
    member.given.Read(effect.offset, bytes);
  } else if (effect.bytes > 0) {
    std::memcpy(bytes.data(), member.broadcast.data() + effect.offset, effect.bytes);
  }
  SendUp(link, {.header = effect.header, .payload = MakePayload(std::move(bytes), random_)});
}

void ShardSimulation::On(Link& link, client::ReceiveCollectiveEffect& effect) {
  Member& member = *link.owner;
  if (member.client_of != nullptr) {
    return GoOn(*member.client_of,
                {.what = server::UpstreamProgress::What::kBytes, .payload = effect.payload});
  }
  const ByteVector bytes = Flatten(effect.payload.get());
  std::memcpy(member.broadcast.data() + effect.offset, bytes.data(), bytes.size());
}

// ---- What a leaf passes on

void ShardSimulation::EnterRelay(Leaf& leaf, const server::UpstreamEffect& effect) {
  Member& client = *leaf.client;
  if (client.over()) return;
  Note(ShardCount::kRelays);
  client.entered = 1;
  client.broadcasting = true;
  client.given = {};
  Link& link = *client.links.front();
  client::Effects effects;
  const auto entered =
      link.core->Enter(wire::CollectiveKind::kBroadcast, effect.root, effect.bytes, effects);
  if (!entered.ok() && !link.core->failed()) Violate(std::string(entered.status().message()));
  if (entered.ok()) link.core->collectives().BeginRelay(effect.room);
  Apply(link, std::move(effects));
}

void ShardSimulation::Give(Leaf& leaf, const wire::PayloadRef& bytes) {
  Member& client = *leaf.client;
  if (client.over()) return;
  client.given.Add(bytes);
  client::Effects effects;
  client.links.front()->core->collectives().Give(bytes->bytes(), effects);
  Apply(*client.links.front(), std::move(effects));
}

void ShardSimulation::MakeRoom(Leaf& leaf, std::uint64_t room) {
  Member& client = *leaf.client;
  if (client.over()) return;
  client::Effects effects;
  client.links.front()->core->collectives().MakeRoom(room, effects);
  Apply(*client.links.front(), std::move(effects));
}

void ShardSimulation::GoOn(Leaf& leaf, const server::UpstreamProgress& progress) {
  Answer(leaf, [this, progress](server::SessionCore& session, server::Effects& effects) {
    session.UpstreamGoesOn(progress, now_, effects);
  });
}

void ShardSimulation::On(Link& link, client::RelayBegunEffect&) {
  GoOn(*link.owner->client_of, {});
}

void ShardSimulation::On(Link& link, client::RelayTakenEffect& effect) {
  link.owner->given.Drop(effect.kept_from);
  GoOn(*link.owner->client_of,
       {.what = server::UpstreamProgress::What::kTaken, .taken = effect.taken});
}

}  // namespace gradwire::sim
