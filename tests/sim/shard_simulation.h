// Sessions with several shards and leaf daemons: a real SessionCore for each daemon, real Members,
// and between them a network and a clock of the simulation's own. A member has a core for each
// shard, and hands events of one to the others as client/sharded_client.cc does; a leaf adds up
// buckets and sends them to the root as server/session/leaf_session.cc does. One thread; the seed
// decides everything.
// Faults here are those that shards and leaves add something to: streams that break and resume,
// members that die, leave early or lose one daemon, daemons that die, a session that its owner
// ends. All others are in simulation.h.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/core/given_bytes.h"
#include "client/core/grouped_member.h"
#include "client/core/shard_vote.h"
#include "client/shard_buckets.h"
#include "server/core/session_core.h"
#include "tests/sim/events.h"
#include "tests/sim/feedback_hook.h"
#include "tests/sim/random.h"
#include "tests/sim/shard_counts.h"
#include "tests/sim/shard_scenario.h"
#include "tests/testing/hook_world.h"

namespace gradwire::sim {

class ShardSimulation {
 public:
  explicit ShardSimulation(ShardScenario scenario);
  ~ShardSimulation();

  // Runs to the end. Returns what was violated; empty: nothing.
  std::string Run();
  const ShardCounts& counts() const { return counts_; }

 private:
  struct Link;
  struct Leaf;
  // One shard of the root's session, or a leaf's.
  struct Daemon {
    std::uint32_t shard = 0;
    Leaf* leaf = nullptr;  // null: it is a shard
    std::unique_ptr<server::SessionCore> session;
    std::vector<Link*> links;     // by rank; null: the rank is elsewhere
    std::size_t most_bytes = 0;   // that it may hold
    bool told = false;            // a member had the time to say that the session has failed
    std::int64_t concluded = -1;  // the newest step of which a member said so
    bool dead = false;
    bool running() const {
      return !dead && session->state() == server::SessionCore::State::kRunning;
    }
  };
  // A bucket of the user's.
  struct OpenBucket {
    std::vector<std::uint32_t> parameters;
    std::vector<std::byte> bytes;
    std::unique_ptr<GradBucket> whole;
    std::vector<client::ShardBucket> parts;
    std::size_t open = 0;        // parts without a result
    std::function<void()> done;  // of a leaf's client
  };
  struct Member;
  // A member's core at one daemon, and its stream. Frames of a stream that has broken are lost.
  struct Link {
    Member* owner = nullptr;
    Daemon* daemon = nullptr;
    std::unique_ptr<WatchedHook> hook;
    std::unique_ptr<client::GroupedMember> core;
    std::uint64_t connection = 0;  // 0: none
    bool attached = false;         // the daemon knows the stream
    absl::Time last_up;            // frames of a stream arrive in order
    absl::Time last_down;
    bool welcomed = false;
    bool cut_off = false;  // for good
    bool leaving = false;  // opens no more streams
    bool left = false;
    bool sending = false;  // SendNext follows
    std::uint32_t shard() const { return daemon->shard; }
  };
  // A trainer, or a leaf's client.
  struct Member {
    Member(int number, std::size_t in_group, std::uint32_t shards)
        : rank(number), group(in_group), vote(shards) {}
    const int rank;
    const std::size_t group;
    Leaf* client_of = nullptr;  // null: it is a trainer
    Leaf* behind = nullptr;     // null: it is at the root
    client::ShardVote vote;
    std::vector<std::unique_ptr<Link>> links;  // by shard
    bool dead = false;
    bool failed = false;
    bool left = false;
    double weight = 1;           // of its gradients
    std::size_t welcomed = 0;    // by so many shards
    std::size_t concluded = 0;   // shards of the open step
    std::size_t steps = 0;       // that are over
    std::size_t entered = 0;     // shards of a collective that are not through
    bool had_barrier = false;    // or is in it
    std::size_t broadcasts = 0;  // that are over
    bool broadcasting = false;
    std::vector<std::byte> broadcast{};  // the root's bytes, or those that came
    client::GivenBytes given{};          // of a leaf's client
    std::vector<std::unique_ptr<OpenBucket>> buckets;
    std::map<client::Ticket, OpenBucket*> parts;  // which bucket each is of
    bool over() const { return dead || failed || left; }
  };
  // A bucket at a leaf: the node's mean, and then the root's result.
  struct Sum {
    std::vector<std::uint32_t> parameters;
    std::vector<std::byte> bytes;
    std::size_t left = 0;  // elements that are not added up
    std::vector<server::ReduceEffect> reductions;
  };
  // What a leaf daemon does besides its session.
  struct Leaf {
    ShardGroup place;
    Daemon* daemon = nullptr;
    Member* client = nullptr;
    bool joined = false;  // the client has begun to
    bool ended = false;   // its session is over
    absl::Time last_wish;
    absl::Time last_answer;
    std::map<std::pair<std::int64_t, std::uint32_t>, std::shared_ptr<Sum>> sums;
    std::optional<std::int64_t> asked;  // the step whose verdict it waits for
    Verdict verdict = Verdict::kApply;  // of the client's last step
  };

