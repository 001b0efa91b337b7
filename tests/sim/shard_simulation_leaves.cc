// What a leaf daemon of the simulation does besides its session: server/session/leaf_session.cc and
// server/leaf/client_upstream.cc, without their threads.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/reduce_now.h"
#include "tests/sim/shard_simulation.h"

namespace gradwire::sim {

// What the session asks for is done in its order, until it fails.
void ShardSimulation::Wish(Leaf& leaf, std::function<void()> wish) {
  leaf.last_wish = std::max(leaf.last_wish, now_ + Delay());
  After(leaf.last_wish - now_, [&leaf, wish = std::move(wish)] {
    if (!leaf.daemon->dead && leaf.daemon->session->failure().ok()) wish();
  });
}

void ShardSimulation::Answer(Leaf& leaf,
                             std::function<void(server::SessionCore&, server::Effects&)> answer) {
  leaf.last_answer = std::max(leaf.last_answer, now_ + Delay());
  After(leaf.last_answer - now_, [this, &leaf, answer = std::move(answer)] {
    if (leaf.daemon->dead) return;
    server::Effects effects;
    answer(*leaf.daemon->session, effects);
    Apply(*leaf.daemon, std::move(effects));
  });
}

void ShardSimulation::On(Daemon& daemon, server::UpstreamEffect& effect) {
  if (daemon.leaf == nullptr) return Violate("the root asks for something upstream");
  Leaf& leaf = *daemon.leaf;
  using What = server::UpstreamEffect::What;
  switch (effect.what) {
    case What::kJoin:
      return Wish(leaf, [this, &leaf] { JoinUpstream(leaf); });
    case What::kBucket:
      // Nothing of it was added up: its elements stay as they are.
      return Wish(leaf, [this, &leaf, parameters = effect.parameters] {
        Note(ShardCount::kEmptyBuckets);
        std::size_t numel = 0;
        for (const std::uint32_t p : parameters) numel += scenario_.options.manifest[p].numel();
        StartBucket(*leaf.client, parameters, ByteVector(numel * sizeof(float)));
      });
    case What::kEndStep:
      return Wish(leaf, [this, &leaf, step = effect.step] { EndUpstreamStep(leaf, step); });
    case What::kParameters:
      return Violate("a leaf tells of parameters, and its members have not");
    case What::kBarrier:
      return Wish(leaf, [this, &leaf] { EnterBarrier(*leaf.client); });
    case What::kBroadcast:
      return Wish(leaf, [this, &leaf, effect] { EnterRelay(leaf, effect); });
    case What::kBytes:
      return Wish(leaf, [this, &leaf, bytes = effect.payload] { Give(leaf, bytes); });
    case What::kRoom:
      return Wish(leaf, [this, &leaf, room = effect.room] { MakeRoom(leaf, room); });
  }
}

// ---- The session begins

void ShardSimulation::JoinUpstream(Leaf& leaf) {
  if (leaf.joined) return Violate("a leaf joins twice");
  leaf.joined = true;
  for (auto& link : leaf.client->links) {
    After(Delay(), [this, &one = *link] { Join(one); });
  }
}

// Members whose streams break now are welcomed when they resume.
void ShardSimulation::OnUpstreamJoined(Leaf& leaf) {
  for (Link* link : leaf.daemon->links) {
    if (link != nullptr) MaybeCut(*link, scenario_.cut_percent);
  }
  Answer(leaf, [](server::SessionCore& session, server::Effects& effects) {
    session.UpstreamJoined({}, effects);
  });
}

// ---- Sums

void ShardSimulation::ReduceAtLeaf(Leaf& leaf, const server::ReduceEffect& effect) {
  std::shared_ptr<Sum>& sum = leaf.sums[{effect.id.step, effect.id.bucket}];
  if (sum == nullptr) {
    sum = std::make_shared<Sum>();
    sum->parameters = *effect.parameters;
    for (const std::uint32_t p : sum->parameters) {
      sum->left += scenario_.options.manifest[p].numel();
    }
    sum->bytes.resize(sum->left * sizeof(float));
  }
  After(Delay(), [this, &leaf, sum, effect] {
    if (leaf.daemon->dead) return;
    const std::size_t numel = effect.segment.numel;
    if (effect.parameters == nullptr || *effect.parameters != sum->parameters ||
        numel > sum->left || effect.begin + numel > sum->bytes.size() / sizeof(float)) {
      return Violate(absl::StrCat("a leaf reduces ", numel, " elements from ", effect.begin,
                                  " on of a bucket of which ", sum->left, " are left"));
    }
    const ByteVector mean = Flatten(ReduceNow(effect, random_).result->kept().get());
    std::memcpy(sum->bytes.data() + effect.begin * sizeof(float), mean.data(), mean.size());
    sum->reductions.push_back(effect);
    sum->left -= numel;
    if (sum->left == 0) Wish(leaf, [this, &leaf, sum] { ReduceUpstream(leaf, sum); });
  });
}

void ShardSimulation::ReduceUpstream(Leaf& leaf, const std::shared_ptr<Sum>& sum) {
  OpenBucket& open = StartBucket(*leaf.client, sum->parameters, sum->bytes);
  open.done = [this, &leaf, sum, &open] {
    sum->bytes = open.bytes;
    SpreadOut(leaf, sum);
  };
  if (open.open == 0) open.done();
}

void ShardSimulation::SpreadOut(Leaf& leaf, const std::shared_ptr<Sum>& sum) {
  Answer(leaf, [this, sum](server::SessionCore& session, server::Effects& effects) {
    for (const server::ReduceEffect& reduction : sum->reductions) {
      const auto begin =
          sum->bytes.begin() + static_cast<std::ptrdiff_t>(reduction.begin * sizeof(float));
      ByteVector result(begin, begin + static_cast<std::ptrdiff_t>(reduction.segment.bytes()));
      session.Reduced(reduction.id, reduction.chunk,
                      server::KeptResult::Make(MakePayload(std::move(result), random_)), {},
                      absl::ZeroDuration(), effects);
    }
  });
}

// ---- The end of a step, and of the session

// The root may have concluded it before, because it has all parameters.
void ShardSimulation::EndUpstreamStep(Leaf& leaf, std::int64_t step) {
  leaf.asked = step;
  if (static_cast<std::int64_t>(leaf.client->steps) == step) EndStep(*leaf.client);
  MaybeConclude(leaf);
}

void ShardSimulation::MaybeConclude(Leaf& leaf) {
  if (!leaf.asked || *leaf.asked + 1 != static_cast<std::int64_t>(leaf.client->steps)) return;
  const std::int64_t step = *std::exchange(leaf.asked, std::nullopt);
  leaf.sums.clear();
  Answer(leaf, [this, step, verdict = leaf.verdict](server::SessionCore& session,
                                                    server::Effects& effects) {
    session.UpstreamConcluded(step, {.verdict = verdict}, now_, effects);
  });
}

void ShardSimulation::EndLeaf(Leaf& leaf) {
  using State = server::SessionCore::State;
  const State state = leaf.daemon->session->state();
  if (leaf.ended || (state != State::kFailed && state != State::kClosed)) return;
  leaf.ended = true;
  leaf.last_wish = std::max(leaf.last_wish, now_ + Delay());
  After(leaf.last_wish - now_, [this, &leaf] {
    Member& client = *leaf.client;
    if (client.over()) return;
    if (!leaf.joined) {
      client.left = true;
      return;
    }
    const server::SessionCore& session = *leaf.daemon->session;
    if (session.failure().ok()) return Leave(*client.links.front());
    client.failed = true;
    const server::LeafEnd end =
        server::EndOfLeaf(session.options().leaf, leaf.place.name(), session.options().name,
                          session.failure(), session.blamed_rank());
    FailAll(client, end.why, end.blamed_rank, nullptr);
  });
}

}  // namespace gradwire::sim
