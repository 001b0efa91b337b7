// Sessions with node groups: a real SessionCore, real GroupedMembers, and between them a network, a
// clock and the groups' communicators of the simulation's own. One thread; the seed decides
// everything. Faults here are those that node groups add something to: members that die, streams
// that break and resume, members that stand still. All others are in simulation.h.
//
// Or the session outlives its daemon (group_simulation_recovery.cc): daemons are lost at any
// moment, members too, and other processes take their places. What a group's communicator has open
// then is never done, and it connects anew. A step is applied by all members or by none, with the
// bits of the reference; it is dropped only after a loss. Or it goes on without members that are
// lost, in smaller groups or without some: a step then has the bits of a reference with those who
// are there.
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

#include "client/core/grouped_member.h"
#include "server/core/session_core.h"
#include "tests/sim/events.h"
#include "tests/sim/group_scenario.h"
#include "tests/sim/random.h"
#include "tests/testing/hook_world.h"

namespace gradwire::sim {

enum class GroupCount : std::uint8_t {
  kSteps,
  kSkips,
  kExchanges,
  kGathers,
  kResumes,
  kDeaths,
  kDeathsInAnOperation,
  kFailures,
  kLowRankSteps,
  kMembersAlone,
  // Where the session outlives its daemon.
  kLivesLost,
  kLivesLostInAnOperation,
  kLivesLostWhileGathering,
  kDropped,
  kDroppedUnderTheUser,
  kConcludedByReports,
  kStatesTakenBack,
  kMembersReplaced,
  kHealed,
  kMembersGone,
  kStepsOfFewer,
  kSharesMoved,
  kLeftBehind,
  kNumCounts,
};
std::string Name(GroupCount count);
using GroupCounts = std::array<std::uint64_t, static_cast<std::size_t>(GroupCount::kNumCounts)>;

class GroupSimulation {
 public:
  explicit GroupSimulation(std::uint64_t seed, bool recovers = false);
  ~GroupSimulation();

  // Runs to the end. Returns what was violated; empty: nothing.
  std::string Run();
  const GroupCounts& counts() const { return counts_; }

 private:
  static constexpr std::uint64_t kNoLife = ~std::uint64_t{0};
  struct Group {
    std::vector<int> ranks;
    bool operator==(const Group&) const = default;
  };
  // A bucket of the user's.
  struct OpenBucket {
    std::int64_t step = 0;
    std::vector<std::uint32_t> parameters;
    std::vector<std::byte> bytes;
    std::unique_ptr<GradBucket> bucket;
    std::vector<std::vector<std::byte>> sums;  // of the member's own shares
    std::vector<std::unique_ptr<GradBucket>> shares;
  };
  // A process and its stream. Frames of a stream that has broken are lost.
  struct Member {
    int rank = 0;
    std::string group;  // its name; "": none
    std::unique_ptr<Hook> hook;
    std::unique_ptr<client::GroupedMember> member;
    std::uint64_t connection = 0;  // 0: none
    absl::Time last_up;            // frames of a stream arrive in order
    absl::Time last_down;
    bool welcomed = false;
    bool dead = false;
    bool done = false;
    bool failed = false;
    bool sending = false;       // SendNext follows
    std::size_t steps = 0;      // that are over
    std::size_t calls = 0;      // of its communicator
    bool in_operation = false;  // one of them is not done
    std::map<client::Ticket, OpenBucket> buckets;
    std::string communicator;    // "": not connected
    std::function<void()> call;  // that waits for it
    std::uint64_t aborts = 0;    // of communicators
    bool in_step = false;        // its user
    int open_calls = 0;          // of the user, in its step
    // Steps that the user does not know to be over, and who was in the session then.
    std::deque<std::pair<client::StepDoneEffect, std::vector<Group>>> over;
    std::vector<Group> groups;  // of those in the roster of the last Welcome
    // ---- With further daemons
    std::uint64_t start_id = 0;
    std::uint64_t life = kNoLife;              // of the daemon that gave it its place
    std::optional<wire::MemberReport> report;  // a daemon is to take it
    bool rejoins = false;                      // its first stream to this daemon is to come
  };
  // What its members have called, by number of the call.
  struct Communicator {
    std::map<std::size_t, std::map<int, client::Ticket>> calls{};  // by rank
    std::map<int, Member*> members{};                              // by rank
  };

  void After(absl::Duration delay, std::function<void()> action);
  void Violate(const std::string& what);
  void Note(GroupCount count) { ++counts_[static_cast<std::size_t>(count)]; }
  absl::Duration Delay() { return random_.Between(absl::ZeroDuration(), absl::Milliseconds(5)); }

  // The daemon.
  void Apply(server::Effects effects);
  void On(server::SendEffect& effect);
  void On(server::FanOutEffect& effect);
  void On(server::ResultEffect& effect);
  void On(server::ReduceEffect& effect);
  void On(server::ComputeEffect& effect);
  void On(server::ChoreEffect& effect);
  void On(server::RestoreEffect& effect);
  void On(server::CloseEffect& effect);
  template <class Other>
  void On(Other& /*effect*/) {}
  void SendDown(int rank, wire::Frame frame);
  void Tick();

