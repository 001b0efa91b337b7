// One training session as a deterministic state machine: (event, now) -> effects.
//
// Knows no gRPC, clock, thread or disk. The same object runs in the daemon, in the simulation and
// under the fuzzer. Not thread-safe: the owner serialises all calls. Nothing that a member sends
// can abort the process; it ends in a Failure for the session (policy `fail`) that blames the
// sender.
//
// The step protocol. A member announces a bucket. Buckets are granted to all members alike, in the
// order of their first announcement, `open_buckets` at a time; so every member sends the same
// chunks in the same order and some chunk can always be completed. Inside a granted round a member
// is at most `window_chunks` ahead of the results that it acknowledged, unless its contributions
// take their results: nothing is kept of those. A chunk is reduced once all members' contributions
// are there, and what is kept of its result is in every member's window; it is released in chunk
// order, and kept until every member acknowledged it. When all parameters are reduced, or all
// members ended the step, the step commits: StepDone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/hooks/hook.h"
#include "hooks/coordinator_hook.h"
#include "hooks/reduce.h"
#include "proto/wire/frame.h"
#include "proto/wire/mutants.h"
#include "server/core/collectives.h"
#include "server/core/effects.h"
#include "server/core/reduced_result.h"

namespace gradwire::server {

// A user's own hook announces its own rounds; these bound what one bucket may ask for.
constexpr std::size_t kMaxRounds = 8;
constexpr std::size_t kMaxBytesPerGradientByte = 2;
constexpr std::size_t kExtraRoundBytes = 4096;
constexpr std::size_t kMaxSegmentsPerParameter = 8;
constexpr std::size_t kExtraSegments = 64;

struct SessionOptions {
  std::string name;
  int world_size = 1;
  HookSpec spec;
  std::vector<ParameterSpec> manifest;
  std::uint64_t generation = 1;  // unique among the sessions of one daemon
  std::uint64_t lineage = 1;
  std::size_t chunk_bytes = std::size_t{1} << 20;
  std::uint32_t window_chunks = 4;
  std::uint32_t open_buckets = 4;
  std::size_t eager_bytes = 0;  // from each member, in buckets that wait for no grant
  absl::Duration join_timeout = absl::Minutes(5);
  absl::Duration step_timeout = absl::Minutes(30);
  absl::Duration token_timeout = absl::Seconds(5);
  absl::Duration resume_grace = absl::Seconds(1);
  absl::Duration silence_timeout = absl::Seconds(15);

  // InvalidArgument names the field, the value and what is allowed.
  absl::Status Validate() const;

  // Upper bound of what the session can make the daemon hold: contributions in the window, results
  // not yet acknowledged.
  std::size_t ReservedBytes() const;
  // Upper bound of a step's bytes, by the manifest.
  std::size_t StepBytes() const;

  // Results that shared memory holds at a time, and the largest one: those of the window, or of the
  // whole model where that is less.
  std::size_t ResultBlocks() const;
  std::size_t BlockBytes() const;

  // What a member that shares memory can have on its way at most.
  std::size_t StagingBytes() const;
};

struct JoinAsk {
  int world_size = 0;
  int rank = -1;
  std::uint64_t start_id = 0;
  HookSpec spec;
  std::vector<ParameterSpec> manifest;
};

struct SessionStats {
  std::uint64_t contribution_bytes = 0;  // payload of accepted chunks
  std::uint64_t result_bytes = 0;        // payload sent, over all members
  std::uint64_t duplicate_chunks = 0;
  std::uint64_t steps_applied = 0;
  std::uint64_t steps_skipped = 0;
};

class Session {
 public:
  enum class State : std::uint8_t { kJoining, kRunning, kFailed, kClosed };
  // kEnded: the session failed, and with it ended its stream.
  enum class MemberState : std::uint8_t { kAbsent, kJoined, kConnected, kLost, kLeft, kEnded };

  // `options` must be valid. `hook` is null for a user's own.
  Session(SessionOptions options, std::unique_ptr<CoordinatorHook> hook, absl::Time now);
  ~Session();

  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Reserves a rank; returns it. The same start id gets its rank again. One that asks for a rank
  // which is missing, but with another hook or model, ends a session that is still joining.
  absl::StatusOr<int> Join(const JoinAsk& ask, absl::Time now, Effects& effects);

  // A stream whose Hello carried this rank's token. `connection` is unique among streams. Replaces
  // the member's earlier stream, if any.
  absl::Status Attach(int rank, std::uint64_t start_id, std::int64_t step, std::uint64_t connection,
                      absl::Time now, Effects& effects);

  // A frame from the stream `connection`; one that is no longer the member's is ignored.
  void Receive(int rank, std::uint64_t connection, const wire::Frame& frame, absl::Time now,
               Effects& effects);

  // The stream ended without Leave.
  void Detach(int rank, std::uint64_t connection, absl::Time now, Effects& effects);

  absl::Status Leave(int rank, std::uint64_t start_id, absl::Time now, Effects& effects);

