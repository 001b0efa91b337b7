// Sessions that outlive their daemon: real SessionCores, one daemon life after another, and real
// Members that report to each next one. One thread; the seed decides everything.
//
// A life ends at any moment: what it had sent may arrive or not, what it had not is lost, and with
// it everything that it knew. Or the next one begins while it still runs, and has some of the
// members. Streams break too. All members finish all steps in the end, and:
// * each step has one verdict, the same for all members;
// * a step that is applied has the mean of all gradients in every member's buffers, bit for bit;
//   with PowerSGD, what hooks without any session make of them, and of the steps before;
// * a step is skipped only if a contribution was not finite, or if a daemon was lost in it; not
// even
//   then, if all members keep their gradients, whatever their users do to results meanwhile;
// * the chain of the steps' digests is the same for all members and daemons; only a newcomer may
//   not know it.
//
// Members may also leave before the others, and hand their residuals over: nothing is lost then.
//
// With the policy `wait` members die too, with their residuals, and other processes come in their
// place and get the model: in the end, and in each step that is applied, it is the same everywhere.
// With `shrink` the others go on without them, as long as they are a majority of those who
// concluded the last step, and means are of those who are there. Some processes come in their place
// later. Or their rosters are claimed at an arbiter, which all daemons share; then any number of
// them go on. It may answer late, not at all, or after its daemon is lost.
//
// Some members may be leaf daemons, which stand for two ranks, and whose gradients have the weight
// of as many: what goes on behind them is not simulated here.
//
// Or members are late, and steps go on without them (LateMembers). All that members have computed
// in steps that were applied is in the means then, or waits for the next step, or was lost with a
// member of which it is known what it held (recovery_simulation_late.cc).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/core/member.h"
#include "hooks/draw_buckets.h"
#include "hooks/ledger_hook.h"
#include "server/core/session_core.h"
#include "tests/sim/bytes.h"
#include "tests/sim/random.h"
#include "tests/testing/hook_world.h"

namespace gradwire::sim {

// What happened, so that a test can show that the faults are real.
enum class RecoveryCount : std::uint8_t {
  kRuns,
  kApplied,
  kSkippedForValues,
  kDropped,
  kLivesLost,
  kHandedOver,
  kLostWhileGathering,
  kSplit,
  kConcludedByReports,
  kFollowed,
  kWentOn,
  kReducedAgain,
  kCuts,
  kBarriers,
  kBroadcasts,
  kInPlace,
  kRefusedStrangers,
  kStatesTakenBack,
  kDrawPlans,
  kMembersKilled,
  kHealed,
  kShrunk,
  kStepsOfFewer,
  kTakenIn,
  kLeftBehind,
  kCollectivesVoid,
  kLedgersClosed,
  kLedgersWithLosses,
  kLedgersIncomplete,
  kLeft,
  kResidualsHandedOver,
  kResidualsNotTaken,
  kStepsWithLeaves,
  kLeavesLost,
  kClaims,
  kClaimsOfMinority,
  kClaimsOfOthers,
  kClaimErrors,
  kClaimsUnheard,
  kStepsOfMinority,
  kCameBack,
  kLeftAtEnd,
  kStayedForOthers,
  kLeftAfterLoss,
  kNumCounts
};
using RecoveryCounts =
    std::array<std::uint64_t, static_cast<std::size_t>(RecoveryCount::kNumCounts)>;
const char* Name(RecoveryCount count);

// Nobody looks at the time but after a death.
inline constexpr absl::Duration kRecoveryResumeGrace = absl::Seconds(1);

class RecoverySimulation {
 public:
  // `late`: members are late, in a session that shrinks.
  explicit RecoverySimulation(std::uint64_t seed, bool late = false);
  ~RecoverySimulation();

  // The violation; "": none.
  std::string Run();
  const RecoveryCounts& counts() const { return counts_; }
  // Of late members.
  struct LateCounts {
    std::uint64_t missed = 0;   // steps, for a member
    std::uint64_t past = 0;     // buckets that the trainer came to when their step was over
    std::uint64_t waiting = 0;  // members whose gradients wait at the end
    std::uint64_t lost = 0;     // members that are gone, with late gradients
    std::uint64_t given = 0;    // members that left, and gave theirs to others
  };
  const LateCounts& late_counts() const { return late_counts_; }

