// A session core with what it needs to live: a lock, the members' streams, the reducer.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/sync.h"
#include "gradwire/v1/admin.pb.h"
#include "proto/wire/frame.h"
#include "server/core/session_core.h"
#include "server/session/leaf_answers.h"
#include "server/session/member_stream.h"
#include "server/session/memory_budget.h"
#include "server/session/reducer.h"
#include "server/session/session_host.h"
#include "server/session/state_files.h"
#include "server/session/yielding_mutex.h"

namespace gradwire::server {

class SessionRecording;
class StepDigests;
struct RecordedReductions;

// Thread-safe. Every call is one event for the core: it runs under the session's lock, which also
// puts the frames that it causes into the streams' queues in their order. After the lock is given
// back, streams are written to, and what is to be reduced goes to the host's Reducer.
class SessionRunner : public std::enable_shared_from_this<SessionRunner> {
 public:
  SessionRunner(SessionOptions options, std::unique_ptr<CoordinatorHook> hook, SessionHost host,
                absl::Time now);

  SessionRunner(const SessionRunner&) = delete;
  SessionRunner& operator=(const SessionRunner&) = delete;

  // The number grows with every join of the session: of two for one rank, the later one counts.
  struct Admission {
    int rank = 0;
    std::uint64_t number = 0;
  };
  // nullopt: the session had ended before; nobody joins it any more. ResourceExhausted: a quota
  // of the holder's, or the session's, is used up; nothing has changed.
  absl::StatusOr<std::optional<Admission>> Join(const JoinAsk& ask, absl::Time now,
                                                const QuotaHolder& holder = {});
  // Whether the quotas leave the member a bulk lane; it has it until it is gone.
  bool GrantLane(int rank, std::uint64_t start_id, const QuotaHolder& holder);
  absl::Status Attach(int rank, std::uint64_t start_id, std::int64_t step,
                      const std::shared_ptr<MemberStream>& stream, absl::Time now,
                      const Abilities& abilities = {});
  // `taken` is called once, when the next frame of the stream may follow: before a large sum is
  // computed, but after a small one, which is sooner out than the next frame is in.
  void Receive(int rank, std::uint64_t connection, const wire::Frame& frame, absl::Time now,
               absl::FunctionRef<void()> taken);
  // The stream ended. May be told twice.
  void Detach(int rank, std::uint64_t connection, absl::Time now);
  absl::Status Leave(int rank, std::uint64_t start_id, absl::Time now);
  // The state of the last step as a file, which all readers of that state have in common. `answer`
  // is called once, on any thread, or never if the daemon ends first. What it gets counts as a call
  // until nobody has it any more.
  void Export(ExportedFile::Answer answer);
  // A call that imports has begun. ResourceExhausted: there are too many. FailedPrecondition: the
  // hook keeps no state on the coordinator.
  absl::StatusOr<StateFiles::Place> BeginImport() const;
  // The bytes of such a file become the state, on so many daemons. `answer` gets the state's
  // iteration; it is called as that of Export.
  using Imported = std::function<void(absl::StatusOr<std::int64_t>)>;
  void Import(std::string file, std::uint32_t shards, Imported answer);
  // Shared memory with members of this host.
  SessionMemory& memory() { return *memory_; }
  // What an exported state has as a file, at most.
  std::size_t state_file_bytes() const { return state_file_bytes_; }
  // As SessionCore::BeginTimeline. The number names the recording.
  absl::StatusOr<std::uint64_t> BeginTimeline(int steps, absl::Time deadline, absl::Time now);
  // Null: it has not ended.
  std::unique_ptr<StepTimeline> TakeTimeline(std::uint64_t number);
  // Nobody wants it any more.
  void DropTimeline(std::uint64_t number);
  void Tick(absl::Time now);
  // To every member, where nothing else is to be sent.
  void SendHeartbeats();
  void Fail(const absl::Status& status, int blamed_rank);
  // As SessionCore::HandOver.
  void HandOver();
  // As SessionCore::Pause and Unpause.
  struct Paused {
    std::int64_t step = 0;  // that is held back
    bool holding = false;
  };
  absl::StatusOr<Paused> Pause(absl::Duration length, const std::string& reason, absl::Time now);
  absl::Status Unpause(absl::Time now);
  // Fails it if it is abandoned. Who joins at the same time is in it before, or comes too late.
  void FailIfAbandoned();
  // Bytes from `connection` are no frame. Ignored if it is no longer the member's stream.
  void FailFrom(int rank, std::uint64_t connection, const absl::Status& status);

