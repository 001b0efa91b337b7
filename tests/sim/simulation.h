// One run: a real SessionCore, real Members, and between them a network, a clock and a daemon of
// the simulation's own. One thread; the scenario's seed decides everything.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "client/core/member.h"
#include "client/core/reading_limit.h"
#include "client/core/reconnect.h"
#include "server/core/session_core.h"
#include "tests/sim/checker.h"
#include "tests/sim/direction.h"
#include "tests/sim/places.h"
#include "tests/sim/random.h"
#include "tests/sim/scenario.h"

namespace gradwire::sim {

// What happened, so that a test can show that the faults are real.
enum class Count : std::uint8_t {
  kStepsApplied,
  kStepsSkipped,
  kResumes,
  kRestartedRounds,
  kSessionsCompleted,
  kSessionsFailed,
  kDuplicatesSent,
  kDuplicatesDropped,
  kStaleAttemptsReplayed,
  kLateFramesOfOldConnections,
  kFramesLost,
  kDeaths,
  kShortStalls,
  kLongStalls,
  kSlowBuckets,
  kDaemonPauses,
  kReplacementsRefused,
  kEarlyLeaves,
  kHostileFrames,
  kOldGenerationFrames,
  kTokensExpired,
  kCollectives,
  kPartialSteps,
  kWaitsExplained,
  kLowRankSteps,
  kSharedStateFrames,
  kUnitsOfSeveralChunks,
  kStateImports,
  kEagerBuckets,
  kResultsInPlace,
  kJoinedContributions,
  kJoinedAcks,
  kOvertakings,
  kSuccessions,
  kStepTimeouts,
  kQueuesFull,
  kDaemonsLost,
  kPausesForgiven,
  kReadingPauses,
  kLargeWorlds,
  kFailedTries,
  kDaemonsGivenUp,
  kBulkLanesLost,
  kOperatorPauses,
  kHeldSteps,
  kNumCounts,
};
std::string Name(Count count);
using Counts = std::array<std::uint64_t, static_cast<std::size_t>(Count::kNumCounts)>;

struct Captured {
  int rank = 0;
  wire::Frame frame;
};

struct Outcome {
  std::string violation;  // empty: none
  std::uint64_t hash = 0;
  Counts counts{};
  std::vector<std::string> trace;  // if asked for
  std::vector<Captured> captured;  // frames that members sent, if asked for
};

struct RunOptions {
  bool trace = false;
  bool capture = false;
  const std::vector<Captured>* old_frames = nullptr;  // of an earlier generation
};

// Runs the seed's scenario, and first an earlier session of the same name where the scenario
// replays its frames.
Outcome RunSeed(std::uint64_t seed, bool trace = false);

class Simulation {
 public:
  Simulation(const Scenario& scenario, const RunOptions& run);
  ~Simulation();
  Outcome Run();