 private:
  struct Life;
  // A connection between a member and one daemon life. What is in `down` may still arrive after
  // the life's end; then comes the end of the stream.
  struct Link {
    std::uint64_t id = 0;
    int rank = 0;
    Life* life = nullptr;
    std::deque<wire::Frame> up{};
    std::deque<std::function<void()>> down{};
    bool attached = false;   // the daemon knows the stream
    bool closed = false;     // the daemon sends nothing more: the end follows what is in `down`
    bool ends_well = false;  // it says then that the member has left
  };
  struct Life {
    std::uint64_t number = 0;
    std::unique_ptr<server::SessionCore> session{};
    // Sums that are computed, and other work; the session hears of it later.
    std::deque<std::function<void(server::SessionCore&, server::Effects&)>> answers{};
    std::map<int, Link*> links{};      // by rank: the current ones
    std::set<std::uint64_t> tokens{};  // start ids that have joined
    bool draining = false;             // it has handed over, and is still there
    // Another daemon has taken its address, and it runs on: members that still have a stream do not
    // know.
    bool replaced = false;
    bool over = false;
  };
  struct OpenBucket {
    std::uint32_t id = 0;
    std::shared_ptr<ByteVector> buffer;
    std::unique_ptr<GradBucket> bucket;
    bool done = false;
    ByteVector result;        // that it was done with
    bool is_changed = false;  // by the user, then
  };
  struct Member {
    int rank = 0;
    int stands_for = 1;  // ranks, from its own on
    double weight = 1;   // of its gradients, since the last Welcome
    std::uint64_t start_id = 0;
    std::unique_ptr<Hook> hook;
    LedgerHook* ledger = nullptr;  // the hook, if the session has a ledger
    std::unique_ptr<client::Member> core;
    Link* link = nullptr;    // null: it has none, and tries
    std::uint64_t life = 0;  // that gave it its place
    bool welcomed = false;
    bool in_place = false;
    bool keeps_gradients = false;
    // The user: which bucket of the step is next, and what it waits for.
    std::size_t step = 0;
    std::size_t next_bucket = 0;
    std::vector<std::size_t> order;  // of the step's buckets
    bool ended = false;
    std::deque<client::StepDoneEffect> over;  // steps from `step` on, not yet told to the user
    bool in_collective = false;
    std::size_t collectives = 0;  // over, of the gap before the step
    ByteVector broadcast;
    // Whether each step was applied: what the user trains.
    std::vector<std::byte> model;
    std::optional<int> heals;  // from the root of that rank, before the step
    bool has_model = true;     // applied a step, or is the rank's first process
    bool has_applied = false;  // a step, in this process
    bool has_set_plan = false;
    bool dead = false;            // nobody has come in its place
    bool is_to_leave = false;     // at the end of a step
    bool leaves = false;          // and does nothing else any more
    bool follows_leaver = false;  // the others may do without it
    bool may_leave = false;       // it has been told what becomes of its residuals
    bool has_late = false;        // and late gradients, when it began to leave
    std::vector<int> ranks{};     // of the session's members, as the user knows
    std::map<client::Ticket, OpenBucket> buckets;
    bool finished() const;
    bool gone = false;           // has left when it was through with its steps
    bool has_lost_last = false;  // a daemon, when it wanted to
    std::size_t steps = 0;
    absl::Time sleeps_until = absl::InfinitePast();
  };
  struct Step {
    std::vector<std::vector<std::uint32_t>> buckets;
    int nonfinite_rank = -1;
    std::uint32_t nonfinite_parameter = 0;
    std::vector<wire::CollectiveKind> collectives;  // before it
    bool lost_in = false;                           // a daemon
    std::optional<Verdict> verdict;
    std::set<int> replaced{};                       // ranks whose process begins with it
    std::vector<int> ranks{};                       // whose mean it is, where the session shrinks
    std::map<std::uint32_t, ByteVector> applied{};  // PowerSGD: results by bucket
    std::set<std::pair<int, std::uint32_t>> computed{};  // by users: rank and parameter
  };
  // What a late member had when it was gone, in the step that was open there. `moved`: it went on
  // to a later step, without having heard how that one ended.
  struct Gone {
    int rank = 0;
    std::int64_t step = 0;
    bool moved = false;
    bool may_be_taken = false;  // it was about to leave, and another member may have what waited
    client::LateGradients late;
  };
  using Actions = std::vector<std::function<void()>>;