  // The members.
  void Attach(Member& member);
  void SendUp(Member& member, wire::Frame frame);
  void Apply(Member& member, client::Effects effects);
  void On(Member& member, client::SendFrameEffect& effect);
  void On(Member& member, client::SendChunkEffect& effect);
  void On(Member& member, client::GroupEffect& effect);
  void On(Member& member, client::WelcomeEffect& effect);
  void On(Member& member, client::ExchangeEffect& effect);
  void On(Member& member, client::GatherEffect& effect);
  void On(Member& member, client::ConnectEffect& effect);
  void On(Member& member, client::AbortGroupEffect& effect);
  void On(Member& member, client::PreparedEffect& effect);
  void On(Member& member, client::BucketDoneEffect& effect);
  void On(Member& member, client::StepDoneEffect& effect);
  void On(Member& member, client::FailedEffect& effect);
  template <class Other>
  void On(Member& /*member*/, Other& /*effect*/) {}
  void BeginStep(Member& member);
  void StartBucket(Member& member, const std::vector<std::uint32_t>& parameters);
  void EndStep(Member& member);
  // The user hears that its step is over, when it has made all of its calls.
  void MaybeFinish(Member& member);

  // The communicators.
  void Ask(Member& member, client::Ticket ticket, bool gather);
  void Call(Member& member, client::Ticket ticket, bool gather);
  void Complete(Communicator& communicator, const std::map<int, client::Ticket>& calls,
                bool gather);
  void Answer(Member& member, client::Ticket ticket, bool gather);
  void Exchange(Member& member, client::Ticket ticket, const Communicator& communicator,
                const std::map<int, client::Ticket>& calls);
  void Gather(Member& member, client::Ticket ticket, const Communicator& communicator,
              const std::map<int, client::Ticket>& calls);

  // Faults.
  void MaybeCut(Member& member);
  void MaybeDie();

  // Of a session that outlives its daemon.
  void BeginLife(server::SessionOptions options);
  void LoseDaemon();
  void Lose(Member& member, std::uint64_t life);
  void Join(Member& member);
  void MaybeReplace(std::uint64_t chance);
  // Whether those who stay are enough, and somebody of them has the model.
  bool MayLose(int rank) const;
  void Kill(Member& lost);
  // Another process comes for its rank.
  void Replace(int rank);
  // All have done all steps; who has come since waits in vain.
  bool IsOver() const;
  // The others have not waited for a member that was away; it comes again as a new one.
  bool IsLeftBehind(const absl::Status& status) const;
  // As their processes had asked for when the daemon's session began. No ranks: all.
  std::vector<Group> GroupsOf(const std::vector<int>& roster, std::uint64_t life) const;
  void MaybeBreak(std::size_t ran);
  server::JoinAsk AskOf(const Member& member) const;
  // Of its rank.
  bool IsFirstProcess(const Member& member) const {
    return member.start_id <= static_cast<std::uint64_t>(scenario_.options.world_size);
  }

  // The declared numerics.
  testing::MemberGradients OfGroup(const Group& group, std::int64_t step, double divisor) const;
  void CheckStep(Member& member, const client::StepDoneEffect& over,
                 const std::vector<Group>& groups);
  void CheckResults(const Member& member, std::int64_t step);
  const std::vector<testing::MemberGradients>& Expected(std::int64_t step);
  std::string Conclude();

  Random random_;
  const GroupScenario scenario_;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  std::unique_ptr<server::SessionCore> session_;
  std::uint64_t life_ = 0;  // of daemons
  Events events_;
  std::uint64_t next_connection_ = 1;
  std::vector<std::unique_ptr<Member>> members_;  // by rank
  std::vector<std::unique_ptr<Member>> replaced_;
  std::map<std::string, Communicator> communicators_;
  std::uint64_t next_start_id_ = 1;
  std::size_t next_loss_ = 0;
  std::size_t next_death_ = 0;
  std::size_t losses_ = 0;  // of daemons and members
  std::set<std::int64_t> dropped_;
  // A member is gone with its residuals, and factors: results are compared among members only.
  bool has_reference_ = true;
  std::map<std::pair<std::int64_t, std::vector<std::uint32_t>>, std::vector<std::byte>> seen_;
  std::vector<Group> groups_;  // at first
  client::Ticket next_ticket_ = 1;
  std::unique_ptr<testing::HookWorld> reference_;
  std::map<std::int64_t, std::vector<testing::MemberGradients>> expected_;
  std::map<std::int64_t, Verdict> verdicts_;
  std::map<std::int64_t, std::vector<Group>> of_step_;       // of those that were not dropped
  std::map<std::uint64_t, std::vector<std::string>> names_;  // by life and rank: of groups
  std::optional<absl::Time> death_;
  std::string failure_;  // as the first member was told
  std::string violation_;
  GroupCounts counts_{};
};

}  // namespace gradwire::sim