  // Of a leaf: before the first join.
  void ConnectLeaf();

  // What it may make the daemon hold, given back when it is destroyed, and what it uses of its
  // beginner's quota. Before others have it.
  void Hold(MemoryBudget::Share share, QuotaLedger::Begun begun) {
    share_ = std::move(share);
    begun_ = std::move(begun);
  }

  const SessionOptions& options() const { return options_; }
  // These take no lock: as of the last event.
  SessionCore::State state() const { return state_.load(std::memory_order_acquire); }
  bool ended() const { return IsEnd(state()); }
  // As SessionCore's.
  bool awaits_successor() const { return awaits_successor_.load(std::memory_order_acquire); }
  // Sums are under way, which may write into members' memory.
  bool sums_up() const { return sums_up_.load(std::memory_order_acquire); }
  // Nobody has a place in it and nobody ever ran it.
  bool abandoned() const { return abandoned_.load(std::memory_order_acquire); }
  bool has_streams() const { return open_streams_.load(std::memory_order_acquire) > 0; }
  std::int64_t step() const { return step_.load(std::memory_order_acquire); }
  // How long its lock was held at most.
  std::chrono::nanoseconds longest_hold() const { return mutex_.longest_hold(); }

  // Why the session failed; OK if it has not.
  absl::Status failure() const;
  // As SessionCore's.
  std::vector<int> gone() const;
  std::vector<int> node_groups() const GRADWIRE_EXCLUDES(mutex_);
  // `compression`: with a line for each parameter.
  v1::SessionStatus Status(absl::Time now, bool compression = false) const;
  v1::WatchResponse Snapshot(absl::Time now) const;
  StepDigests Digests() const;

 private:
  using Streams = std::vector<std::shared_ptr<MemberStream>>;
  // What an event leaves to do without the lock.
  struct Work {
    std::vector<ReduceEffect> reductions;
    std::shared_ptr<const RecordedReductions> recorded;  // null: they are not
    std::vector<WorkThreads::Task> tasks;                // for the work threads
    Streams streams;                                     // with something new in their queues
    bool upstream = false;                               // the leaf has something to do
  };