  void MakeScenario();
  void MakeLeaves();
  void MakeArbiter(int& world);
  void MakeLateScenario();
  // The trainer of a late member.
  bool TakePast(Member& member, const std::vector<std::uint32_t>& parameters);
  bool MaybeLoseLate();
  void Tick();
  void NoteGradients(const Member& member, const std::vector<std::uint32_t>& parameters);
  void NoteGone(const Member& member);
  void NoteMoved(const Member& member, const wire::Frame& frame);
  using Gradients = std::vector<std::vector<double>>;  // by parameter
  bool IsApplied(std::int64_t step, int rank) const;
  Gradients None() const;
  Gradients Computed() const;
  Gradients Applied() const;
  static void Add(const client::LateGradients::Sum& more, double factor, std::vector<double>& sum);
  Gradients LostWith(const Gone& gone) const;
  void CheckNothingIsLost();
  std::size_t Numel(const std::vector<std::uint32_t>& parameters) const;
  float Value(int rank, std::size_t step, std::uint32_t parameter, std::size_t element) const;
  ByteVector Expected(std::size_t step, const std::vector<std::uint32_t>& parameters) const;
  Member& MemberOf(int rank) const { return *members_[IndexOf(rank)]; }
  std::size_t IndexOf(int rank) const;
  // What the member's gradients are multiplied by.
  double Weight(int rank, const std::vector<int>& ranks) const;
  int StandsFor(int rank) const;
  // The processes of a roster; empty: of all.
  std::vector<int> Contributors(const std::vector<int>& ranks) const;
  void NoteRanks(const Member& member, std::int64_t number);
  void NoteChain(const Member& member);
  void ForgetChainsOf(const Member& gone);
  void CheckChains();
  bool IsLeftBehind(const absl::Status& status) const;
  void Restart(Member& member);
  bool MayKill(const Member& member) const;
  // Of those that are left, `others`: in the roster that the next one has to follow.
  bool MayFollowClaims(const std::vector<int>& others, const wire::Roster& latest) const;
  // The arbiter.
  void Claim(Life& life, const server::ClaimRosterEffect& effect);
  server::ClaimAnswer AnswerOf(const server::ClaimRosterEffect& effect);
  void MaybeFaultAtArbiter();
  // The daemon that was replaced has its address again.
  void ComeBack();
  ByteVector Gradient(int rank, std::size_t step, const std::vector<std::uint32_t>& parameters,
                      double weight) const;
  bool is_power_sgd() const { return reference_ != nullptr; }
  // The step that follows those before, in a world without sessions.
  void RunReference(std::size_t step);
  void Violate(const std::string& what);
  void Note(RecoveryCount count) { ++counts_[static_cast<std::size_t>(count)]; }
  Actions Possible();
  bool AllFinished() const;
  std::string Where() const;  // everybody is
  void MaybeFault();

  // Daemons.
  Life& NewLife(const std::optional<wire::MemberReport>& report);
  // It is lost, or hands over and ends later.
  void EndLife(bool hands_over);
  void Split();
  // The one that members reach at the session's address; null: there is none.
  Life* Reachable() const;
  void NoteLoss();
  void Disconnect(Life& life, bool loses_frames);
  void Apply(Life& life, server::Effects effects);
  void SendDown(Life& life, int rank, std::function<void()> arrives);
  void Deliver(Life& life, int rank, const wire::Frame& frame);
  void DeliverResult(Life& life, int rank, const server::ResultEffect& effect);
  void Reduce(Life& life, const server::ReduceEffect& effect);
  void Compute(Life& life, const server::Effect& effect);
  void TakeUp(Link& link);
  void TakeDown(Link& link);
  void Cut(Member& member);

