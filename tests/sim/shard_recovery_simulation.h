// Sessions with several shards that outlive the loss of any of them: real SessionCores, one life of
// a shard's daemon after another, and real Members, with one core at each shard. What the cores of
// a member tell each other goes as client/shard_exchange.cc and client/runtime have it. One thread;
// the seed decides everything.
//
// Daemons end at any moment, one or several at once, also while members gather: what they had sent
// may arrive or not, and all that they knew is lost. Streams break too, joins arrive after they
// were given up, and what cores tell each other arrives late. All members finish all steps, and:
// * each step has one verdict, the same for all members;
// * a step that is applied has the mean of all gradients in every member's buffers, bit for bit;
//   with PowerSGD, what hooks without any session make of them, and of the steps before;
// * a step is skipped only if a contribution was not finite, or if a daemon was lost in it; not
//   even then, if all members keep their gradients, whatever their users do to results meanwhile.
//
// Members do not die here (see recovery_simulation.h).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/core/member.h"
#include "client/core/shard_losses.h"
#include "client/core/shard_vote.h"
#include "client/shard_buckets.h"
#include "hooks/draw_buckets.h"
#include "hooks/ledger_hook.h"
#include "server/core/session_core.h"
#include "tests/sim/bytes.h"
#include "tests/sim/random.h"
#include "tests/sim/shard_recovery_counts.h"
#include "tests/testing/hook_world.h"

namespace gradwire::sim {

class ShardRecoverySimulation {
 public:
  explicit ShardRecoverySimulation(std::uint64_t seed);
  ~ShardRecoverySimulation();

  // The violation; "": none.
  std::string Run();
  const ShardRecoveryCounts& counts() const { return counts_; }

 private:
  struct Life;
  struct Member;
  struct Place;
  // A stream between a place and one life of its daemon. What is in `down` may still arrive after
  // the life's end; then comes the end of the stream.
  struct Link {
    std::uint64_t id = 0;
    Place* place = nullptr;  // null: it left this stream
    Life* life = nullptr;
    std::deque<wire::Frame> up{};
    std::deque<wire::Frame> down{};
    bool attached = false;  // the daemon knows the stream
    bool closed = false;    // the daemon sends nothing more: the end follows what is in `down`
    bool refused = false;   // the daemon does not know the session
  };
  // Of one shard: a session at one daemon.
  struct Life {
    std::uint32_t shard = 0;
    std::uint64_t number = 0;  // among the shard's
    std::unique_ptr<server::SessionCore> session{};
    // Sums that are computed, and other work; the session hears of it later.
    std::deque<std::function<void(server::SessionCore&, server::Effects&)>> answers{};
    std::map<int, Link*> links{};  // by rank: the current ones
    bool over = false;             // with its daemon
    bool open() const { return !over && session->state() != server::SessionCore::State::kClosed; }
    bool gathers() const {
      return open() && session->state() == server::SessionCore::State::kJoining;
    }
  };
  // A shard's daemon, one process after another.
  struct Daemon {
    std::vector<std::unique_ptr<Life>> lives;
    bool draining = false;  // the process has handed over, and is still there
    bool down = false;      // there is none
    bool answers() const { return !draining && !down; }
  };
  // A join on its way to the daemon, or the answer on its way back.
  struct Call {
    Place* place = nullptr;
    server::JoinAsk ask{};
    std::uint64_t number = 0;  // of Place::tries
    bool abandoned = false;    // nobody waits for the answer
    Life* answer = nullptr;    // that has taken it
  };
  // A member's core at one shard, with its runtime's thread: whatever it does is done in turn.
  struct Place {
    Member* owner = nullptr;
    std::uint32_t shard = 0;
    std::unique_ptr<Hook> hook;
    LedgerHook* ledger = nullptr;  // the hook, if the session has a ledger
    std::unique_ptr<client::Member> core;
    Life* life = nullptr;      // that gave it its place
    Link* link = nullptr;      // null: it has none, and tries
    std::uint64_t stream = 0;  // the latest
    bool welcomed = false;
    bool is_lost = false;  // the daemon, and no other one has taken the report
    std::uint64_t tries = 0;
    std::uint64_t life_of_lead = 0;
    std::deque<std::function<void()>> calls{};  // of other threads
    // What it has to push to others' calls: it does nothing else until it has.
    std::deque<std::pair<Place*, std::function<void()>>> pushes{};
    // As the runtime has it: steps that are over and not yet told to the user.
    std::deque<client::StepDoneEffect> over{};
    bool ends_step = false;      // the user waits for it
    std::size_t steps_told = 0;  // to the user, that are over
  };
  struct OpenBucket {
    std::uint32_t id = 0;
    std::shared_ptr<ByteVector> buffer;
    std::unique_ptr<GradBucket> bucket;
    std::vector<client::ShardBucket> parts;
    std::size_t open = 0;     // parts without a result
    ByteVector result;        // that it was done with
    bool is_changed = false;  // by the user, then
  };
  struct Member {
    explicit Member(std::uint32_t shards) : places(shards), vote(shards), losses(shards) {}
    int rank = 0;
    bool keeps_gradients = false;
    bool in_place = false;      // daemons write results over its gradients
    std::vector<Place> places;  // by shard
    client::ShardVote vote;
    client::ShardLosses losses;
    // The user: which bucket of the step is next, and what it waits for.
    std::size_t step = 0;
    std::size_t next_bucket = 0;
    std::vector<std::size_t> order{};  // of the step's buckets
    bool ended = false;
    std::vector<client::StepDoneEffect> done{};  // of the shards that have ended the step
    std::size_t entered = 0;                     // shards of a collective that are not through
    std::size_t collectives = 0;                 // over, of the gap before the step
    ByteVector broadcast{};
    bool has_set_plan = false;
    std::vector<std::unique_ptr<OpenBucket>> buckets{};
    std::map<client::Ticket, OpenBucket*> parts{};
    Place& lead() { return places.front(); }
  };
  struct Step {
    std::vector<std::vector<std::uint32_t>> buckets;
    int nonfinite_rank = -1;
    std::uint32_t nonfinite_parameter = 0;
    std::vector<wire::CollectiveKind> collectives;  // before it
    bool lost_in = false;                           // a daemon
    std::optional<Verdict> verdict;
    std::map<std::uint32_t, ByteVector> expected{};  // by bucket
  };
  using Actions = std::vector<std::function<void()>>;