 private:
  struct Event {
    absl::Time at;
    std::uint64_t order = 0;
    bool background = false;  // ticks and heartbeats: no progress
    std::function<void()> action;
  };
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.at != b.at ? a.at > b.at : a.order > b.order;
    }
  };
  struct Process;
  // What the daemon sends a member, and what that costs it while it waits.
  struct DownFrame {
    std::function<void()> action;
    std::size_t held_bytes = 0;
    server::Keeper keeper{};
    bool background = false;
  };
  // A connection between one process and the daemon.
  struct Link {
    std::uint64_t id = 0;
    std::size_t process = 0;
    int rank = 0;
    bool cut = false;
    bool attached = false;
    bool paired = false;      // it has a bulk lane
    bool bulk_stuck = false;  // on which nothing arrives any more
    Direction<wire::Frame> up;
    Direction<DownFrame> down;
    std::optional<server::QueueLimits> limits;
    std::array<bool, wire::kLanes> paused{};  // the member reads on later
  };
  struct OpenBucket {
    std::shared_ptr<ByteVector> buffer;
    std::unique_ptr<GradBucket> bucket;
    std::uint32_t id = 0;
  };
  struct Process {
    std::size_t index = 0;
    std::uint64_t start_id = 0;
    int rank = -1;
    std::unique_ptr<Hook> hook;
    std::unique_ptr<client::Member> member;
    Link* link = nullptr;
    bool has_joined = false;
    bool welcomed = false;
    bool dead = false;
    bool leaving = false;
    bool left = false;
    bool hostile = false;
    bool in_place = false;
    bool encoding = false;  // SendNext follows
    bool replays_old_generation = false;
    bool deaf = false;
    bool withholds = false;
    bool is_successor = false;
    bool lost_daemon = false;
    std::optional<client::Reconnect<absl::Time, absl::Duration>> reconnect;
    absl::Time unreachable_until = absl::InfinitePast();  // tries before that fail
    int asks_for = -1;                                    // the rank that it joins as; -1: any
    std::optional<client::ReadingLimit> reading;
    std::deque<std::function<void()>> inbox;  // frames that wait to be handled
    std::optional<int> resets;                // of its hook, when the state was replaced
    bool reported_failure = false;
    absl::Time paused_until = absl::InfinitePast();
    std::size_t next_collective = 0;
    ByteVector collective_data;
    std::map<client::Ticket, OpenBucket> buckets;
    // Contributions in place as they were first sent, by step, bucket and chunk.
    std::map<std::tuple<std::int64_t, std::uint32_t, std::uint32_t>, ByteVector> encoded;
    std::vector<std::unique_ptr<GradBucket>>
        ended;  // their buffers are gone, the verdict is not here
  };

  // Scheduling (simulation.cc).
  void At(absl::Time at, std::function<void()> action, bool background = false);
  void After(absl::Duration delay, std::function<void()> action, bool background = false);
  // Runs `again` once the process no longer stands still; false if it stands.
  bool Awake(Process& process, const std::function<void()>& again, bool background = false);
  void Trace(const std::function<std::string()>& text);
  void Note(Count count, std::uint64_t by = 1) { counts_[static_cast<std::size_t>(count)] += by; }
  void Mark(std::uint64_t value) { hash_ = Mix(hash_, value); }
  void AfterEvent();
  void Conclude();
  absl::Duration NetworkDelay(wire::Lane lane = wire::Lane::kMain);
  double WriteShare();
  wire::SendPriority PriorityOf(const wire::Frame& frame) const;
  // Payloads of this size count as large where the scenario says so.
  wire::SendPriority Scaled(wire::SendPriority priority) const;

  // The daemon (simulation_daemon.cc).
  bool DaemonPaused(const std::function<void()>& again, bool background);
  void Tick();
  void CheckWaiting();
  void Apply(server::Effects effects);
  void OnEffect(server::SendEffect& effect, server::Effects& more);
  void OnEffect(server::FanOutEffect& effect, server::Effects& more);
  void OnEffect(server::ResultEffect& effect, server::Effects& more);
  void OnEffect(server::ReduceEffect& effect, server::Effects& more);
  void OnEffect(server::ComputeEffect& effect, server::Effects& more);
  void OnEffect(server::ChoreEffect& effect, server::Effects& more);
  void OnEffect(server::RestoreEffect& effect, server::Effects& more);
  void OnEffect(server::ReleaseEffect& effect, server::Effects& more);
  void OnEffect(server::ClaimRosterEffect&, server::Effects&) {}  // there is no arbiter
  void OnEffect(server::ForgetRostersEffect&, server::Effects&) {}
  // No leaf here, so no upstream.
  void OnEffect(server::UpstreamEffect& effect, server::Effects& more);
  void AnswerLater(const std::function<void(server::Effects&)>& run, server::Effects& more);
  void OnEffect(server::CloseEffect& effect, server::Effects& more);
  void OnEffect(server::DepartureEffect& effect, server::Effects& more);
  void OnEffect(server::LogEffect& effect, server::Effects& more);
  void SendDown(int rank, const wire::Frame& frame, const server::Keeper& keeper = {});
  void SendResult(Link& link, const server::ResultEffect& effect);
  // No priority: no frame, but the stream's end.
  void PushDown(Link& link, const std::optional<wire::SendPriority>& priority, DownFrame frame);
  bool MayWait(Link& link, const DownFrame& frame);
  void Detach(Link& link);
  void SendHeartbeats(Link& link);
  void WriteDown(Link& link);
  void PumpUp(Link& link, wire::Lane lane);
  void PumpDown(Link& link, wire::Lane lane, bool background = false);
  void Arrive(Process& process, Link& link, wire::Lane lane, std::function<void()> action);
  void Handle(Process& process);
  void OnHello(Link& link, const wire::Hello& hello);
  void Deliver(Link& link, const wire::Frame& frame);
  void Receive(int rank, std::uint64_t connection, const wire::Frame& frame);
  void CheckFailure();
  void FollowCommit();
  absl::StatusOr<HookState> ExportState() const;
  void Reimport();

  // The members (simulation_members.cc).
  void AskToJoin(Process& process);
  void OnJoined(Process& process, const absl::StatusOr<int>& rank);
  void Open(Process& process);
  void SendUp(Process& process, wire::Frame frame);
  bool JoinLast(Link& link, const wire::Frame& frame);
  void WriteUp(Link& link, bool background);
  // The gradients of a chunk, for a daemon that reads and overwrites them. Null: not this time.
  wire::PayloadRef GradientsOf(Process& process, const client::SendChunkEffect& effect);
  void CheckSender(const Process& process, const Link& link);
  void Heartbeat(Process& process);
  // Whether the member still hears the daemon: at `due`, and then as long as the stream lasts.
  void ListenUntil(Process& process, Link& link, absl::Time due);
  bool BulkIsSilent(const Link& link) const;
  void OnStreamEnd(Process& process, Link& link);
  void OnConnectionLost(Process& process);
  void TryAgain(Process& process);
  void OnRefused(Process& process, const absl::Status& status);
  // `placed`: the result that the frame says is in place.
  void OnFrame(Process& process, const wire::Frame& frame, const PlacedResult* placed = nullptr);
  void AllowCommit(Process& process, bool allowed);
  void ApplyMember(Process& process, client::Effects effects);
  void SendNext(Process& process);
  void OnMember(Process& process, client::SendFrameEffect& effect);
  void OnMember(Process& process, client::SendChunkEffect& effect);
  void OnMember(Process& process, client::SendCollectiveEffect& effect);
  void OnMember(Process& process, client::ReceiveCollectiveEffect& effect);
  void OnMember(Process& process, client::BucketDoneEffect& effect);
  void OnMember(Process& process, client::StepDoneEffect& effect);
  void OnMember(Process& process, client::CollectiveDoneEffect& effect);
  void OnMember(Process& process, client::WelcomeEffect& effect);
  void OnMember(Process& process, client::FailedEffect& effect);
  // Those of node groups.
  template <class Other>
  void OnMember(Process& process, Other& /*effect*/) {
    checker_.Violate("rank " + std::to_string(process.rank) + " acts for a node group");
  }

  // The training job (simulation_job.cc).
  void BeginStep(Process& process);
  void StartBuckets(Process& process);
  void StartBucket(Process& process, const std::vector<std::uint32_t>& parameters);
  void EnterCollective(Process& process, const CollectivePlan& plan);
  void Leave(Process& process);

  // Faults (simulation_faults.cc).
  void FireFaults();
  void FirePauses();
  void PauseSteps(const OperatorPause& pause);
  void ResumeSteps();
  // Nothing of the open step while an operator holds it back.
  void CheckGate(std::int64_t step);
  bool Fire(const Fault& fault);
  bool Healthy(const Process& process) const;
  void Cut(Process& process, std::optional<absl::Duration> outage);
  absl::Duration RandomOutage();
  bool BecomeUnreachable(Process& process);
  bool Kill(Process& process);
  bool Stall(Process& process, bool deadly);
  bool Replace(const Process& process);
  bool Succeed(Process& process);
  void AddSuccessor(Process& gone);
  bool TurnDeaf(Process& process);
  void Provoke(Process& deaf, std::size_t times);
  bool PauseDaemon();
  void Disturb(Link& link, const wire::Frame& frame);
  void Duplicate(Link& link, const wire::Frame& frame);
  void ReplayStale(Link& link);
  void ReplayOldGeneration(Link& link, const wire::Frame& frame);
  wire::Frame Malformed(const Process& process, const wire::Frame& like);

  const Scenario& scenario_;
  const RunOptions run_;
  Random random_;
  Checker checker_;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  server::SessionCore session_;
  std::priority_queue<Event, std::vector<Event>, Later> queue_;
  std::uint64_t next_order_ = 0;
  std::size_t foreground_ = 0;  // events that are not background
  std::size_t waking_ = 0;      // of those: the end of a stall
  std::size_t events_ = 0;
  absl::Time last_foreground_ = now_;
  absl::Time daemon_paused_until_ = absl::InfinitePast();
  std::vector<std::unique_ptr<Link>> links_;
  std::map<int, Link*> current_;                    // the daemon's table: rank to stream
  std::vector<std::vector<wire::Frame>> received_;  // contributions of the open step, by rank
  std::int64_t received_step_ = 0;
  std::int64_t committed_ = 0;
  std::vector<std::unique_ptr<Process>> processes_;
  std::deque<Fault> faults_;
  std::deque<OperatorPause> pauses_;
  std::set<int> blamable_;
  bool anyone_blamable_ = false;
  std::set<int> withholding_;        // ranks
  bool daemon_paused_long_ = false;  // members may have lost it
  absl::Time succession_until_;
  std::optional<wire::Failure> failure_;  // as the first member was told
  client::Ticket next_ticket_ = 1;
  std::uint64_t hash_ = 0;
  Counts counts_{};
  std::vector<std::string> trace_;
  std::vector<Captured> captured_;
};

}  // namespace gradwire::sim
