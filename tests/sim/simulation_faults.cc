// What goes wrong: connections, processes, duplicates, replays, lies.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/lanes.h"
#include "server/core/step.h"
#include "tests/sim/simulation.h"

namespace gradwire::sim {

using State = server::SessionCore::State;
using MemberState = server::SessionCore::MemberState;

void Simulation::FireFaults() {
  for (std::size_t i = 0; i < faults_.size() && faults_[i].at_event <= events_;) {
    if (Fire(faults_[i])) {
      faults_.erase(faults_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;  // not possible now; perhaps later
    }
  }
}

// ---- An operator

void Simulation::FirePauses() {
  if (session_.state() == State::kJoining) return;
  for (; !pauses_.empty() && pauses_.front().at_event <= events_; pauses_.pop_front()) {
    PauseSteps(pauses_.front());
  }
}

void Simulation::PauseSteps(const OperatorPause& pause) {
  server::Effects effects;
  const absl::Status paused = session_.Pause(pause.length, "no power", now_, effects);
  Apply(std::move(effects));
  if (!paused.ok()) {
    if (session_.state() == State::kRunning) checker_.Violate(std::string(paused.message()));
    return;
  }
  Note(Count::kOperatorPauses);
  // The next tick after its end lifts it.
  ++waking_;
  After(pause.length + absl::Milliseconds(200), [this] { --waking_; });
  if (pause.resumed_after < pause.length) {
    After(
        pause.resumed_after, [this] { ResumeSteps(); }, true);
  }
}

// Another pause may have taken this one's place, or it is over.
void Simulation::ResumeSteps() {
  const bool can = session_.state() == State::kRunning && session_.progress().gate().paused();
  server::Effects effects;
  const absl::Status resumed = session_.Unpause(now_, effects);
  Apply(std::move(effects));
  if (resumed.ok() != can) checker_.Violate(absl::StrCat("resumed: ", resumed.ToString()));
}

void Simulation::CheckGate(std::int64_t step) {
  if (!session_.progress().gate().shut() || step != session_.step()) return;
  checker_.Violate(absl::StrCat("step ", step, " goes on while the session is paused"));
}

// ---- Faults

bool Simulation::Fire(const Fault& fault) {
  Process& process = *processes_[fault.process];
  if (!Healthy(process)) return false;
  const bool running = session_.state() == State::kRunning;
  switch (fault.kind) {
    case FaultKind::kCut:
      Cut(process, RandomOutage());
      return true;
    case FaultKind::kUnreachable:
      return BecomeUnreachable(process);
    case FaultKind::kBulkStuck:
      if (!running || !process.link->paired) return false;
      process.link->bulk_stuck = true;
      // What follows, a failure for example, waits behind the lane until the member has noticed.
      After((wire::kBulkSilences + 1) * scenario_.options.silence_timeout, [] {});
      return true;
    case FaultKind::kDeath:
      return Kill(process);
    case FaultKind::kShortStall:
      return Stall(process, false);
    case FaultKind::kLongStall:
      return Stall(process, true);
    case FaultKind::kDaemonPause:
      return PauseDaemon();
    case FaultKind::kEarlyLeave:
      if (!running || !process.welcomed || !process.buckets.empty()) return false;
      Note(Count::kEarlyLeaves);
      blamable_.insert(process.rank);
      Leave(process);
      return true;
    case FaultKind::kReplacement:
      return Replace(process);
    case FaultKind::kSuccession:
      return Succeed(process);
    case FaultKind::kDeaf:
      return TurnDeaf(process);
    case FaultKind::kWithholds:
      if (!running || !process.welcomed) return false;
      process.withholds = true;
      withholding_.insert(process.rank);
      blamable_.insert(process.rank);
      return true;
    case FaultKind::kHostile:
      if (!running || scenario_.world() == 1) return false;  // alone it fools only itself
      process.hostile = true;
      anyone_blamable_ = true;
      return true;
    case FaultKind::kOldGeneration:
      if (!running || run_.old_frames == nullptr) return false;
      process.replays_old_generation = true;
      blamable_.insert(process.rank);
      return true;
  }
  return false;
}

// In the session by both sides' knowledge, awake, and not about to go.
bool Simulation::Healthy(const Process& process) const {
  if (process.rank < 0 || process.dead || process.left || process.leaving ||
      process.link == nullptr || process.deaf) {
    return false;
  }
  // Streams that break one after another, before a frame of the daemon, all count against one
  // grace.
  if (process.reconnect->lost()) return false;
  if (process.link->cut || !process.link->attached || now_ < process.paused_until ||
      now_ < daemon_paused_until_ || process.member->failed()) {
    return false;
  }
  const auto current = current_.find(process.rank);
  return current != current_.end() && current->second == process.link &&
         session_.member_state(process.rank) == MemberState::kConnected &&
         (session_.state() == State::kRunning || session_.state() == State::kJoining);
}

// Of what is in flight, a first part of each lane still arrives. The rest is lost, or comes after
// the daemon has dropped the stream, under the old stream's number. The member gets through again
// after `outage`; none: it never tries.
void Simulation::Cut(Process& process, std::optional<absl::Duration> outage) {
  Link& link = *process.link;
  link.cut = true;
  Trace([&] { return absl::StrCat("cut of rank ", process.rank, "'s stream ", link.id); });
  const absl::Duration grace = scenario_.options.resume_grace;
  const absl::Time end = std::max({link.up.last(), link.down.last(), now_}) +
                         random_.Between(absl::ZeroDuration(), grace / 10);
  std::vector<wire::Frame> late;
  const auto arriving = [this](std::size_t length) { return random_.Below(length + 1); };
  link.up.Cut(arriving, [&](wire::Frame frame) {
    Note(Count::kFramesLost);
    if (random_.Percent(50)) late.push_back(std::move(frame));
  });
  link.down.Cut(arriving, [](const auto&) {});
  if (!outage || random_.Percent(80)) {  // else the daemon notices nothing until the next stream
    At(end, [this, &link] { Detach(link); });
  }
  for (const wire::Frame& frame : late) {
    if (std::holds_alternative<wire::Hello>(frame.header)) continue;
    At(end + random_.Between(grace / 20, grace / 2), [this, &link, frame] {
      const auto current = current_.find(link.rank);
      const bool is_current = current != current_.end() && current->second == &link;
      if (is_current && session_.member_state(link.rank) == MemberState::kConnected) return;
      Note(Count::kLateFramesOfOldConnections);
      server::Effects effects;
      session_.Receive(link.rank, link.id, frame, now_, effects);
      if (!effects.empty()) checker_.Violate("a frame of an old stream had an effect");
    });
  }
  if (!outage) return;
  process.unreachable_until = end + *outage;
  At(end, [this, &process, &link] { OnStreamEnd(process, link); });
}

// So short that the member gets through within the grace.
absl::Duration Simulation::RandomOutage() {
  return random_.Between(absl::ZeroDuration(), scenario_.options.resume_grace / 3);
}

bool Simulation::BecomeUnreachable(Process& process) {
  const absl::Duration grace = scenario_.options.resume_grace;
  blamable_.insert(process.rank);
  Cut(process, 3 * grace);
  // The connection ends within a tenth of the grace, and the last try takes a moment to fail.
  After(1.1 * grace + absl::Milliseconds(500), [this, &process] {
    if (process.dead || process.left || process.leaving || process.member->failed()) return;
    checker_.Violate(
        absl::StrCat("rank ", process.rank, " has not given up on an unreachable daemon"));
  });
  return true;
}

bool Simulation::Kill(Process& process) {
  Note(Count::kDeaths);
  Trace([&] { return absl::StrCat("rank ", process.rank, " dies"); });
  process.dead = true;
  blamable_.insert(process.rank);
  if (random_.Percent(75)) {
    Cut(process, std::nullopt);
  } else {
    process.link->cut = true;  // the machine is gone: nothing closes the stream
    process.link->up.Cut([](std::size_t) { return 0; }, [](const auto&) {});
  }
  return true;
}

bool Simulation::Stall(Process& process, bool deadly) {
  const absl::Duration silence = scenario_.options.silence_timeout;
  Note(deadly ? Count::kLongStalls : Count::kShortStalls);
  if (deadly) blamable_.insert(process.rank);
  process.paused_until = now_ + (deadly ? 3 * silence : silence / 2);
  Trace([&] { return absl::StrCat("rank ", process.rank, " stands still"); });
  ++waking_;
  At(process.paused_until, [this] { --waking_; });
  return true;
}

bool Simulation::Replace(const Process& process) {
  const int rank = process.rank;
  server::Effects effects;
  const server::JoinAsk ask{.world_size = scenario_.options.world_size,
                            .rank = rank,
                            .start_id = process.start_id + 1,
                            .spec = scenario_.options.spec,
                            .manifest = scenario_.options.manifest};
  const absl::StatusOr<int> joined =
      session_.Join(ask, session_.options().CheckSame(ask), now_, effects);
  const absl::Status attached =
      session_.Attach(rank, process.start_id + 1, session_.step(), 1'000'000'000, now_, effects);
  const absl::Status left = session_.Leave(rank, process.start_id + 1, now_, effects);
  if (joined.ok() || attached.ok() || left.ok() || !effects.empty()) {
    checker_.Violate(absl::StrCat("another process was taken for rank ", rank));
  }
  // Nor may the member itself come back with another model.
  std::vector<ParameterSpec> other = scenario_.options.manifest.list();
  other.push_back({.name = "another", .shape = {1}, .dtype = DType::kFloat32});
  const server::JoinAsk again{.world_size = scenario_.options.world_size,
                              .rank = rank,
                              .start_id = process.start_id,
                              .spec = scenario_.options.spec,
                              .manifest = other};
  if (session_.Join(again, session_.options().CheckSame(again), now_, effects).ok()) {
    checker_.Violate(absl::StrCat("rank ", rank, " joined again with another model"));
  }
  Note(Count::kReplacementsRefused);
  return true;
}

// ---- Members that are replaced, or do not read

// Before the session runs, and so early that the daemon notices before the last process joins.
bool Simulation::Succeed(Process& process) {
  if (session_.state() != State::kJoining || now_ > succession_until_) return false;
  Kill(process);
  blamable_.erase(process.rank);
  AddSuccessor(process);
  return true;
}

// The job starts the process again. It asks for the rank until the daemon has noticed that the
// first one is gone.
void Simulation::AddSuccessor(Process& gone) {
  Note(Count::kSuccessions);
  gone.left = true;
  processes_.push_back(std::make_unique<Process>());
  Process& process = *processes_.back();
  process.index = processes_.size() - 1;
  process.start_id = random_.Next() | 1;
  process.in_place = gone.in_place;
  process.asks_for = gone.rank;
  process.is_successor = true;
  After(random_.Between(absl::ZeroDuration(), absl::Seconds(1)),
        [this, &process] { AskToJoin(process); });
}

// Others whose streams break and resume make the daemon say so to all, and so to one that does not
// read.
bool Simulation::TurnDeaf(Process& process) {
  if (session_.state() != State::kRunning || !process.welcomed) return false;
  process.deaf = true;
  blamable_.insert(process.rank);
  Trace([&] { return absl::StrCat("rank ", process.rank, " reads no more"); });
  Provoke(process, 4 * scenario_.queue.max_frames);
  return true;
}

void Simulation::Provoke(Process& deaf, std::size_t times) {
  if (session_.state() != State::kRunning || deaf.dead || deaf.link->cut) return;
  if (deaf.link->down.waiting() > scenario_.queue.max_frames) {
    checker_.Violate(absl::StrCat(deaf.link->down.waiting(), " frames wait for rank ", deaf.rank,
                                  ", which does not read"));
  }
  if (times == 0) {  // nobody was left who could resume
    Kill(deaf);
    return;
  }
  for (const auto& process : processes_) {
    if (!Healthy(*process)) continue;
    Cut(*process, RandomOutage());
    break;
  }
  After(scenario_.options.resume_grace, [this, &deaf, times] { Provoke(deaf, times - 1); });
}

// While the daemon stands still, nobody hears it. For long enough, and all have lost it.
bool Simulation::PauseDaemon() {
  Note(Count::kDaemonPauses);
  const absl::Duration silence = scenario_.options.silence_timeout;
  daemon_paused_long_ = random_.Percent(30);
  daemon_paused_until_ =
      now_ + (daemon_paused_long_ ? random_.Between(silence + absl::Seconds(1), 2 * silence)
                                  : random_.Between(absl::Milliseconds(300), silence * 0.6));
  if (!daemon_paused_long_) return true;
  anyone_blamable_ = true;
  for (const auto& process : processes_) {
    if (!Healthy(*process)) continue;
    // The last that the daemon sent may still be on its way.
    const absl::Duration latest = silence + absl::Milliseconds(400);
    After(latest, [this, p = process.get(), link = process->link] {
      if (p->link != link || p->dead || p->leaving || link->cut) return;
      if (now_ < p->paused_until || p->member->failed()) return;
      checker_.Violate(absl::StrCat("rank ", p->rank, " waits for a silent daemon"));
    });
  }
  return true;
}

// ---- Frames that should not be

void Simulation::Disturb(Link& link, const wire::Frame& frame) {
  const auto current = current_.find(link.rank);
  if (current == current_.end() || current->second != &link ||
      session_.state() != State::kRunning) {
    return;
  }
  Process& process = *processes_[link.process];
  if (process.replays_old_generation) ReplayOldGeneration(link, frame);
  if (process.hostile && random_.Percent(15)) {
    Note(Count::kHostileFrames);
    Receive(link.rank, link.id, Malformed(process, frame));
  }
  if (random_.Percent(scenario_.stale_percent)) ReplayStale(link);
}

// A contribution that the session has had comes again down the member's stream.
void Simulation::Duplicate(Link& link, const wire::Frame& frame) {
  if (!random_.Percent(scenario_.duplicate_percent)) return;
  const auto again = [this, rank = link.rank, frame] {
    const auto current = current_.find(rank);
    const std::int64_t step = std::get<wire::Contribution>(frame.header).id.step;
    if (current == current_.end() || session_.state() != State::kRunning) return;
    if (step + 1 < session_.step()) return;  // no longer a duplicate that may be met
    Note(Count::kDuplicatesSent);
    Receive(rank, current->second->id, frame);
  };
  if (random_.Percent(50)) return again();
  After(random_.Between(absl::ZeroDuration(), 2 * scenario_.delay_high), again);
}

void Simulation::ReplayStale(Link& link) {
  const auto& frames = received_[static_cast<std::size_t>(link.rank)];
  if (frames.empty() || received_step_ != session_.step()) return;
  const wire::Frame& frame = frames[random_.Below(frames.size())];
  if (std::get<wire::Contribution>(frame.header).id.attempt >= session_.progress().attempt())
    return;
  Note(Count::kStaleAttemptsReplayed);
  Receive(link.rank, link.id, frame);
}

void Simulation::ReplayOldGeneration(Link& link, const wire::Frame& frame) {
  const auto fits = [&](const Captured& old) {
    if (old.rank != link.rank || old.frame.header.index() != frame.header.index()) return false;
    if (const auto* chunk = std::get_if<wire::Contribution>(&frame.header)) {
      const auto& other = std::get<wire::Contribution>(old.frame.header);
      return other.id == chunk->id && other.chunk == chunk->chunk;
    }
    return std::holds_alternative<wire::Announce>(frame.header) ||
           std::holds_alternative<wire::EndStep>(frame.header) ||
           std::holds_alternative<wire::Enter>(frame.header);
  };
  const auto found = std::find_if(run_.old_frames->begin(), run_.old_frames->end(), fits);
  if (found == run_.old_frames->end() || !random_.Percent(40)) return;
  Note(Count::kOldGenerationFrames);
  Receive(link.rank, link.id, found->frame);
}

wire::Frame Simulation::Malformed(const Process& process, const wire::Frame& like) {
  const std::uint64_t generation = scenario_.options.generation;
  const auto parameter = static_cast<std::uint32_t>(random_.Below(12));
  wire::Frame frame = like;
  if (auto* chunk = std::get_if<wire::Contribution>(&frame.header); chunk && random_.Percent(70)) {
    switch (random_.Below(8)) {
      case 0:
        chunk->rank = process.rank + 1;
        break;
      case 1:
        chunk->generation = generation + 1;
        break;
      case 2:
        chunk->chunk += 1000;
        break;
      case 3:
        chunk->id.step += random_.Between(1, 2);
        break;
      case 4:
        chunk->id.attempt += 1;
        break;
      case 5:
        chunk->id.bucket = parameter + 50;
        break;
      case 6:
        chunk->received += 100;
        break;
      default:
        frame.payload =
            MakePayload(ByteVector(like.payload->bytes() + 1 + random_.Below(100)), random_);
        break;
    }
    return frame;
  }
  const std::int64_t step = session_.step();
  const RoundPlan plan{{Segment{DType::kFloat32, random_.Below(40), ReduceOp::kMean}}};
  switch (random_.Below(8)) {
    case 0:
      return {.header = wire::Announce{step, generation, {parameter}, {plan}}};
    case 1:
      return {.header = wire::Announce{step, generation, {0, parameter}, {plan, plan}}};
    case 2:
      return {.header = wire::Announce{step + 1, generation, {}, {}}};
    case 3:
      return {.header = wire::EndStep{step, generation}};
    case 4:
      return {.header = wire::Ack{{step, 0, parameter, 0}, 9999}};
    case 5:
      return {.header = wire::StepDone{.step = step}};
    case 6:
      return {.header = wire::Enter{99, generation, wire::CollectiveKind::kBarrier, 7, 0}};
    default:
      return {.header = wire::CollectiveAck{0, 7}};
  }
}

}  // namespace gradwire::sim
