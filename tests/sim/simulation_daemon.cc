// The simulation's daemon: a table of streams, and the session's effects.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "hooks/reduce.h"
#include "proto/wire/frame_priority.h"
#include "server/core/step.h"
#include "tests/sim/simulation.h"

namespace gradwire::sim {
namespace {

// The ranks that a sentence names: the numbers after "rank" and "ranks".
std::set<int> RanksIn(const std::string& text) {
  std::set<int> ranks;
  for (std::size_t at = text.find("rank"); at != std::string::npos;
       at = text.find("rank", at + 1)) {
    std::size_t digit = text.find(' ', at);
    while (digit != std::string::npos && digit + 1 < text.size() && text[digit + 1] >= '0' &&
           text[digit + 1] <= '9') {
      const std::size_t end = text.find_first_not_of("0123456789", digit + 1);
      int rank = 0;
      if (!absl::SimpleAtoi(text.substr(digit + 1, end - digit - 1), &rank)) break;
      ranks.insert(rank);
      if (end == std::string::npos || text[end] != ',') break;
      digit = end + 1;
    }
  }
  return ranks;
}

server::ResultRef ReduceInputs(const server::ReduceEffect& effect, Random& random, bool& finite) {
  std::vector<Pieces> inputs;
  std::vector<wire::PayloadRef> places;
  for (const wire::PayloadRef& input : effect.inputs) {
    inputs.push_back(input->pieces());
    if (input->takes_result()) places.push_back(input);
  }
  const Segment& segment = effect.segment;
  ByteVector out(segment.bytes());
  finite = (segment.op == ReduceOp::kOrthonormalizedSum
                ? ReduceOrthonormalized(segment, inputs, out)
                : Reduce(segment.dtype, segment.op, segment.numel, inputs, out, effect.raw,
                         effect.weight))
               .finite;
  if (places.empty()) return server::KeptResult::Make(MakePayload(std::move(out), random));
  const bool keeps = places.size() < inputs.size();
  return std::make_shared<PlacedResult>(std::move(out), segment.dtype, effect.raw.dtype,
                                        std::move(places), keeps, random);
}

}  // namespace

bool Simulation::DaemonPaused(const std::function<void()>& again, bool background) {
  if (now_ >= daemon_paused_until_) return false;
  At(daemon_paused_until_, again, background);
  return true;
}

void Simulation::Tick() {
  if (DaemonPaused([this] { Tick(); }, true)) return;
  server::Effects effects;
  session_.Tick(now_, effects);
  Apply(std::move(effects));
  CheckWaiting();
  After(
      absl::Milliseconds(100), [this] { Tick(); }, true);
}

// When all that could move has moved, the session must name who it waits for, and nobody else.
void Simulation::CheckWaiting() {
  if (session_.state() != server::SessionCore::State::kRunning || foreground_ != waking_) return;
  if (session_.progress().gate().shut()) {
    Note(Count::kHeldSteps);
    if (absl::StrContains(session_.WaitingFor(now_), "paused by an operator for another ")) return;
    return checker_.Violate(absl::StrCat("paused, and says: ", session_.WaitingFor(now_)));
  }
  std::set<int> culprits;
  for (const auto& process : processes_) {
    if (!process->left && (process->dead || now_ < process->paused_until)) {
      culprits.insert(process->rank);
    }
    const bool cut_off = process->link != nullptr
                             ? process->link->bulk_stuck
                             : process->lost_daemon || now_ < process->unreachable_until;
    if (process->deaf || process->withholds || cut_off) culprits.insert(process->rank);
  }
  if (culprits.empty() || anyone_blamable_) return;
  const std::string text = session_.WaitingFor(now_);
  const std::set<int> named = RanksIn(text);
  Trace([&] { return absl::StrCat("waiting: ", text); });
  if (named.empty() ||
      !std::includes(culprits.begin(), culprits.end(), named.begin(), named.end())) {
    return checker_.Violate(absl::StrCat("only ranks ", absl::StrJoin(culprits, ", "),
                                         " stand still, and the session says: ", text));
  }
  Note(Count::kWaitsExplained);
}

void Simulation::Apply(server::Effects effects) {
  FollowCommit();
  while (!effects.empty()) {
    server::Effects more;
    for (server::Effect& effect : effects) {
      std::visit([&](auto& e) { OnEffect(e, more); }, effect);
    }
    effects = std::move(more);
    FollowCommit();
  }
}

// Before a member hears of a step's end: what the coordinator has made of the step.
void Simulation::FollowCommit() {
  if (session_.step() == std::exchange(committed_, session_.step()) || !scenario_.power_sgd) return;
  if (session_.state() == server::SessionCore::State::kFailed) return;
  const absl::StatusOr<HookState> state = ExportState();
  if (!state.ok()) return checker_.Violate(std::string(state.status().message()));
  checker_.OnCommitted(committed_ - 1, *state);
}

absl::StatusOr<HookState> Simulation::ExportState() const {
  const absl::StatusOr<server::StateSnapshot> snapshot = session_.Export();
  if (!snapshot.ok()) return snapshot.status();
  return snapshot->State();
}

// What the session has, again: all members get it anew, and nothing else changes.
void Simulation::Reimport() {
  if (session_.state() != server::SessionCore::State::kRunning) return;
  const absl::StatusOr<HookState> state = ExportState();
  absl::Status status = state.status();
  if (status.ok()) status = session_.CheckImport();
  server::Effects effects;
  if (status.ok()) {
    const auto import = session_.ReadState(*state);
    status = import.ok() ? session_.Install(**import, effects) : import.status();
  }
  if (!status.ok()) {
    if (!anyone_blamable_) checker_.Violate(std::string(status.message()));
    return;
  }
  Note(Count::kStateImports);
  for (const auto& process : processes_) {
    if (process->dead || process->hook == nullptr) continue;
    process->resets = static_cast<const WatchedHook*>(process->hook.get())->resets();
  }
  Apply(std::move(effects));
}

void Simulation::OnEffect(server::SendEffect& effect, server::Effects&) {
  if (const auto* grant = std::get_if<wire::Grant>(&effect.frame.header)) CheckGate(grant->id.step);
  SendDown(effect.rank, effect.frame, effect.keeper);
}

void Simulation::OnEffect(server::FanOutEffect& effect, server::Effects&) {
  for (int rank : effect.ranks) SendDown(rank, effect.frame);
}

void Simulation::OnEffect(server::ResultEffect& effect, server::Effects&) {
  for (int rank : effect.ranks) {
    const auto found = current_.find(rank);
    if (found != current_.end()) SendResult(*found->second, effect);
  }
}

void Simulation::OnEffect(server::ReduceEffect& effect, server::Effects& more) {
  CheckGate(effect.id.step);
  bool finite = true;
  const bool keeps_nothing =
      effect.in_place && std::all_of(effect.inputs.begin(), effect.inputs.end(),
                                     [](const auto& input) { return input->takes_result(); });
  if (!keeps_nothing) checker_.OnReduction(effect.id, effect.chunk);
  if (effect.segment.bytes() > scenario_.options.chunk_bytes) Note(Count::kUnitsOfSeveralChunks);
  server::ResultRef result = ReduceInputs(effect, random_, finite);
  if (random_.Percent(scenario_.reduce_inline_percent)) {
    return session_.Reduced(effect.id, effect.chunk, std::move(result), {.finite = finite},
                            absl::ZeroDuration(), more);
  }
  After(random_.Between(absl::ZeroDuration(), scenario_.reduce_high),
        [this, id = effect.id, chunk = effect.chunk, result, finite] {
          server::Effects effects;
          session_.Reduced(id, chunk, result, {.finite = finite}, absl::ZeroDuration(), effects);
          Apply(std::move(effects));
        });
}

void Simulation::OnEffect(server::ComputeEffect& effect, server::Effects& more) {
  const auto run = [this, effect](server::Effects& effects) {
    effect.work->Run();
    session_.Computed(effect.id, *effect.work, effects);
  };
  AnswerLater(run, more);
}

void Simulation::OnEffect(server::ChoreEffect& effect, server::Effects& more) {
  const auto run = [this, effect](server::Effects& effects) {
    effect.chore->Run();
    session_.ChoreDone(effects);
  };
  AnswerLater(run, more);
}

void Simulation::OnEffect(server::RestoreEffect& /*effect*/, server::Effects& /*more*/) {
  checker_.Violate("a state is restored");
}

// On a thread of the daemon's that takes as long as it likes: answers come in any order.
void Simulation::AnswerLater(const std::function<void(server::Effects&)>& run,
                             server::Effects& more) {
  if (random_.Percent(scenario_.reduce_inline_percent)) return run(more);
  After(random_.Between(absl::ZeroDuration(), scenario_.reduce_high), [this, run] {
    server::Effects effects;
    run(effects);
    Apply(std::move(effects));
  });
}

void Simulation::OnEffect(server::ReleaseEffect&, server::Effects&) {}

void Simulation::OnEffect(server::UpstreamEffect&, server::Effects&) {
  checker_.Violate("a session that is no leaf has asked for something of an upstream");
}

void Simulation::OnEffect(server::CloseEffect& effect, server::Effects&) {
  const auto found = std::find_if(links_.begin(), links_.end(),
                                  [&](const auto& link) { return link->id == effect.connection; });
  if (found == links_.end()) return;
  Link& link = **found;
  PushDown(link, std::nullopt, {.action = [this, &link] {
             Process& process = *processes_[link.process];
             link.cut = true;
             OnStreamEnd(process, link);
           }});
}

void Simulation::OnEffect(server::DepartureEffect&, server::Effects&) {}

void Simulation::OnEffect(server::LogEffect& effect, server::Effects&) {
  Trace([&] { return absl::StrCat("log: ", effect.message); });
}

void Simulation::SendDown(int rank, const wire::Frame& frame, const server::Keeper& keeper) {
  const auto found = current_.find(rank);
  if (found == current_.end()) return;
  Link& link = *found->second;
  if (const auto* failure = std::get_if<wire::Failure>(&frame.header)) {
    if (failure_ && *failure_ != *failure) checker_.Violate("members are told different failures");
    failure_ = *failure;
  }
  PushDown(link, PriorityOf(frame),
           {.action =
                [this, &link, frame] {
                  Process& process = *processes_[link.process];
                  if (process.link == &link) OnFrame(process, frame);
                },
            .held_bytes = frame.payload == nullptr ? 0 : frame.payload->bytes(),
            .keeper = keeper});
}

void Simulation::SendResult(Link& link, const server::ResultEffect& effect) {
  wire::Frame frame{.header = effect.header};
  server::ResultDelivery delivery =
      effect.result->DeliveryTo({.rank = link.rank, .stream = link.id});
  const bool in_place = std::holds_alternative<server::InPlace>(delivery);
  std::get<wire::Result>(frame.header).in_place = in_place;
  std::function<wire::PayloadRef()> copy;
  if (auto* resent = std::get_if<server::ResentCopy>(&delivery)) {
    copy = std::move(resent->make);  // as late as can be, which is what a slow member sees
  } else if (auto* carried = std::get_if<server::InFrame>(&delivery)) {
    frame.payload = carried->payload;
  }
  wire::SendPriority priority = wire::PriorityOf(effect.header, nullptr);
  priority.bytes = effect.result->bytes();
  const std::size_t held = frame.payload == nullptr ? 0 : frame.payload->bytes();
  PushDown(link, Scaled(priority),
           {.action =
                [this, &link, frame, in_place, copy, result = effect.result]() mutable {
                  Process& process = *processes_[link.process];
                  if (process.link != &link) return;
                  if (copy) frame.payload = copy();
                  OnFrame(process, frame,
                          in_place ? static_cast<const PlacedResult*>(result.get()) : nullptr);
                },
            .held_bytes = held,
            .keeper = effect.result});
}

void Simulation::OnHello(Link& link, const wire::Hello& hello) {
  const bool resumes = session_.state() == server::SessionCore::State::kRunning;
  server::Effects effects;
  const absl::Status status =
      session_.Attach(link.rank, hello.start_id, hello.step, link.id, now_, effects);
  Trace([&] {
    return absl::StrCat("rank ", link.rank, " attaches stream ", link.id, ": ", status.ToString());
  });
  if (!status.ok()) {
    PushDown(link, std::nullopt, {.action = [this, &link, status] {
               link.cut = true;
               Process& process = *processes_[link.process];
               if (process.link == &link) OnRefused(process, status);
             }});
    return;
  }
  if (resumes) Note(Count::kResumes);
  const std::uint32_t attempt = session_.progress().attempt();
  current_[link.rank] = &link;
  link.attached = true;
  SendHeartbeats(link);
  Mark(attempt);
  Apply(std::move(effects));
}

void Simulation::Deliver(Link& link, const wire::Frame& frame) {
  Disturb(link, frame);
  Receive(link.rank, link.id, frame);
  if (!std::holds_alternative<wire::Contribution>(frame.header)) return;
  if (received_step_ != session_.step()) {
    received_step_ = session_.step();
    for (auto& frames : received_) frames.clear();
  }
  const auto current = current_.find(link.rank);
  if (current == current_.end() || current->second != &link) return;
  if (std::get<wire::Contribution>(frame.header).id.step == session_.step()) {
    received_[static_cast<std::size_t>(link.rank)].push_back(frame);
  }
  Duplicate(link, frame);
}

void Simulation::Receive(int rank, std::uint64_t connection, const wire::Frame& frame) {
  Trace([&] {
    std::string text = absl::StrCat("daemon < rank ", rank, " stream ", connection, ": frame ",
                                    frame.header.index());
    if (const auto* chunk = std::get_if<wire::Contribution>(&frame.header)) {
      absl::StrAppend(&text, " contribution step ", chunk->id.step, " attempt ", chunk->id.attempt,
                      " bucket ", chunk->id.bucket, " round ", chunk->id.round, " chunk ",
                      chunk->chunk, " received ", chunk->received);
    }
    return text;
  });
  Mark(frame.header.index() * 8 + static_cast<std::uint64_t>(rank));
  if (const auto* chunk = std::get_if<wire::Contribution>(&frame.header)) {
    checker_.OnAcknowledged(rank, chunk->id, chunk->received);
  } else if (const auto* ack = std::get_if<wire::Ack>(&frame.header)) {
    checker_.OnAcknowledged(rank, ack->id, ack->received);
  }
  server::Effects effects;
  session_.Receive(rank, connection, frame, now_, effects);
  Apply(std::move(effects));
}

// The blame must fall on somebody who did something.
void Simulation::CheckFailure() {
  const absl::Status& status = session_.failure();
  if (!failure_ || anyone_blamable_) return;
  const int blamed = failure_->blamed_rank;
  if (failure_->message != status.message() || failure_->code != static_cast<int>(status.code())) {
    return checker_.Violate("members are told another failure than the session's");
  }
  if (status.code() == absl::StatusCode::kDeadlineExceeded && !withholding_.empty()) {
    const std::set<int> named = RanksIn(failure_->message);
    if (blamed < 0 && named == withholding_ &&
        absl::StrContains(failure_->message, "no result after 20s")) {
      return;
    }
  } else if (blamed < 0) {
    // The join deadline. A rank that a dead process held may be another's by now.
    if (!blamable_.empty() && !RanksIn(failure_->message).empty()) return;
  } else if (blamable_.count(blamed) > 0 &&
             absl::StrContains(failure_->message, absl::StrCat("rank ", blamed))) {
    return;
  }
  checker_.Violate(absl::StrCat("failed, blaming rank ", blamed, ": ", failure_->message));
}

}  // namespace gradwire::sim