  static bool IsEnd(SessionCore::State state) {
    return state == SessionCore::State::kFailed || state == SessionCore::State::kClosed;
  }
  bool IsAbandoned() const GRADWIRE_REQUIRES(mutex_);
  // For those who ask without the lock.
  void Publish() GRADWIRE_REQUIRES(mutex_);
  void Execute(Effects effects, Work& work) GRADWIRE_REQUIRES(mutex_);
  // Every one of these members has the result in place of its contribution.
  bool IsPlaced(const ResultEffect& result) const GRADWIRE_REQUIRES(mutex_);
  void Compute(const ComputeEffect& compute) GRADWIRE_EXCLUDES(mutex_);
  void DoChore(const ChoreEffect& chore) GRADWIRE_EXCLUDES(mutex_);
  void Restore(const RestoreEffect& restore) GRADWIRE_EXCLUDES(mutex_);
  void ClaimRoster(const ClaimRosterEffect& claim) GRADWIRE_EXCLUDES(mutex_);
  void ForgetRosters(const ForgetRostersEffect& forget) const;
  absl::StatusOr<std::shared_ptr<HookImport>> ReadState(const HookState& state) const
      GRADWIRE_NO_THREAD_SAFETY_ANALYSIS;
  absl::StatusOr<std::shared_ptr<HookImport>> ReadCopy(const RestoreEffect& restore) const
      GRADWIRE_NO_THREAD_SAFETY_ANALYSIS;
  absl::StatusOr<std::int64_t> Install(const std::string& file, std::uint32_t shards)
      GRADWIRE_EXCLUDES(mutex_);
  void OnReduced(const std::vector<Reducer::Done>& done) GRADWIRE_EXCLUDES(mutex_);
  void Queue(int rank, const wire::Frame& frame, const Keeper& keeper, Work& work)
      GRADWIRE_REQUIRES(mutex_);
  void Queue(const ResultEffect& result, Work& work) GRADWIRE_REQUIRES(mutex_);
  // Null: the member has none.
  std::shared_ptr<MemberStream> StreamOf(int rank) const GRADWIRE_REQUIRES(mutex_);
  void Close(const CloseEffect& close, Work& work) GRADWIRE_REQUIRES(mutex_);
  absl::Status CloseReason(int rank, std::uint64_t connection) const GRADWIRE_REQUIRES(mutex_);
  void Log(const LogEffect& log) const GRADWIRE_REQUIRES(mutex_);
  void OnDeparture(const DepartureEffect& departure) GRADWIRE_REQUIRES(mutex_);
  // Once, when the session has ended.
  void OnEnd(Work& work) GRADWIRE_REQUIRES(mutex_);
  std::vector<ParameterReport> CompressionReport() const GRADWIRE_EXCLUDES(mutex_);
  // The core's events for what its leaf's upstream says.
  LeafAnswers AnswersToLeaf();
  // One event: calls the core under the lock, and does what follows from it.
  void Handle(absl::FunctionRef<void(SessionCore&, Effects&)> event) GRADWIRE_EXCLUDES(mutex_);
  // What is left to do without the lock.
  void Finish(Work work) GRADWIRE_EXCLUDES(mutex_);

  const SessionOptions options_;
  const std::uint64_t parameters_;
  const std::uint64_t gradient_bytes_;
  const v1::ShardStatus shard_;  // what does not change
  const std::size_t state_file_bytes_;
  StateFiles files_;
  const std::shared_ptr<SessionMemory> memory_;
  const SessionHost host_;
  // Null: the steps are not recorded. What it does with effects is done under the lock.
  const std::shared_ptr<SessionRecording> recording_;

  // Of a member, in the quotas.
  struct MemberUse {
    QuotaLedger::Use member;
    QuotaLedger::Use lane;  // held: it may have a bulk lane
  };

  MemoryBudget::Share share_;
  QuotaLedger::Begun begun_;

  std::atomic<SessionCore::State> state_ = SessionCore::State::kJoining;
  std::atomic<bool> awaits_successor_ = false;
  std::atomic<bool> sums_up_ = false;
  std::atomic<bool> abandoned_ = true;
  std::atomic<std::size_t> open_streams_ = 0;
  std::atomic<std::int64_t> step_ = 0;

  mutable YieldingMutex mutex_{host_.before_long_work};
  SessionCore core_ GRADWIRE_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::shared_ptr<MemberStream>> streams_ GRADWIRE_GUARDED_BY(mutex_);
  std::vector<std::uint64_t> current_
      GRADWIRE_GUARDED_BY(mutex_);  // connection of each rank; 0: none
  // Start id of the process whose stream each rank had last; 0: none.
  std::vector<std::uint64_t> attached_ GRADWIRE_GUARDED_BY(mutex_);
  std::size_t sums_ GRADWIRE_GUARDED_BY(mutex_) = 0;                  // under way
  std::vector<CloseEffect> late_closes_ GRADWIRE_GUARDED_BY(mutex_);  // that wait for them
  std::uint64_t resumes_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  std::uint64_t admissions_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  std::vector<MemberUse> uses_ GRADWIRE_GUARDED_BY(mutex_);  // by rank
  bool end_seen_ GRADWIRE_GUARDED_BY(mutex_) = false;
  std::uint64_t timelines_ GRADWIRE_GUARDED_BY(mutex_) = 0;  // begun so far
};

}  // namespace gradwire::server