  void MakeScenario();
  void MakeModel(bool low_rank);
  void MakeSteps();
  void MakeSessions();
  void AddPlace(Member& member, std::uint32_t shard);
  void Violate(const std::string& what);
  void Note(ShardRecoveryCount count) { ++counts_[static_cast<std::size_t>(count)]; }
  void Possible(Actions& actions);
  void PossibleOf(Place& place, Actions& actions);
  bool AllFinished() const;
  bool IsSlow() const;
  std::string Where() const;  // everybody is
  void MaybeFault();
  void Kill();
  void CutSomebody();

  // Daemons.
  Life* LifeOf(std::uint32_t shard) const;  // the latest; null: its daemon is another one since
  Life& NewLife(std::uint32_t shard, const server::JoinAsk& ask);
  bool KillDaemon(std::uint32_t shard);
  bool HandOver(std::uint32_t shard);
  void EndDaemon(Daemon& daemon, bool loses_frames);
  void NoteLoss(std::uint32_t shard);
  void Apply(Life& life, server::Effects effects);
  void Deliver(Life& life, int rank, wire::Frame frame);
  void DeliverResult(Life& life, int rank, const server::ResultEffect& effect);
  void Reduce(Life& life, const server::ReduceEffect& effect);
  void Compute(Life& life, const server::Effect& effect);
  void NoteLog(const server::LogEffect& log);
  void TakeUp(Link& link);
  void TakeDown(Link& link);
  void End(Link& link);
  void Cut(Place& place);
  // It arrives, or its answer does. False: it is over.
  bool Take(Call& call);
  bool TakeJoin(Call& call);

