// What the members of the simulation of shards do.
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/leaf_weight.h"
#include "tests/sim/bytes.h"
#include "tests/sim/shard_simulation.h"

namespace gradwire::sim {

// A commit is allowed only while the step is concluded with APPLY.
void ShardSimulation::Deliver(Link& link, const wire::Frame& frame) {
  if (link.left) return;
  const auto* done = std::get_if<wire::StepDone>(&frame.header);
  const auto* restart = std::get_if<wire::Restart>(&frame.header);
  if (restart != nullptr && restart->step > link.core->step()) Note(ShardCount::kEarlyRestarts);
  link.hook->AllowCommit(done != nullptr && done->verdict == Verdict::kApply && link.shard() == 0);
  // As the client does where chunks wait on the way.
  if (random_.Percent(10)) {
    const int most = static_cast<int>(link.daemon->session->options().window_chunks);
    link.core->SetWindow(static_cast<std::uint32_t>(random_.Between(1, most)));
  }
  client::Effects effects;
  link.core->Receive(frame, effects);
  link.hook->AllowCommit(false);
  Apply(link, std::move(effects));
}

void ShardSimulation::Apply(Link& link, client::Effects effects) {
  for (client::Effect& effect : effects) {
    std::visit([&](auto& one) { On(link, one); }, effect);
  }
  if (link.sending || !link.core->has_chunks()) return;
  link.sending = true;
  After(Delay(), [this, &link] {
    link.sending = false;
    if (link.owner->dead || !link.core->has_chunks()) return;
    client::Effects more;
    link.core->SendNext(more);
    Apply(link, std::move(more));
  });
}

void ShardSimulation::On(Link& link, client::SendFrameEffect& effect) {
  SendUp(link, {.header = std::move(effect.header)});
}

void ShardSimulation::On(Link& link, client::SendChunkEffect& effect) {
  if (link.core->failed()) return;
  ByteVector bytes(effect.bytes);
  if (absl::Status encoded = effect.run->Encode(effect.range, bytes); !encoded.ok()) {
    return Violate(std::string(encoded.message()));
  }
  wire::Frame frame{.header = effect.header, .payload = MakePayload(std::move(bytes), random_)};
  if (effect.announce) frame.header = *effect.announce;
  SendUp(link, std::move(frame));
}

void ShardSimulation::On(Link& link, client::WelcomeEffect&) {
  link.welcomed = true;
  Member& member = *link.owner;
  const std::uint32_t groups = link.core->leaf_groups();
  const int ranks = member.client_of != nullptr ? member.client_of->place.ranks : 1;
  if (groups > 0) member.weight = client::LeafWeight(ranks, groups, scenario_.options.world_size);
  if (++member.welcomed < member.links.size()) return;
  if (member.client_of != nullptr) return OnUpstreamJoined(*member.client_of);
  After(Delay(), [this, &member] { BeginStep(member); });
}

// ---- The job

void ShardSimulation::BeginStep(Member& member) {
  if (member.over()) return;
  if (member.steps == scenario_.steps.size()) return Leave(*member.links.front());
  if (MaybeQuit(member)) return;
  const auto step = static_cast<std::int64_t>(member.steps);
  if (member.rank == 0 && step == scenario_.draw_plan_step) SetDrawPlan(member);
  NextCollective(member);
}

void ShardSimulation::SetDrawPlan(Member& member) {
  Note(ShardCount::kDrawPlans);
  for (auto& link : member.links) {
    client::Effects effects;
    absl::Status set = link->core->SetDrawPlan(scenario_.draw_plan, effects);
    if (!set.ok() && !fault_) Violate(std::string(set.message()));
    Apply(*link, std::move(effects));
  }
}

void ShardSimulation::StartBuckets(Member& member) {
  if (member.over()) return;
  auto order = scenario_.steps[member.steps];
  random_.Shuffle(order);
  absl::Duration at = absl::ZeroDuration();
  for (const auto& parameters : order) {
    at += random_.Between(absl::ZeroDuration(), scenario_.longest_thought);
    After(at, [this, &member, parameters] {
      if (member.over()) return;
      ByteVector gradients;
      for (const std::uint32_t p : parameters) {
        const ByteVector bytes =
            scenario_.GradientBytes(member.rank, static_cast<std::int64_t>(member.steps), p);
        gradients.insert(gradients.end(), bytes.begin(), bytes.end());
      }
      StartBucket(member, parameters, std::move(gradients));
    });
  }
  if (!scenario_.ended[member.steps]) return;
  After(at + Delay(), [this, &member, step = member.steps] {
    // All parameters may have been reduced before.
    if (member.steps == step) EndStep(member);
  });
}

ShardSimulation::OpenBucket& ShardSimulation::StartBucket(
    Member& member, const std::vector<std::uint32_t>& parameters, std::vector<std::byte> bytes) {
  OpenBucket& open = *member.buckets.emplace_back(std::make_unique<OpenBucket>());
  open.parameters = parameters;
  open.bytes = std::move(bytes);
  std::vector<ParameterSpec> specs;
  for (const std::uint32_t p : parameters) specs.push_back(scenario_.options.manifest[p]);
  const std::size_t numel = open.bytes.size() / sizeof(float);
  open.whole = std::make_unique<GradBucket>(
      *GradBucket::Make(0, {DType::kFloat32, open.bytes.data(), numel}, specs));
  if (member.weight != 1) {
    client::Weigh(open.whole->buffer(), member.weight);
    Note(ShardCount::kWeighedBuckets);
  }
  auto parts = (member.behind != nullptr ? undivided_ : divide_).Divide(*open.whole);
  if (!parts.ok()) {
    Violate(std::string(parts.status().message()));
    return open;
  }
  open.parts = *std::move(parts);
  open.open = open.parts.size();
  const bool slices = scenario_.map->has_slices();
  if (slices && open.parts.size() > 1 && numel > 2 * Slice::kGrain * open.parts.size()) {
    Note(ShardCount::kSlicedBuckets);
  }
  if (!slices && open.parts.size() > 1) Note(ShardCount::kDividedBuckets);
  for (client::ShardBucket& part : open.parts) {
    Link& link = *member.links[part.shard];
    const client::Ticket ticket = next_ticket_++;
    member.parts[ticket] = &open;
    client::Effects effects;
    const absl::Status started = link.core->StartBucket(ticket, part.bucket, effects);
    if (!started.ok() && !link.core->failed()) Violate(std::string(started.message()));
    Apply(link, std::move(effects));
  }
  return open;
}

void ShardSimulation::EndStep(Member& member) {
  if (member.over()) return;
  for (auto& link : member.links) {
    if (link->core->step() != static_cast<std::int64_t>(member.steps)) continue;
    client::Effects effects;
    const absl::Status ended = link->core->EndStep(effects);
    if (!ended.ok() && !link->core->failed()) Violate(std::string(ended.message()));
    Apply(*link, std::move(effects));
  }
}

void ShardSimulation::On(Link& link, client::BucketDoneEffect& effect) {
  if (!effect.status.ok()) {
    if (!fault_) Violate(absl::StrCat("a bucket failed: ", effect.status.message()));
    return;
  }
  OpenBucket* const bucket = link.owner->parts.at(effect.ticket);
  if (--bucket->open == 0 && bucket->done) bucket->done();
}

// ---- What ShardExchange does

void ShardSimulation::On(Link& link, client::PreparedEffect& effect) {
  After(Delay(), [this, &link, effect] {
    Member& member = *link.owner;
    if (member.over()) return;
    const auto outcome = member.vote.OnPrepared(link.shard(), effect);
    if (!outcome.ok()) return Violate(std::string(outcome.status().message()));
    if (!*outcome) return;
    if ((*outcome)->verdict != effect.verdict) Note(ShardCount::kSkipsOfOthers);
    Link& lead = *member.links.front();
    client::Effects effects;
    lead.core->SayReady((*outcome)->verdict, (*outcome)->digest, effects);
    Apply(lead, std::move(effects));
  });
}

void ShardSimulation::On(Link& link, client::StepDoneEffect& effect) {
  Member& member = *link.owner;
  if (link.shard() == 0) {
    CheckStep(member, effect.step, effect.verdict);
    member.vote.Conclude(member.vote.step());
    ConcludeOthers(member, effect.verdict);
  }
  if (++member.concluded < member.links.size()) return;
  member.concluded = 0;
  member.buckets.clear();
  member.parts.clear();
  ++member.steps;
  Note(effect.verdict == Verdict::kApply ? ShardCount::kSteps : ShardCount::kSkips);
  if (Leaf* const leaf = member.client_of; leaf != nullptr) {
    leaf->verdict = effect.verdict;
    return MaybeConclude(*leaf);
  }
  After(Delay(), [this, &member] { BeginStep(member); });
}

void ShardSimulation::ConcludeOthers(Member& member, Verdict verdict) {
  for (std::size_t shard = 1; shard < member.links.size(); ++shard) {
    After(Delay(), [this, &link = *member.links[shard], verdict] {
      if (link.owner->dead) return;
      link.hook->AllowCommit(verdict == Verdict::kApply);
      client::Effects effects;
      link.core->ConcludeAs({.step = link.core->step(), .verdict = verdict}, effects);
      link.hook->AllowCommit(false);
      Apply(link, std::move(effects));
    });
  }
}

void ShardSimulation::On(Link& link, client::FailedEffect& effect) {
  if (effect.last_words && !link.left) SendUp(link, {.header = *effect.last_words});
  Close(link);
  Member& member = *link.owner;
  if (std::exchange(member.failed, true)) return;
  Note(ShardCount::kFailures);
  CheckWords(link, effect);
  FailAll(member, effect.status, effect.blamed_rank, &link);
  if (member.client_of == nullptr) return;
  Answer(*member.client_of, [effect](server::SessionCore& session, server::Effects& effects) {
    session.FailElsewhere(effect.status, effect.blamed_rank, effects);
  });
}

void ShardSimulation::FailAll(Member& member, const absl::Status& why, int blamed_rank,
                              const Link* but) {
  for (auto& link : member.links) {
    if (link.get() == but) continue;
    After(Delay(), [this, &one = *link, why, blamed_rank] {
      if (one.owner->dead) return;
      client::Effects effects;
      one.core->FailElsewhere(why, blamed_rank, effects);
      Apply(one, std::move(effects));
    });
  }
}

}  // namespace gradwire::sim