  void MakeDaemons();
  void MakeMembers();
  Member& AddMember(int rank, Leaf* client_of, Leaf* behind);
  void AddLink(Member& member, Daemon& daemon);

  void After(absl::Duration delay, std::function<void()> action);
  void Violate(const std::string& what);
  void Note(ShardCount count) { ++counts_[static_cast<std::size_t>(count)]; }
  absl::Duration Delay() { return random_.Between(absl::ZeroDuration(), scenario_.longest_delay); }

  // The daemons.
  void Apply(Daemon& daemon, server::Effects effects);
  void On(Daemon& daemon, server::SendEffect& effect);
  void On(Daemon& daemon, server::FanOutEffect& effect);
  void On(Daemon& daemon, server::ResultEffect& effect);
  void On(Daemon& daemon, server::ReduceEffect& effect);
  void On(Daemon& daemon, server::ComputeEffect& effect);
  void On(Daemon& daemon, server::ChoreEffect& effect);
  void On(Daemon& /*daemon*/, server::RestoreEffect& /*effect*/) { Violate("a state is restored"); }
  void On(Daemon& daemon, server::UpstreamEffect& effect);
  template <class Other>
  void On(Daemon& /*daemon*/, Other& /*effect*/) {}
  void SendDown(Daemon& daemon, int rank, wire::Frame frame);
  void CutWithin(Link& link, absl::Duration time);
  void Tick();

  // The leaves.
  void Wish(Leaf& leaf, std::function<void()> wish);
  void Answer(Leaf& leaf, std::function<void(server::SessionCore&, server::Effects&)> answer);
  void JoinUpstream(Leaf& leaf);
  void OnUpstreamJoined(Leaf& leaf);
  void ReduceAtLeaf(Leaf& leaf, const server::ReduceEffect& effect);
  void ReduceUpstream(Leaf& leaf, const std::shared_ptr<Sum>& sum);
  void SpreadOut(Leaf& leaf, const std::shared_ptr<Sum>& sum);
  void EndUpstreamStep(Leaf& leaf, std::int64_t step);
  void MaybeConclude(Leaf& leaf);
  void EndLeaf(Leaf& leaf);

  // Streams.
  void Join(Link& link);
  server::JoinAsk AskOf(const Link& link) const;
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
  void On(Link& link, client::SendCollectiveEffect& effect);
  void On(Link& link, client::ReceiveCollectiveEffect& effect);
  void On(Link& link, client::RelayBegunEffect& effect);
  void On(Link& link, client::RelayTakenEffect& effect);
  void On(Link& link, client::WelcomeEffect& effect);
  void On(Link& link, client::BucketDoneEffect& effect);
  void On(Link& link, client::PreparedEffect& effect);
  void On(Link& link, client::StepDoneEffect& effect);
  void On(Link& link, client::CollectiveDoneEffect& effect);
  void On(Link& link, client::FailedEffect& effect);
  template <class Other>
  void On(Link& /*link*/, Other& /*effect*/) {}
  void ConcludeOthers(Member& member, Verdict verdict);
  void FailAll(Member& member, const absl::Status& why, int blamed_rank, const Link* but);
  void BeginStep(Member& member);
  void SetDrawPlan(Member& member);
  void StartBuckets(Member& member);
  OpenBucket& StartBucket(Member& member, const std::vector<std::uint32_t>& parameters,
                          std::vector<std::byte> bytes);
  void EndStep(Member& member);

