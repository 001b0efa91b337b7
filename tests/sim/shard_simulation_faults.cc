// What ends a session of the simulation of shards before its last step.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/shard_simulation.h"

namespace gradwire::sim {

void ShardSimulation::MaybeFail() {
  bool done = true;
  switch (scenario_.fault) {
    case ShardFault::kNone:
    case ShardFault::kQuit:
      break;
    case ShardFault::kDeath:
      done = Die();
      break;
    case ShardFault::kCutOff:
      done = CutOff();
      break;
    case ShardFault::kEvicted:
      done = Evict();
      break;
    case ShardFault::kLeafDeath:
      done = LoseLeaf();
      break;
    case ShardFault::kAbsent:
      BeAbsent();
      break;
  }
  fault_due_ = !done;
}

// Once a session runs: before, there is nobody to miss it.
bool ShardSimulation::Die() {
  Member& member = *members_[static_cast<std::size_t>(scenario_.fault_rank)];
  if (member.over() || member.links.front()->leaving) return true;
  if (std::none_of(member.links.begin(), member.links.end(),
                   [](const auto& link) { return link->daemon->running(); })) {
    return false;
  }
  Note(ShardCount::kDeaths);
  fault_ = now_;
  member.dead = true;
  for (auto& link : member.links) CutForGood(*link);
  return true;
}

// Nobody takes its place. A session that runs already is what Die is for.
void ShardSimulation::BeAbsent() {
  Member& member = *members_[static_cast<std::size_t>(scenario_.fault_rank)];
  const auto joining = [](const auto& link) {
    return link->daemon->session->state() == server::SessionCore::State::kJoining;
  };
  if (!std::all_of(member.links.begin(), member.links.end(), joining)) return;
  Note(ShardCount::kAbsences);
  fault_ = now_;
  member.dead = true;
  for (auto& link : member.links) CutForGood(*link);
}

bool ShardSimulation::CutOff() {
  Member& member = scenario_.fault_leaf >= 0
                       ? *FaultyLeaf()->client
                       : *members_[static_cast<std::size_t>(scenario_.fault_rank)];
  Link& link = *member.links[std::min<std::size_t>(scenario_.fault_shard, member.links.size() - 1)];
  if (member.over() || link.leaving) return true;
  if (!link.daemon->running() || !link.attached) return false;
  Note(ShardCount::kCutOffs);
  fault_ = now_;
  CutForGood(link);
  // As Reconnect has it.
  After(scenario_.options.resume_grace, [this, &link] {
    if (link.owner->over() || link.leaving) return;
    client::Effects failed;
    link.core->Fail(absl::UnavailableError("lost the daemon"), failed);
    Apply(link, std::move(failed));
  });
  return true;
}

bool ShardSimulation::Evict() {
  Daemon& daemon =
      scenario_.fault_leaf >= 0 ? *FaultyLeaf()->daemon : *daemons_[scenario_.fault_shard];
  if (daemon.session->state() == server::SessionCore::State::kClosed) return true;
  if (!daemon.running()) return false;
  Note(ShardCount::kEvictions);
  fault_ = now_;
  server::Effects effects;
  daemon.session->Fail(absl::AbortedError("an operator evicted the session"), -1, effects);
  Apply(daemon, std::move(effects));
  return true;
}

// With its client. Its members find nobody there any more.
bool ShardSimulation::LoseLeaf() {
  Leaf& leaf = *FaultyLeaf();
  if (leaf.client->over() || leaf.client->links.front()->leaving) return true;
  if (!leaf.daemon->running()) return leaf.ended;
  Note(ShardCount::kLeafDeaths);
  fault_ = now_;
  leaf.daemon->dead = true;
  leaf.client->dead = true;
  for (auto& link : leaf.client->links) CutForGood(*link);
  for (Link* link : leaf.daemon->links) {
    if (link == nullptr) continue;
    CutForGood(*link);
    After(scenario_.options.resume_grace, [this, link] {
      if (link->owner->over()) return;
      client::Effects failed;
      link->core->Fail(absl::UnavailableError("lost the daemon"), failed);
      Apply(*link, std::move(failed));
    });
  }
  return true;
}

bool ShardSimulation::MaybeQuit(Member& member) {
  if (scenario_.fault != ShardFault::kQuit || member.rank != scenario_.fault_rank ||
      static_cast<std::int64_t>(member.steps) != scenario_.fault_before) {
    return false;
  }
  Note(ShardCount::kQuits);
  fault_ = now_;
  Leave(*member.links.front());
  return true;
}

// Null: the fault is at the root.
ShardSimulation::Leaf* ShardSimulation::FaultyLeaf() const {
  if (scenario_.fault_leaf >= 0)
    return leaves_[static_cast<std::size_t>(scenario_.fault_leaf)].get();
  if (scenario_.fault == ShardFault::kNone || scenario_.fault == ShardFault::kEvicted) {
    return nullptr;
  }
  return leaves_[scenario_.GroupOf(scenario_.fault_rank)].get();
}

// A loss is known after the grace, and everybody within two seconds. The root learns of one behind
// a leaf from that leaf, or after another grace.
absl::Duration ShardSimulation::ToldWithin() const {
  const server::SessionOptions& options = scenario_.options;
  absl::Duration within = options.resume_grace + absl::Seconds(2);
  if (scenario_.has_leaves()) within += options.resume_grace;
  if (scenario_.fault == ShardFault::kAbsent) within += options.join_timeout;
  // Others miss it when they begin the step.
  if (scenario_.fault == ShardFault::kQuit) within += absl::Seconds(2) + scenario_.longest_thought;
  return within;
}

void ShardSimulation::CheckTold() {
  if (!fault_ || now_ - *fault_ <= ToldWithin()) return;
  for (const auto& member : members_) {
    if (!member->over()) {
      Violate(absl::StrCat(member->client_of != nullptr ? "the leaf of " : "", "rank ",
                           member->rank, " was not told of the failure in time"));
    }
  }
  for (const auto& daemon : daemons_) {
    if (daemon->running()) {
      Violate(absl::StrCat("shard ", daemon->shard, " was not told of the failure in time"));
    }
  }
}

}  // namespace gradwire::sim