  // Members.
  Member& MemberOf(int rank) { return *members_[static_cast<std::size_t>(rank)]; }
  void NoteChain(const Place& lead);
  void CheckChains();
  void Connect(Place& place);
  void OpenLink(Place& place, Life& life);
  void OnJoined(Place& place, Life& life);
  void OnFrame(Place& place, const wire::Frame& frame);
  void ApplyMember(Place& place, client::Effects effects);
  void On(Place& place, client::SendFrameEffect& effect);
  void On(Place& place, client::SendChunkEffect& effect);
  void On(Place& place, client::SendCollectiveEffect& effect);
  void On(Place& place, client::ReceiveCollectiveEffect& effect);
  void On(Place& place, client::BucketDoneEffect& effect);
  void On(Place& place, client::WelcomeEffect& effect);
  void On(Place& place, client::PreparedEffect& effect);
  void Tell(Place& place, const client::PreparedEffect& effect);
  void On(Place& place, client::StepDoneEffect& effect);
  void On(Place& place, client::CollectiveDoneEffect& effect);
  void On(Place& place, client::FailedEffect& effect);
  template <class Other>
  void On(Place& /*place*/, Other& /*effect*/) {}
  bool SendInPlace(Place& place, client::SendChunkEffect& effect);
  void SendUp(Place& place, wire::Frame frame);
  // What `from` tells `to`, at once or later.
  void Push(Place& from, Place& to, std::function<void()> call);
  // What ShardExchange and Runtime do.
  void OnLost(Place& place, std::optional<std::uint64_t> asked);
  void AskToGather(Place& place, std::uint32_t lost_shard, std::uint64_t number);
  void Follow(Place& place, const wire::Recovery& lead);
  void BeginRejoin(Place& place, const wire::MemberReport& report);
  void GiveUpJoin(Place& place);
  server::JoinAsk AskOf(const Place& place) const;

  // Users.
  bool CanAct(const Member& member) const;
  void Act(Member& member);
  void StartBucket(Member& member, const std::vector<std::uint32_t>& parameters);
  void StartPart(Place& place, OpenBucket& open, GradBucket& part);
  void EndStep(Place& place);
  void TellEnd(Place& place);
  void SetDrawPlan(Member& member);
  void EnterCollective(Member& member);
  void FinishStep(Member& member);
  void CheckApplied(const Member& member, Step& step);
  bool AllKeepGradients() const;

  // What must come out.
  ByteVector Gradient(int rank, std::size_t step,
                      const std::vector<std::uint32_t>& parameters) const;
  ByteVector Mean(std::size_t step, const std::vector<std::uint32_t>& parameters) const;
  void RunReference(std::size_t step);
  void Expect(std::size_t step);
  void CheckLedger();

  const std::uint64_t seed_;
  Random random_;
  server::SessionOptions options_;
  std::shared_ptr<const ShardMap> map_;
  std::vector<ParameterSpec> manifest_;
  std::unique_ptr<client::ShardBuckets> divide_;
  std::vector<Step> steps_;
  std::map<std::int64_t, std::uint64_t> chains_;   // before each step
  std::unique_ptr<testing::HookWorld> reference_;  // of PowerSGD
  bool has_reference_begun_ = false;
  DrawBuckets draw_plan_;  // that rank 0 sets before the first step; empty: none
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<Daemon> daemons_;  // by shard
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<std::unique_ptr<Call>> calls_;
  int keep_percent_ = 0;    // of the members keep their gradients
  int stall_percent_ = 0;   // of pushes come late
  int device_percent_ = 0;  // of shards' verdicts wait for the device
  // Of actions that are possible: how often they are, where they are slow.
  int restart_percent_ = 0;  // a daemon's start
  int join_percent_ = 0;
  int push_percent_ = 0;
  int late_percent_ = 0;  // the arrival of a join that was given up
  int faults_left_ = 0;
  int fault_percent_ = 0;  // of a thousand actions
  int burst_ = 0;          // actions from a loss on in which another one is more likely
  bool welcomed_ = false;  // all members, by all shards
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  std::uint64_t next_link_ = 0;
  client::Ticket next_ticket_ = 1;
  std::string violation_;
  ShardRecoveryCounts counts_{};
};

}  // namespace gradwire::sim
