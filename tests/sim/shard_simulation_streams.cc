// How members of the simulation of shards come and go, and what breaks on the way.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/shard_simulation.h"

namespace gradwire::sim {
namespace {

std::uint64_t StartId(int rank) { return static_cast<std::uint64_t>(rank) + 1; }

}  // namespace

server::JoinAsk ShardSimulation::AskOf(const Link& link) const {
  const Member& member = *link.owner;
  const server::SessionOptions& options = link.daemon->session->options();
  server::JoinAsk ask{.world_size = options.world_size,
                      .rank = member.rank,
                      .start_id = StartId(member.rank),
                      .spec = scenario_.options.spec,
                      .manifest = options.manifest,
                      .shard = link.shard(),
                      .addresses = options.shard.addresses};
  if (member.client_of != nullptr) {
    ask.leaf_ranks = member.client_of->place.ranks;
    ask.leaf = member.client_of->place.name();
  }
  if (member.behind != nullptr) {
    ask.node = {.first = member.behind->place.first, .members = member.behind->place.ranks};
  }
  return ask;
}

void ShardSimulation::Join(Link& link) {
  if (link.owner->over() || link.daemon->dead) return;
  const server::JoinAsk ask = AskOf(link);
  server::SessionCore& session = *link.daemon->session;
  server::Effects effects;
  const auto rank = session.Join(ask, session.options().CheckSame(ask), now_, effects);
  if (!rank.ok() && !fault_) Violate(std::string(rank.status().message()));
  Apply(*link.daemon, std::move(effects));
  After(Delay(), [this, &link] { Attach(link); });
}

// Frames follow the Hello at once; the daemon sees it later.
void ShardSimulation::Attach(Link& link) {
  if (link.owner->dead || link.cut_off || link.leaving || link.core->failed()) return;
  link.connection = next_connection_++;
  link.last_up = std::max(link.last_up, now_ + Delay());
  After(link.last_up - now_, [this, &link, connection = link.connection, step = link.core->step()] {
    if (link.connection == connection) OnHello(link, step);
  });
  if (!link.welcomed) return;
  Note(ShardCount::kResumes);
  client::Effects again;
  link.core->Resumed(again);
  Apply(link, std::move(again));
}

void ShardSimulation::OnHello(Link& link, std::int64_t step) {
  Daemon& daemon = *link.daemon;
  link.attached = true;
  if (daemon.running() && link.shard() > 0) {
    if (step == daemon.session->step() + 1) Note(ShardCount::kResumesAhead);
    if (step == daemon.session->step() - 1) Note(ShardCount::kResumesBehind);
  }
  server::Effects effects;
  const absl::Status attached = daemon.session->Attach(link.owner->rank, StartId(link.owner->rank),
                                                       step, link.connection, now_, effects);
  Apply(daemon, std::move(effects));
  if (attached.ok()) return;
  link.connection = 0;
  link.attached = false;
  if (link.leaving) return;  // its Leave was faster
  if (!fault_) Violate(std::string(attached.message()));
  After(Delay(), [this, &link, attached] {
    if (link.core->failed()) return;
    refused_ = true;
    client::Effects failed;
    link.core->Fail(attached, failed);
    Apply(link, std::move(failed));
  });
}

// The daemon sees the end of the stream behind all that was sent.
void ShardSimulation::Close(Link& link) {
  if (link.connection == 0) return;
  link.last_up = std::max(link.last_up, now_ + Delay());
  After(link.last_up - now_, [this, &link, connection = link.connection] {
    if (link.connection != connection) return;
    link.daemon->told |= link.core->failed() && !link.left;
    Cut(link);
  });
}

// A call of its own, which frames of the stream do not hold up.
void ShardSimulation::Leave(Link& link) {
  if (link.owner->over()) return;
  link.leaving = true;
  After(Delay(), [this, &link] {
    if (link.owner->over() || link.daemon->dead) return;
    Daemon& daemon = *link.daemon;
    if (daemon.running() && daemon.session->step() < link.core->step()) {
      Note(ShardCount::kEarlyLeaves);
    }
    server::Effects effects;
    const absl::Status left =
        daemon.session->Leave(link.owner->rank, StartId(link.owner->rank), now_, effects);
    Apply(daemon, std::move(effects));
    if (!left.ok()) return Violate(std::string(left.message()));
    After(Delay(), [this, &link] {
      link.left = true;
      Close(link);
      Member& member = *link.owner;
      if (member.over()) return;
      if (link.shard() + 1 < member.links.size()) return Leave(*member.links[link.shard() + 1]);
      member.left = true;
    });
  });
}

// ---- Streams that break

void ShardSimulation::Lose(const Link& link, const wire::Frame& frame) {
  if (std::holds_alternative<wire::Ready>(frame.header)) Note(ShardCount::kLostReady);
  if (std::holds_alternative<wire::Concluded>(frame.header)) Note(ShardCount::kLostConcluded);
  if (std::holds_alternative<wire::Prepared>(frame.header)) Note(ShardCount::kLostPrepared);
  if (std::holds_alternative<wire::StepDone>(frame.header)) Note(ShardCount::kLostStepDone);
  LoseWords(link, frame);
}

// Of trainers at the root others say the same; of a leaf nobody else does.
void ShardSimulation::LoseWords(const Link& link, const wire::Frame& frame) {
  if (!std::holds_alternative<wire::Failure>(frame.header)) return;
  lost_words_ |= IsFaulty(link.owner->client_of);
}

void ShardSimulation::MaybeCut(Link& link, int percent) {
  if (random_.Percent(percent)) Cut(link);
}

// A stream that the daemon does not know yet stays: the grace runs from the first break on.
void ShardSimulation::Cut(Link& link) {
  if (!link.attached || link.connection == 0) return;
  const std::uint64_t lost = std::exchange(link.connection, 0);
  link.attached = false;
  if (link.daemon->dead) return;
  server::Effects effects;
  link.daemon->session->Detach(link.owner->rank, lost, now_, effects);
  Apply(*link.daemon, std::move(effects));
  if (link.core->failed() || link.left) return;
  After(random_.Between(absl::ZeroDuration(), scenario_.options.resume_grace / 2),
        [this, &link] { Attach(link); });
}

void ShardSimulation::CutForGood(Link& link) {
  link.cut_off = true;
  Cut(link);
  // A Hello that is on its way is never seen.
  link.connection = 0;
}

}  // namespace gradwire::sim
