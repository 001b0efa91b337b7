#include "tests/sim/simulation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/wire/frame_priority.h"
#include "proto/wire/lanes.h"
#include "server/core/step.h"

namespace gradwire::sim {
namespace {

constexpr std::size_t kMaxEvents = 200'000;
constexpr std::size_t kTraceLines = 400;

}  // namespace

std::string Name(Count count) {
  static constexpr const char* kNames[] = {"steps applied",
                                           "steps skipped",
                                           "resumes",
                                           "rounds started over",
                                           "sessions completed",
                                           "sessions failed",
                                           "duplicates sent",
                                           "duplicates dropped",
                                           "stale attempts replayed",
                                           "late frames of old connections",
                                           "frames lost",
                                           "deaths",
                                           "short stalls",
                                           "long stalls",
                                           "slow buckets",
                                           "daemon pauses",
                                           "replacements refused",
                                           "early leaves",
                                           "hostile frames",
                                           "old-generation frames",
                                           "tokens expired",
                                           "collectives",
                                           "partial steps",
                                           "waits explained",
                                           "low-rank steps",
                                           "shared-state frames",
                                           "units of several chunks",
                                           "state imports",
                                           "eager buckets",
                                           "results in place",
                                           "joined contributions",
                                           "joined acknowledgements",
                                           "overtakings",
                                           "successions",
                                           "step timeouts",
                                           "send queues full",
                                           "daemons lost",
                                           "pauses forgiven",
                                           "reading pauses",
                                           "large worlds",
                                           "failed tries to connect",
                                           "daemons given up",
                                           "bulk lanes lost",
                                           "pauses by an operator",
                                           "steps held back"};
  return kNames[static_cast<std::size_t>(count)];
}

Outcome RunSeed(std::uint64_t seed, bool trace) {
  const Scenario scenario = MakeScenario(seed);
  if (!scenario.Has(FaultKind::kOldGeneration)) {
    return Simulation(scenario, {.trace = trace}).Run();
  }
  Scenario earlier = scenario;
  earlier.options.generation = 1;
  earlier.data_seed = Mix(scenario.data_seed, 1);
  earlier.faults.clear();
  Outcome before = Simulation(earlier, {.capture = true}).Run();
  if (!before.violation.empty()) return before;
  return Simulation(scenario, {.trace = trace, .old_frames = &before.captured}).Run();
}

Simulation::Simulation(const Scenario& scenario, const RunOptions& run)
    : scenario_(scenario),
      run_(run),
      random_(Mix(scenario.seed, 7)),
      checker_(scenario),
      session_(scenario.options, scenario.MakeCoordinator(), now_),
      received_(scenario.world()),
      faults_(scenario.faults.begin(), scenario.faults.end()),
      pauses_(scenario.pauses.begin(), scenario.pauses.end()) {
  for (std::size_t p = 0; p < scenario.world(); ++p) {
    processes_.push_back(std::make_unique<Process>());
    processes_.back()->index = p;
    processes_.back()->start_id = random_.Next() | 1;
    processes_.back()->in_place = random_.Percent(scenario_.in_place_percent);
    if (!scenario_.any_rank) processes_.back()->asks_for = static_cast<int>(p);
  }
  succession_until_ = now_ + 1.5 * scenario.options.silence_timeout;
  if (scenario.world() > 4) Note(Count::kLargeWorlds);
}

Simulation::~Simulation() = default;

void Simulation::At(absl::Time at, std::function<void()> action, bool background) {
  queue_.push(Event{std::max(at, now_), next_order_++, background, std::move(action)});
  if (!background) ++foreground_;
}

void Simulation::After(absl::Duration delay, std::function<void()> action, bool background) {
  At(now_ + delay, std::move(action), background);
}

bool Simulation::Awake(Process& process, const std::function<void()>& again, bool background) {
  if (process.dead) return false;
  if (now_ >= process.paused_until) return true;
  At(process.paused_until, again, background);
  if (!background) {
    ++waking_;
    At(
        process.paused_until, [this] { --waking_; }, true);
  }
  return false;
}

absl::Duration Simulation::NetworkDelay(wire::Lane lane) {
  return random_.Between(scenario_.delay_low, lane == wire::Lane::kMain
                                                  ? scenario_.delay_high
                                                  : scenario_.bulk_delay_high);
}

// Of the time that a frame is on its way, what it takes to be written.
double Simulation::WriteShare() { return random_.Between(0, 25) / 100.0; }

// Payloads are tiny here.
wire::SendPriority Simulation::PriorityOf(const wire::Frame& frame) const {
  return Scaled(wire::PriorityOf(frame.header, frame.payload.get()));
}

wire::SendPriority Simulation::Scaled(wire::SendPriority priority) const {
  if (priority.bytes > scenario_.small_bytes) priority.bytes += wire::kSmallPayload;
  return priority;
}

void Simulation::Trace(const std::function<std::string()>& text) {
  if (!run_.trace) return;
  const double seconds = absl::ToDoubleSeconds(now_ - absl::FromUnixSeconds(1'000'000));
  trace_.push_back(absl::StrFormat("%10.6f  %s", seconds, text()));
  if (trace_.size() > kTraceLines) trace_.erase(trace_.begin());
}

Outcome Simulation::Run() {
  for (auto& process : processes_) {
    const bool is_late = static_cast<int>(process->index) == scenario_.late_process;
    const absl::Duration delay =
        is_late ? 3 * scenario_.options.silence_timeout
                : random_.Between(absl::ZeroDuration(), absl::Milliseconds(50));
    After(delay, [this, p = process.get()] { AskToJoin(*p); });
  }
  After(
      absl::Milliseconds(100), [this] { Tick(); }, true);
  const server::SessionOptions& options = scenario_.options;
  const absl::Duration patience =
      std::max({options.silence_timeout, options.resume_grace, options.token_timeout}) +
      absl::Seconds(2) +
      (scenario_.Has(FaultKind::kWithholds) ? options.step_timeout : absl::ZeroDuration()) +
      (scenario_.Has(FaultKind::kBulkStuck) ? wire::kBulkSilences * options.silence_timeout
                                            : absl::ZeroDuration());
  while (!queue_.empty() && !checker_.violated()) {
    const bool over = session_.state() == server::SessionCore::State::kFailed ||
                      session_.state() == server::SessionCore::State::kClosed;
    if (foreground_ == 0 && over) break;
    const bool joining = session_.state() == server::SessionCore::State::kJoining;
    const absl::Duration limit = joining ? options.join_timeout + patience : patience;
    if (foreground_ == 0 && now_ - std::max(last_foreground_, daemon_paused_until_) > limit) break;
    Event event = queue_.top();
    queue_.pop();
    now_ = event.at;
    if (!event.background) {
      --foreground_;
      ++events_;
      last_foreground_ = now_;
    }
    event.action();
    if (!event.background) {
      FireFaults();
      FirePauses();
      AfterEvent();
    }
    if (events_ > kMaxEvents) checker_.Violate("the run does not come to an end");
  }
  if (!checker_.violated()) Conclude();
  Note(Count::kStepsApplied, session_.progress().flow().stats().steps_applied);
  Note(Count::kStepsSkipped, session_.progress().flow().stats().steps_skipped);
  Note(Count::kDuplicatesDropped, session_.progress().flow().stats().duplicate_chunks);
  Note(Count::kLowRankSteps, checker_.low_rank_steps());
  return {.violation = checker_.violation(),
          .hash = hash_,
          .counts = counts_,
          .trace = std::move(trace_),
          .captured = std::move(captured_)};
}

void Simulation::AfterEvent() {
  Mark(static_cast<std::uint64_t>(absl::ToUnixMicros(now_)));
  const std::size_t held = session_.held_bytes();
  // A factor that exceeds a chunk is gathered whole from every member.
  const std::size_t reserved = session_.options().PayloadBytes() +
                               session_.hook_state().bytes() / 3 * (scenario_.world() + 1);
  if (held > reserved) {
    checker_.Violate(
        absl::StrCat("the session holds ", held, " bytes and has reserved ", reserved));
  }
  if (events_ % 16 == 0 && session_.WaitingFor(now_).empty()) {
    checker_.Violate("WaitingFor says nothing");
  }
  if (session_.state() == server::SessionCore::State::kFailed) CheckFailure();
}

// Once all is quiet: either all went through, or the session failed and everybody knows the same.
void Simulation::Conclude() {
  using State = server::SessionCore::State;
  if (session_.state() == State::kClosed) {
    Note(Count::kSessionsCompleted);
    const auto steps = static_cast<std::int64_t>(scenario_.steps.size()) - 1;
    if (session_.step() != steps && blamable_.empty() && !anyone_blamable_) {
      checker_.Violate(absl::StrCat("closed after ", session_.step(), " of ", steps, " steps"));
    }
    if (session_.held_bytes() != 0) checker_.Violate("a closed session holds bytes");
    return;
  }
  if (session_.state() != State::kFailed) {
    std::string members;
    for (const auto& process : processes_) {
      if (process->member == nullptr) continue;
      absl::StrAppend(&members, "; rank ", process->rank, ": ", process->member->Progress());
    }
    return checker_.Violate(absl::StrCat("nothing happens any more, but the session is ",
                                         Name(session_.state()), ": ", session_.WaitingFor(now_),
                                         members));
  }
  Note(Count::kSessionsFailed);
  if (!withholding_.empty() && absl::IsDeadlineExceeded(session_.failure())) {
    Note(Count::kStepTimeouts);
  }
  for (const auto& process : processes_) {
    if (process->dead || process->left || process->hostile || process->member == nullptr) continue;
    if (process->deaf || process->lost_daemon) continue;
    if (process->leaving && process->link == nullptr) continue;  // nobody can tell it
    if (process->member->failure() != session_.failure()) {
      checker_.Violate(absl::StrCat("rank ", process->rank, " ends with ",
                                    process->member->failure().ToString(), "; the session with ",
                                    session_.failure().ToString()));
    }
  }
}

}  // namespace gradwire::sim