  // The answer to a ReduceEffect. `result` has the segment's bytes.
  // The sum took `spent`; that is for the report.
  void Reduced(const wire::RoundId& id, std::uint32_t chunk, const ResultRef& result, bool finite,
               absl::Duration spent, Effects& effects);

  // The hook's state after the last step, whether or not the next has begun, and its replacement by
  // an exported one: between two steps, before any member has announced a bucket of the next.
  absl::StatusOr<HookState> ExportState() const;
  absl::Status ImportState(const HookState& state, Effects& effects);
  std::vector<ParameterReport> Report() const;
  // What rank 0 said last of each bucket of the last step, by the bucket's id.
  const std::map<std::uint32_t, wire::BucketReport>& bucket_reports() const { return reports_; }
  std::int64_t iteration() const { return hook_ == nullptr ? 0 : hook_->iteration(); }
  // Upper bound of what the state's tensors take.
  std::size_t state_bytes() const { return hook_ == nullptr ? 0 : hook_->StateBytes(); }

  // Timeouts. Call about every 100 ms.
  void Tick(absl::Time now, Effects& effects);

  // Ends the session for everybody.
  void Fail(const absl::Status& status, int blamed_rank, Effects& effects);

  const SessionOptions& options() const { return options_; }
  State state() const { return state_; }
  MemberState member_state(int rank) const { return members_[Index(rank)].state; }
  std::int64_t step() const { return step_; }
  std::uint32_t attempt() const { return attempt_; }
  const SessionStats& stats() const { return stats_; }
  std::uint64_t member_bytes(int rank) const { return members_[Index(rank)].contribution_bytes; }
  absl::Time last_heard(int rank) const { return members_[Index(rank)].last_heard; }
  const absl::Status& failure() const { return failure_; }
  // Why a rank was given up last while the session was joining: "rank 0 left".
  const std::string& last_departure() const { return last_departure_; }

  // One sentence: what the session waits for, and for whom.
  std::string WaitingFor(absl::Time now) const;

  // Payload bytes that the session holds now: contributions not yet reduced, results not
  // acknowledged.
  std::size_t held_bytes() const;

 private:
  struct Member {
    MemberState state = MemberState::kAbsent;
    std::uint64_t start_id = 0;
    std::uint64_t connection = 0;
    absl::Time last_heard;
    absl::Time since;  // when it joined or was lost
    bool ended_step = false;
    std::uint64_t contribution_bytes = 0;
    std::size_t eager_bytes = 0;        // sent eagerly, and the result not acknowledged
    std::vector<std::uint64_t> epochs;  // of the shared state that it has, by parameter
    bool reset_sent = false;            // a StateReset, and it has not begun a step since
  };

  // One member's contribution to one chunk. The digest, where the member sent one, stays until the
  // bucket is dropped.
  struct Slot {
    wire::PayloadRef payload;
    std::optional<std::uint64_t> digest{};
    bool filled = false;
    bool raw = false;
  };
  struct Chunk {
    std::vector<Slot> slots;  // by rank; empty until the first contribution
    int filled = 0;
    bool reducing = false;
    ResultRef result;  // from its reduction until everybody acknowledged it
    std::uint64_t reduce_nanoseconds = 0;
  };
  struct Round {
    std::uint32_t attempt = 0;
    wire::ChunkLayout layout;
    std::vector<Chunk> chunks{};
    std::uint32_t reduced = 0;              // results that are there, in chunk order
    std::vector<std::uint32_t> received{};  // results that each member acknowledged
    bool finished() const { return reduced == layout.chunk_count(); }
    // Whether it cannot start over.
    bool goes_on() const;
  };
  // What members are given of the hook's state for a bucket, in pieces.
  using SharedBlock = std::vector<wire::PayloadRef>;
  struct Bucket {
    std::int64_t step = 0;
    std::vector<std::uint32_t> parameters;
    std::vector<RoundPlan> plans;
    std::vector<bool> announced{};     // by rank
    std::vector<bool> granted{};       // by rank; all announcing members alike
    std::vector<std::size_t> eager{};  // by rank: bytes that came with the announcement
    bool open = false;                 // granted, and not everybody has acknowledged all results
    std::uint32_t round = 0;
    std::vector<Round> rounds{};  // those begun, the current one last
    bool reduced = false;         // announced by all, all rounds finished
    std::uint64_t order = 0;      // of the first announcement
    std::uint64_t digest = 0;
    std::uint64_t epoch = 0;                      // of the shared state that its runs need; 0: none
    std::shared_ptr<const SharedBlock> shared{};  // that state; null: not needed so far
  };
  using BucketKey = std::pair<std::int64_t, std::uint32_t>;

  static std::uint64_t CombineDigests(std::uint64_t seed, std::uint64_t value);
  static std::size_t Index(int rank) { return static_cast<std::size_t>(rank); }

