// The client's runtime: passes calls and frames to the member core, and applies the core's effects
// to the connection and to the user's calls. Only the thread that is inside the event queue's
// handler may use it, except for the last group of methods.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/sync.h"
#include "client/core/grouped_member.h"
#include "client/runtime/bucket_stats.h"
#include "client/runtime/collective_call.h"
#include "client/runtime/device_path.h"
#include "client/runtime/group_path.h"
#include "client/runtime/shard_place.h"
#include "client/transport/channel.h"
#include "client/transport/daemon_connection.h"
#include "client/transport/shared_memory.h"

namespace gradwire::client {

struct MemberHook;
class AddressWatch;
class Rejoin;
struct Rejoined;

// One EndStep call. The verdict is valid once the outcome is there and ok.
struct StepCall {
  Outcome outcome;
  Verdict verdict = Verdict::kApply;
};

// What becomes of this member's residuals before it leaves; valid once the outcome is there and ok.
struct HandOverCall {
  Outcome outcome;
  int rank = -1;  // who has them; -1: nobody
  std::string reason{};
};

class Runtime final : private EventHandler {
 public:
  Runtime(ClientOptions options, Joined joined, std::uint64_t start_id, MemberHook hook,
          ShardPlace shard, std::shared_ptr<EventQueue> events, std::shared_ptr<Poller> poller);
  ~Runtime();

  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // The SDK thread's loop. `joined` completes with the Welcome. Returns after Stop.
  void Run(std::shared_ptr<Outcome> joined);
  void Stop();

  // `ready`: when the gradients are there; null: now.
  void StartBucket(std::shared_ptr<GradBucket> bucket, std::unique_ptr<DeviceEvent> ready,
                   std::shared_ptr<Outcome> done);
  void EndStep(std::shared_ptr<StepCall> call);
  // As Client's.
  absl::Status CheckParameters(std::uint64_t digest);
  // `buckets` are checked.
  void SetDrawPlan(const DrawBuckets& buckets);
  void Enter(std::shared_ptr<CollectiveCall> call);
  // As MemberClient's.
  void Give(wire::PayloadRef bytes);
  void MakeRoom(std::uint64_t bytes);

  // As Member's.
  void SayReady(Verdict verdict, std::uint64_t digest);
  void ConcludeAs(const StepDoneEffect& lead);
  void FailElsewhere(const absl::Status& status, int blamed_rank);
  // This member's own failure.
  void Fail(const absl::Status& status);

  // ---- After the loss of a shard (runtime_shards.cc)
  // The daemon is to end the stream, because that shard is lost. ShardLink::lost follows when it
  // has; at once, with this `number`, where there is no stream.
  void AskToGather(std::uint32_t lost_shard, std::uint64_t number);
  // All shards are lost: shard 0's daemon gets the report of all.
  void RejoinWith(wire::MemberReport report);
  // Shard 0 goes on, in this life of the session, and this shard with it.
  void Follow(const ShardLife& life);

  // Between two steps, and nothing but HandOver follows: from here on the member takes nobody
  // else's residuals, which would not be in the state.
  absl::StatusOr<HookState> BeginHandOver();
  // Nothing but BeginLeave follows. `file`: that state; empty: it has no residuals.
  void HandOver(std::shared_ptr<HandOverCall> call, std::vector<std::byte> file);
  // `why` becomes the reason of the call, if it has no outcome yet.
  void CancelHandOver(const std::string& why);
  // Leave in two parts, again and again until the member has left. If it asks, the RPC between them
  // runs on the caller's thread; if it waits, nothing follows but the next BeginLeave. `waited`:
  // since the first.
  enum class Leaving : std::uint8_t { kAsks, kWaits, kLeft };
  absl::StatusOr<Leaving> BeginLeave(absl::Duration waited);
  absl::StatusOr<Leaving> FinishLeave(const absl::Status& answer, absl::Duration waited);
  absl::Duration LeaveTimeout() const;  // of the RPC

  // Ok if no step is open. `call` is for the error message.
  absl::Status BetweenSteps(const char* call) const;
  // The hook's state. Call it between two steps.
  absl::StatusOr<HookState> State() const;
  absl::Status LoadState(const HookState& state);
  absl::Status SetLossScale(double scale);