  // Members.
  void Connect(Member& member);
  void Join(Member& member);
  void OnFrame(Member& member, const wire::Frame& frame);
  void ApplyMember(Member& member, client::Effects effects);
  void OnChunk(Member& member, client::SendChunkEffect& effect);
  void SendUp(Member& member, wire::Frame frame);
  // The user's next call; false: it waits.
  bool CanAct(const Member& member) const;
  static bool HoldsGradients(const Member& member);
  void Act(Member& member);
  void StartBucket(Member& member, const std::vector<std::uint32_t>& parameters);
  void EnterCollective(Member& member);
  void SetDrawPlan(Member& member);
  void FinishStep(Member& member);
  void CheckBucket(const Member& member, std::size_t step, const OpenBucket& bucket);
  void FinishBucket(OpenBucket& bucket);
  bool AllKeepGradients() const;
  void Stranger();
  void Heal(Member& member);
  void Enter(Member& member, wire::CollectiveKind kind, int root);
  void FinishCollective(Member& member, const absl::Status& status);
  void Spawn(int rank, int process);
  void Kill(std::size_t index);
  // A member leaves before the others: it hands its residuals over, and goes.
  void AskToLeave();
  // False: it has to go on.
  bool BeginLeave(Member& member);
  void OnHandedOver(Member& member, const client::HandedOverEffect& effect);
  void FinishLeave(Member& member);
  void Go(Member& member);
  // Members that are through with their steps. False: it has to wait.
  bool MayLeaveAtEnd(const Member& member) const;
  void LeaveAtEnd(Member& member);
  // As the runtime does when it has looked for a daemon for long enough.
  void GiveUpAtEnd(Member& member);
  void NoteGoneAtEnd(Member& member);
  // The daemon, when some members are through and others have not heard it yet.
  bool MaybeLoseAtEnd();
  // Nobody that is here has steps to do.
  bool OnlyEndsAreLeft() const;
  static bool IsOfAnEnd(const absl::Status& status);
  // Another process comes, or none.
  void Replace(Member& member);
  void Return(Member& dead);
  void Pass(absl::Duration time);
  // What the last daemon knows of all gradients.
  void CheckLedger();

  const std::uint64_t seed_;
  const bool late_;
  Random random_;
  server::SessionOptions options_;
  std::vector<ParameterSpec> manifest_;
  std::vector<Step> steps_;
  std::map<std::int64_t, std::uint64_t> chains_;   // before each step
  std::unique_ptr<testing::HookWorld> reference_;  // of PowerSGD
  std::size_t reference_steps_ = 0;
  bool reference_holds_ = true;
  DrawBuckets draw_plan_;  // that each process of rank 0 sets before its first step; empty: none
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<int> first_ranks_;  // of each member
  std::vector<std::unique_ptr<Life>> lives_;
  std::vector<std::unique_ptr<Link>> links_;
  std::string session_key_;
  int keep_percent_ = 0;  // of the members keep their gradients
  int faults_left_ = 0;
  int fault_percent_ = 0;  // of a thousand actions
  bool welcomed_ = false;  // all members once were
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  std::uint64_t next_link_ = 0;
  client::Ticket next_ticket_ = 1;
  int processes_ = 0;  // that came later
  bool model_is_lost_ = false;
  bool was_split_ = false;     // two daemons ran at once
  bool left_too_few_ = false;  // when a member went
  bool has_losses_ = false;    // of residuals, or there may be some
  std::string violation_;
  RecoveryCounts counts_{};
  LateCounts late_counts_;
  std::vector<Gone> gone_;
  Random losses_;       // of late members
  bool loses_ = false;  // members, where they are late
  int late_losses_left_ = 0;
  Random arbiter_;  // what it does
  std::vector<server::RosterClaim> claims_;
  int claim_faults_left_ = 0;
  std::map<std::uint64_t, bool> asking_;  // by daemon's life: a claim is on its way
  Random ends_;
  bool leaves_at_end_ = false;  // members do, who stay else until all are through
  bool has_lost_at_end_ = false;
};

}  // namespace gradwire::sim