  absl::Status CompareWithSession(const JoinAsk& ask) const;
  void OnAnnounce(int rank, const wire::Announce& announce, const wire::PayloadRef& payload,
                  absl::Time now, Effects& effects);
  absl::Status CheckEager(int rank, const wire::Announce& announce, const Bucket& bucket,
                          const wire::PayloadRef& payload) const;
  void TakeEager(int rank, Bucket& bucket, const wire::Announce& announce,
                 const wire::PayloadRef& payload, Effects& effects);
  static bool AllGranted(const Bucket& bucket);
  static bool WaitsForGrant(const Bucket& bucket);
  void Acknowledge(int rank, Bucket& bucket, Round& round, std::uint32_t received);
  void AcknowledgeAll(int rank, Bucket& bucket);
  void AcknowledgeEarlierSteps(int rank);
  void OnContribution(int rank, const wire::Contribution& header, const wire::PayloadRef& payload,
                      Effects& effects);
  void OnAck(int rank, const wire::RoundId& id, std::uint32_t received, Effects& effects);
  void OnBucketReport(int rank, const wire::BucketReport& report, Effects& effects);
  void OnEndStep(int rank, const wire::EndStep& end, absl::Time now, Effects& effects);

  absl::StatusOr<std::vector<RoundPlan>> CheckedPlan(const wire::Announce& announce) const;
  absl::Status CheckOwnership(const wire::Announce& announce) const;
  absl::Status CheckContribution(int rank, const wire::Contribution& header, const Bucket& bucket,
                                 const wire::PayloadRef& payload) const;
  absl::Status CheckSeveral(const wire::Contribution& header, const Bucket& bucket,
                            const wire::PayloadRef& payload) const;
  std::size_t RawBytes(const Bucket& bucket, std::uint32_t chunk) const;
  std::vector<int> WindowsWithout(const Bucket& bucket, const wire::ChunkLayout::Unit& unit) const;
  bool TakesResults(const Bucket& bucket) const {
    return options_.spec.TakesResults(GradientType(bucket));
  }
  static bool IsAnother(const Slot& slot, const wire::Payload& again);
  DType GradientType(const Bucket& bucket) const;
  void Store(int rank, Bucket& bucket, const wire::Contribution& header,
             const wire::PayloadRef& payload, Effects& effects);
  void SendShared(Bucket& bucket, int rank, Effects& effects);
  void Observe(const Bucket& bucket, std::uint32_t chunk, const ReducedResult& result);
  absl::Status CheckHasState() const;
  void MaybeReduce(Bucket& bucket, std::uint32_t chunk, Effects& effects);
  void ReleaseReduced(Bucket& bucket, Effects& effects);
  void SendResult(std::vector<int> ranks, const Bucket& bucket, std::uint32_t round,
                  std::uint32_t chunk, Effects& effects);
  void BeginRound(Bucket& bucket);
  void Advance(Bucket& bucket);
  void GrantBuckets(Effects& effects);
  void SendGrant(Bucket& bucket, int rank, Effects& effects);
  void LogCompression(Effects& effects) const;
  bool CompleteForCommit(const Bucket& bucket) const;
  void MaybeCommit(Effects& effects);
  void Commit(Effects& effects);
  bool CheckEnded(Effects& effects);
  void DropAcknowledged(Bucket& bucket);
  bool Acknowledged(const Bucket& bucket) const;
  void CloseAcknowledged();
  int Required() const;
  void StartRunning(Effects& effects);
  void TickJoining(absl::Time now, Effects& effects);
  void TickRunning(absl::Time now, Effects& effects);
  void RunCollective(int rank, const absl::Status& status, std::vector<Collectives::Send>& sends,
                     Effects& effects);
  void Resume(int rank, std::int64_t step, Effects& effects);
  void SendRestarts(Effects& effects);
  void LoseMember(int rank, const std::string& why, Effects& effects);
  void Violation(int rank, const absl::Status& status, Effects& effects);
  std::vector<int> ReachableRanks() const;
  void FanOut(wire::Header header, wire::PayloadRef payload, Effects& effects) const;
  wire::RoundId CurrentId(const Bucket& bucket) const;
  std::string BucketName(const std::vector<std::uint32_t>& parameters) const;
  std::string MissingMembers() const;
  std::string StepProgress(absl::Time now) const;
  std::string BucketProgress(const Bucket& bucket, absl::Time now) const;
  std::string RankNames(const std::vector<int>& ranks, absl::Time now) const;

  SessionOptions options_;
  std::unique_ptr<CoordinatorHook> hook_;
  State state_ = State::kJoining;
  absl::Status failure_;
  std::string last_departure_;
  absl::Time created_;
  absl::Time last_tick_;
  std::vector<Member> members_;
  std::int64_t step_ = 0;
  std::uint32_t attempt_ = 0;
  bool nonfinite_ = false;
  std::optional<absl::Time> step_began_;
  std::optional<absl::Time> collective_began_;
  std::optional<wire::StepDone> last_done_;
  std::uint64_t next_order_ = 0;
  std::map<BucketKey, Bucket> buckets_;
  std::vector<std::optional<std::uint32_t>>
      owner_;  // of each parameter in the open step: its bucket
  Collectives collectives_;
  SessionStats stats_;
  std::map<std::uint32_t, wire::BucketReport> reports_;
  // Of a session that failed: members may still be reading them where they lie.
  std::vector<ResultRef> unread_;
};

std::string Name(Session::State state);
std::string Name(Session::MemberState state);

}  // namespace gradwire::server