  // Ends every open call with Cancelled; no call may follow. Returns whether the daemon still
  // considers this client a member.
  bool CancelCalls();

  // May be called on any thread.
  // What the gradients are multiplied by (LeafWeight), from each Welcome on.
  double weight() const { return weight_.load(std::memory_order_relaxed); }
  std::shared_ptr<std::byte> AllocateGradients(std::size_t bytes) {
    return gradients_->Allocate(bytes);
  }
  absl::StatusOr<std::shared_ptr<void>> ShareGradients(const TensorView& gradients,
                                                       std::shared_ptr<void> owner) const
      GRADWIRE_EXCLUDES(shared_mutex_);
  std::int64_t step() const { return step_.load(std::memory_order_relaxed); }
  std::optional<MembershipChange> membership_change() const GRADWIRE_EXCLUDES(shared_mutex_);
  std::vector<int> members() const GRADWIRE_EXCLUDES(shared_mutex_);
  std::string skip_reason() const GRADWIRE_EXCLUDES(shared_mutex_);
  std::string parameter_drift() const GRADWIRE_EXCLUDES(shared_mutex_);
  ClientMetrics metrics() const GRADWIRE_EXCLUDES(shared_mutex_);
  std::vector<BucketReport> Report() const GRADWIRE_EXCLUDES(shared_mutex_);
  bool left() const { return left_.load(std::memory_order_relaxed); }
  absl::Status CallLeave(absl::Duration timeout) const GRADWIRE_EXCLUDES(shared_mutex_);
  absl::StatusOr<std::string> CallExport(absl::Duration timeout) const
      GRADWIRE_EXCLUDES(shared_mutex_);
  absl::Status CallImport(const std::string& state, absl::Duration timeout) const
      GRADWIRE_EXCLUDES(shared_mutex_);

 private:
  struct OpenBucket {
    std::shared_ptr<GradBucket> bucket;  // its run refers to it until the step's verdict
    std::shared_ptr<Outcome> done;       // null: completed
    BucketAlias alias{};                 // the bucket's buffer, if it lies in shared memory
  };

  void Handle(Event event, const ReadOn& read_on) override;
  bool has_work() const override { return member_.has_chunks(); }
  void DoWork() override;
  Clock::time_point OnIdle() override;
  void OnTimer(Clock::time_point now, Clock::duration late) override;
  bool finished() const override { return stopping_ && connection_->closed() && device_.idle(); }
  // Whether something is to be polled for.
  bool idle() const { return device_.idle() && (group_.idle() || !meets_group()); }
  // Without a daemon no order comes, and the group connects anew with the next one.
  bool meets_group() const { return !is_lost_ && !member_.awaits_welcome(); }
  void OnStream(Event& event);
  void OnFrame(absl::StatusOr<wire::Frame> received);
  void OnOneFrame(absl::StatusOr<wire::Frame> received);
  // Whether the daemon has this memory and writes results there.
  bool LiesInSharedMemory(const GradBucket& bucket);
  void CheckTimers(Clock::time_point now);
  // Begins calls whose gradients are there, and does what waits for the device's work.
  void PollDevice();
  void PollGroup();
  void Begin(std::shared_ptr<GradBucket> bucket, std::shared_ptr<Outcome> done);
  // A bucket of a step that is over (runtime_late.cc).
  absl::Status TakePast(const GradBucket& bucket);
  void End(std::shared_ptr<StepCall> call);
  void Begin(std::shared_ptr<CollectiveCall> call);
  void EndCollectives(const absl::Status& status);
  Clock::time_point NextTimer() const;
  // Whether large payloads travel on a second connection (only without shared memory).
  bool WantsBulk() const;
  std::shared_ptr<grpc::Channel> NewChannel() GRADWIRE_EXCLUDES(shared_mutex_);
  void OpenStream(std::shared_ptr<grpc::Channel> channel) GRADWIRE_EXCLUDES(shared_mutex_);
  // Resolves the payload of a result in shared memory.
  absl::Status Resolve(wire::Frame& frame) const;
  std::size_t WireBytes(const wire::Result& result, const wire::PayloadRef& payload) const;
  // The chunk's bytes, where the daemon can read them; null, with `shared` set: in shared memory.
  absl::StatusOr<wire::PayloadRef> Encode(const SendChunkEffect& effect,
                                          std::optional<wire::SharedBytes>& shared);
  std::shared_ptr<grpc::Channel> channel() const GRADWIRE_EXCLUDES(shared_mutex_);
  std::string access_token() const GRADWIRE_EXCLUDES(shared_mutex_);
  std::string token() const GRADWIRE_EXCLUDES(shared_mutex_);

