// Sessions with several shards: a real SessionCore for each shard, real Members, and between them a
// network and a clock of the simulation's own. A member has a core for each shard, and hands events
// of one to the others as client/sharded_client.cc does. One thread; the seed decides everything.
// Faults here are those that shards add something to: streams that break and resume, members that
// die or lose one daemon, a session that its owner ends. All others are in simulation.h.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/core/member.h"
#include "client/core/shard_vote.h"
#include "client/shard_buckets.h"
#include "server/core/session_core.h"
#include "tests/sim/events.h"
#include "tests/sim/feedback_hook.h"
#include "tests/sim/random.h"
#include "tests/sim/shard_scenario.h"
#include "tests/testing/hook_world.h"

namespace gradwire::sim {

enum class ShardCount : std::uint8_t {
  kSteps,
  kSkips,
  kSkipsOfOthers,
  kLowRankSteps,
  kSlicedBuckets,
  kDividedBuckets,
  kEmptyShards,
  kOneShard,
  kAlone,
  kDrawPlans,
  kResumes,
  kResumesAhead,
  kResumesBehind,
  kLostReady,
  kLostConcluded,
  kLostPrepared,
  kLostStepDone,
  kEarlyRestarts,
  kEarlyLeaves,
  kDeaths,
  kCutOffs,
  kEvictions,
  kLastWords,
  kFailures,
  kNumCounts,
};
std::string Name(ShardCount count);
using ShardCounts = std::array<std::uint64_t, static_cast<std::size_t>(ShardCount::kNumCounts)>;

class ShardSimulation {
 public:
  explicit ShardSimulation(std::uint64_t seed);
  ~ShardSimulation();

  // Runs to the end. Returns what was violated; empty: nothing.
  std::string Run();
  const ShardCounts& counts() const { return counts_; }

 private:
  struct Shard {
    std::uint32_t number = 0;
    std::unique_ptr<server::SessionCore> session;
    std::size_t most_bytes = 0;   // that it may hold
    bool told = false;            // a member had the time to say that the session has failed
    std::int64_t concluded = -1;  // the newest step of which a member said so
  };
  // A bucket of the user's.
  struct OpenBucket {
    std::vector<std::uint32_t> parameters;
    std::vector<std::byte> bytes;
    std::unique_ptr<GradBucket> whole;
    std::vector<client::ShardBucket> parts;
    std::size_t open = 0;  // parts without a result
  };
  struct Member;
  // A member's core of one shard, and its stream. Frames of a stream that has broken are lost.
  struct Link {
    Member* owner = nullptr;
    std::uint32_t shard = 0;
    std::unique_ptr<WatchedHook> hook;
    std::unique_ptr<client::Member> core;
    std::uint64_t connection = 0;  // 0: none
    bool attached = false;         // the daemon knows the stream
    absl::Time last_up;            // frames of a stream arrive in order
    absl::Time last_down;
    bool welcomed = false;
    bool cut_off = false;  // for good
    bool leaving = false;  // opens no more streams
    bool left = false;
    bool sending = false;  // SendNext follows
  };
  struct Member {
    Member(int number, std::uint32_t shards) : rank(number), vote(shards) {}
    const int rank;
    client::ShardVote vote;
    std::vector<std::unique_ptr<Link>> links;  // by shard
    bool dead = false;
    bool failed = false;
    bool left = false;
    std::size_t welcomed = 0;   // by so many shards
    std::size_t concluded = 0;  // shards of the open step
    std::size_t steps = 0;      // that are over
    std::vector<std::unique_ptr<OpenBucket>> buckets;
    std::map<client::Ticket, std::pair<OpenBucket*, client::ShardBucket*>> parts;
    bool over() const { return dead || failed || left; }
  };

  void After(absl::Duration delay, std::function<void()> action);
  void Violate(const std::string& what);
  void Note(ShardCount count) { ++counts_[static_cast<std::size_t>(count)]; }
  absl::Duration Delay() { return random_.Between(absl::ZeroDuration(), scenario_.longest_delay); }
  Shard& ShardOf(const Link& link) { return shards_[link.shard]; }
  bool running(const Shard& shard) const {
    return shard.session->state() == server::SessionCore::State::kRunning;
  }

  // The daemons.
  void Apply(Shard& shard, server::Effects effects);
  void On(Shard& shard, server::SendEffect& effect);
  void On(Shard& shard, server::FanOutEffect& effect);
  void On(Shard& shard, server::ResultEffect& effect);
  void On(Shard& shard, server::ReduceEffect& effect);
  void On(Shard& shard, server::ComputeEffect& effect);
  void On(Shard& shard, server::ChoreEffect& effect);
  template <class Other>
  void On(Shard& /*shard*/, Other& /*effect*/) {}
  void SendDown(Shard& shard, int rank, wire::Frame frame);
  void Tick();

  // Streams.
  void Join(Link& link);
  void Attach(Link& link);
  void OnHello(Link& link, std::int64_t step);
  void SendUp(Link& link, wire::Frame frame);
  void Arrive(Link& link, const wire::Frame& frame);
  void Close(Link& link);
  void Leave(Link& link);

  // The members.
  void Deliver(Link& link, const wire::Frame& frame);
  void Apply(Link& link, client::Effects effects);
  void On(Link& link, client::SendFrameEffect& effect);
  void On(Link& link, client::SendChunkEffect& effect);
  void On(Link& link, client::WelcomeEffect& effect);
  void On(Link& link, client::BucketDoneEffect& effect);
  void On(Link& link, client::PreparedEffect& effect);
  void On(Link& link, client::StepDoneEffect& effect);
  void On(Link& link, client::FailedEffect& effect);
  template <class Other>
  void On(Link& /*link*/, Other& /*effect*/) {}
  void ConcludeOthers(Member& member, Verdict verdict);
  void BeginStep(Member& member);
  void StartBucket(Member& member, const std::vector<std::uint32_t>& parameters);
  void EndStep(Member& member);

  // Faults.
  void Lose(const wire::Frame& frame);
  void MaybeCut(Link& link, int percent);
  void Cut(Link& link);
  void MaybeFail();
  bool Die();
  bool CutOff();
  bool Evict();
  void CheckTold();

  // What must come out.
  const std::vector<testing::MemberGradients>& Expected(std::int64_t step);
  void CheckStep(Member& member, std::int64_t step, Verdict verdict);
  void CheckWords(const Link& link, const client::FailedEffect& effect);
  void CheckEnd();
  void CheckStates();

  Random random_;
  const ShardScenario scenario_;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  std::vector<Shard> shards_;
  std::vector<std::unique_ptr<Member>> members_;  // by rank
  const client::ShardBuckets divide_;
  Events events_;
  std::uint64_t next_connection_ = 1;
  client::Ticket next_ticket_ = 1;
  std::unique_ptr<testing::HookWorld> reference_;
  std::map<std::int64_t, std::vector<testing::MemberGradients>> expected_;
  std::map<std::int64_t, Verdict> verdicts_;
  bool fault_due_ = false;
  std::optional<absl::Time> fault_;
  bool refused_ = false;  // a member learned of the failure when it resumed, without the blame
  std::string words_;     // as the first member was told
  std::string violation_;
  ShardCounts counts_{};
};

}  // namespace gradwire::sim
