// Sessions with node groups: a real SessionCore, real GroupedMembers, and between them a network, a
// clock and the groups' communicators of the simulation's own. One thread; the seed decides
// everything. Faults here are those that node groups add something to: members that die, streams
// that break and resume, members that stand still. All others are in simulation.h.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
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
  kNumCounts,
};
std::string Name(GroupCount count);
using GroupCounts = std::array<std::uint64_t, static_cast<std::size_t>(GroupCount::kNumCounts)>;

class GroupSimulation {
 public:
  explicit GroupSimulation(std::uint64_t seed);
  ~GroupSimulation();

  // Runs to the end. Returns what was violated; empty: nothing.
  std::string Run();
  const GroupCounts& counts() const { return counts_; }

 private:
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
    std::size_t group = 0;
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
  };
  // What the members of a group have called, by number of the call.
  struct Group {
    std::vector<int> ranks;
    std::map<std::size_t, std::map<int, client::Ticket>> calls;  // by rank
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
  void On(server::RestoreEffect& /*effect*/) { Violate("a state is restored"); }
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
  void On(Member& member, client::BucketDoneEffect& effect);
  void On(Member& member, client::StepDoneEffect& effect);
  void On(Member& member, client::FailedEffect& effect);
  template <class Other>
  void On(Member& /*member*/, Other& /*effect*/) {}
  void BeginStep(Member& member);
  void StartBucket(Member& member, const std::vector<std::uint32_t>& parameters);

  // The communicators.
  void Call(Member& member, client::Ticket ticket, bool gather);
  void Exchange(Member& member, client::Ticket ticket, const std::map<int, client::Ticket>& calls);
  void Gather(Member& member, client::Ticket ticket, const std::map<int, client::Ticket>& calls);

  // Faults.
  void MaybeCut(Member& member);
  void MaybeDie();

  // The declared numerics.
  testing::MemberGradients OfGroup(const Group& group, std::int64_t step) const;
  void CheckStep(Member& member, std::int64_t step, Verdict verdict);
  const std::vector<testing::MemberGradients>& Expected(std::int64_t step);
  std::string Conclude();

  Random random_;
  const GroupScenario scenario_;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  server::SessionCore session_;
  Events events_;
  std::uint64_t next_connection_ = 1;
  std::vector<std::unique_ptr<Member>> members_;  // by rank
  std::vector<Group> groups_;
  client::Ticket next_ticket_ = 1;
  std::unique_ptr<testing::HookWorld> reference_;
  std::map<std::int64_t, std::vector<testing::MemberGradients>> expected_;
  std::map<std::int64_t, Verdict> verdicts_;
  std::optional<absl::Time> death_;
  std::string failure_;  // as the first member was told
  std::string violation_;
  GroupCounts counts_{};
};

}  // namespace gradwire::sim