  // ---- After the loss of the daemon (runtime_rejoin.cc)
  // The session outlives its daemon: this member looks for the next one so long.
  void Outlive(const wire::Recovery& recovery);
  // What the user is told of with the end of a step, or the Welcome. `ranks`: of the session's
  // members from now on; empty: as before.
  void Tell(const std::optional<wire::MembershipChange>& change, const std::vector<int>& ranks,
            const std::string& skip_reason, const std::string& drift)
      GRADWIRE_EXCLUDES(shared_mutex_);
  // Where the session outlives the daemon: says that this member waits, if that takes long, and
  // when it goes on.
  enum class Away : std::uint8_t {
    kNot,
    kLooks,
    kWaits,
    kQuiet
  };  // looks for a daemon; waits at it
  Away WhereFrom() const;
  void Say(const std::string& what) const;
  void SayAway(Clock::time_point now);
  absl::Status MayBeginLeave() const;
  bool MayLookToLeave(absl::Duration waited) const;
  Leaving Left();
  void FollowEnd();
  void Watch(Clock::time_point now);
  void OnMoved(std::uint64_t number);
  // Whether the daemon's answer to a stream says that it is another one.
  bool MayRejoin(const absl::Status& answer) const;
  // The daemon is lost before the session has begun for this member, which has nothing to lose.
  bool MayJoinAgain(const absl::Status& lost) const;
  void JoinAgain();
  // The stream has ended for good.
  void OnEnded(const absl::Status& status);
  // The daemon is lost. Its next one, or the other shards, are told.
  void OnLost(std::optional<std::uint64_t> asked = std::nullopt);
  // Without a report it joins as it did first.
  void BeginRejoin(std::optional<wire::MemberReport> report);
  // Until the next Welcome.
  void HoldGradients();
  void TakeWeight();
  // The other shards: in which life of the session they are to follow. `awaited`: after a loss.
  void TellOthers(const wire::Welcome& welcome, bool awaited);
  void OnRejoined(std::uint64_t number, absl::StatusOr<Rejoined> place);
  absl::Status CheckSameSettings(const JoinResult& membership) const;

  void Apply(Effects effects);
  void On(SendFrameEffect& effect);
  void On(SendChunkEffect& effect);
  void On(SendCollectiveEffect& effect);
  void On(ReceiveCollectiveEffect& effect);
  void On(RelayBegunEffect& effect);
  void On(RelayTakenEffect& effect);
  void On(BucketDoneEffect& effect);
  void Finish(const BucketDoneEffect& effect);
  void Finish(const StepDoneEffect& effect) GRADWIRE_EXCLUDES(shared_mutex_);
  // The user's step is over.
  void Complete(StepCall& call, const StepDoneEffect& over) GRADWIRE_EXCLUDES(shared_mutex_);
  void SendReport(std::uint32_t bucket, const std::optional<BucketNorms>& norms)
      GRADWIRE_EXCLUDES(shared_mutex_);
  void On(StepDoneEffect& effect);
  void On(CollectiveDoneEffect& effect);
  void On(WelcomeEffect& effect);
  void On(FailedEffect& effect);
  void On(PreparedEffect& effect);
  void On(HandedOverEffect& effect);
  void On(GroupEffect& effect);
  void On(ConnectEffect& effect);
  void On(ExchangeEffect& effect) { group_.Exchange(effect.ticket); }
  void On(GatherEffect& effect) { group_.Gather(effect.ticket); }
  void On(AbortGroupEffect& /*effect*/) { group_.Abort(); }
  void On(ShareDoneEffect& effect) GRADWIRE_EXCLUDES(shared_mutex_);