  // Collectives.
  void NextCollective(Member& member);
  void EnterBarrier(Member& member);
  void EnterBroadcast(Member& member);
  void EndBroadcast(Member& member);
  void EnterRelay(Leaf& leaf, const server::UpstreamEffect& effect);
  void Give(Leaf& leaf, const wire::PayloadRef& bytes);
  void MakeRoom(Leaf& leaf, std::uint64_t room);
  void GoOn(Leaf& leaf, const server::UpstreamProgress& progress);
  std::vector<std::byte> BroadcastBytes(std::size_t number) const;

  // Faults.
  void Lose(const Link& link, const wire::Frame& frame);
  void LoseWords(const Link& link, const wire::Frame& frame);
  void MaybeCut(Link& link, int percent);
  void Cut(Link& link);
  void CutForGood(Link& link);
  void MaybeFail();
  bool Die();
  bool CutOff();
  bool Evict();
  bool LoseLeaf();
  void BeAbsent();
  bool MaybeQuit(Member& member);
  Leaf* FaultyLeaf() const;
  bool IsFaulty(const Leaf* leaf) const { return leaf != nullptr && leaf == FaultyLeaf(); }
  // The leaf could tell no shard why its session has failed.
  bool WordsAreLost() const { return lost_words_ && !heard_words_; }
  absl::Duration ToldWithin() const;
  void CheckTold();

  // What must come out.
  std::vector<std::byte> GroupGradient(const ShardGroup& group, std::int64_t step,
                                       std::uint32_t parameter) const;
  const std::vector<testing::MemberGradients>& Expected(std::int64_t step);
  void CheckReference(std::int64_t step);
  void CheckStep(Member& member, std::int64_t step, Verdict verdict);
  bool MayBlame(const Member& member, int blamed_rank) const;
  void CheckWords(const Link& link, const client::FailedEffect& effect);
  std::string WithoutLeaf(const std::string& words) const;
  void CheckEnd();
  void CheckStates();
  void CheckDaemon(const Daemon& daemon);

  Random random_;
  const ShardScenario scenario_;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  std::vector<std::unique_ptr<Daemon>> daemons_;  // the shards, then the leaves
  std::vector<std::unique_ptr<Leaf>> leaves_;     // by group; null: a trainer at the root
  std::vector<std::unique_ptr<Member>> members_;  // trainers by rank, then the leaves' clients
  const client::ShardBuckets divide_;
  const client::ShardBuckets undivided_;
  Events events_;
  std::uint64_t next_connection_ = 1;
  client::Ticket next_ticket_ = 1;
  std::unique_ptr<testing::HookWorld> reference_;  // with a member for each group
  std::map<std::int64_t, std::vector<testing::MemberGradients>> expected_;  // by group
  std::map<std::int64_t, Verdict> verdicts_;
  int at_barrier_ = 0;              // trainers that have entered it
  std::vector<int> at_broadcasts_;  // by broadcast, the same
  bool fault_due_ = false;
  std::optional<absl::Time> fault_;
  bool refused_ = false;     // a member learned of the failure when it resumed, without the blame
  bool lost_words_ = false;  // of the leaf with the fault, at one shard at least
  bool heard_words_ = false;
  // As the first member was told, at the root's side and behind the leaf with the fault.
  std::string words_;
  std::string words_at_leaf_;
  std::string violation_;
  ShardCounts counts_{};
};

}  // namespace gradwire::sim