  // Ok while calls can begin, else what they end with.
  absl::Status Open() const;

  ClientOptions options_;  // another daemon changes the address,
  JoinResult membership_;  // and this
  const std::uint64_t start_id_;
  DevicePath device_;
  GroupPath group_;
  const std::unique_ptr<Hook> hook_;
  const std::uint32_t shards_;  // of the session
  const bool leads_;            // this one is shard 0
  const int ranks_;             // that this member stands for
  const ShardLink link_;
  // Digests detect errors that a network's checksums miss. Within one host there is no network.
  Dialer dialer_;
  bool sends_digests_;
  const std::shared_ptr<EventQueue> events_;
  const std::shared_ptr<GradientMemory> gradients_;

  mutable Mutex shared_mutex_;
  std::shared_ptr<grpc::Channel> channel_ GRADWIRE_GUARDED_BY(shared_mutex_);
  std::string access_token_ GRADWIRE_GUARDED_BY(shared_mutex_);  // for calls on it
  std::string token_ GRADWIRE_GUARDED_BY(shared_mutex_);         // the membership's
  ClientMetrics metrics_ GRADWIRE_GUARDED_BY(shared_mutex_);
  BucketStats stats_ GRADWIRE_GUARDED_BY(shared_mutex_);
  std::optional<MembershipChange> change_ GRADWIRE_GUARDED_BY(shared_mutex_);
  std::vector<int> ranks_now_ GRADWIRE_GUARDED_BY(shared_mutex_);  // of the members
  std::string skip_reason_ GRADWIRE_GUARDED_BY(shared_mutex_);
  std::string drift_ GRADWIRE_GUARDED_BY(shared_mutex_);
  std::atomic<std::int64_t>
      step_;  // the one that the user is in; the core's may be the next already
  std::atomic<bool> left_ = false;
  std::atomic<double> weight_ = 1;

  std::unordered_map<Ticket, OpenBucket> buckets_;  // of the core's step; outlives the core's runs
  GroupedMember member_;
  const std::shared_ptr<Poller> poller_;
  std::unique_ptr<DaemonConnection> connection_;  // never null
  const std::string given_address_;               // the address that the user gave
  JoinWish wish_;                                 // shard 0 changes the life
  Clock::duration coordinator_grace_{};           // of a session that outlives its daemon
  Clock::time_point rejoin_deadline_;
  bool is_lost_ = false;                 // the daemon, and no other one has taken the report
  std::unique_ptr<Rejoin> rejoin_;       // null: nothing is under way
  std::unique_ptr<AddressWatch> watch_;  // of a daemon that has a name; the last one may be stopped
  bool is_watched_ = false;
  std::uint64_t watches_ = 0;                    // to know the answer of watch_
  std::optional<Clock::time_point> away_since_;  // it looks for a daemon, or waits at it for others
  std::optional<Away> said_;
  std::uint64_t tries_ = 0;   // of rejoin_, to know its answer
  ChunkTimes times_;          // of chunks that travel in the stream
  std::uint64_t stream_ = 0;  // counts them: what was encoded for one is not sent on another
  std::unique_ptr<SharedMemory> memory_;  // of the stream; null: payloads travel in it
  Ticket next_ticket_ = 1;
  std::shared_ptr<Outcome> joined_;
  std::deque<StepDoneEffect> over_;  // steps from step_ on, until EndStep asks for them
  std::shared_ptr<StepCall> end_step_;
  std::shared_ptr<CollectiveCall> collective_;
  std::shared_ptr<CollectiveCall> next_collective_;  // waits for the end of one that passes through
  std::shared_ptr<HandOverCall> hand_over_;
  absl::Status hook_error_;  // met while effects were applied
  // The membership has changed, and the user has entered no collective since.
  std::optional<MembershipChange> unhealed_;
  bool welcomed_ = false;
  bool leaving_ = false;
  bool looks_to_leave_ = false;  // for the daemon, or the next one
  absl::Status ended_in_leave_;  // why the stream did; ok: it has not
  bool stopping_ = false;
  Clock::time_point join_deadline_;
};

}  // namespace gradwire::client
