// A member's side of the step protocol as a deterministic state machine: calls and frames in,
// effects out. Knows no gRPC, clock, thread or socket. The SDK drives it, and so does the
// simulation.
//
// Not thread-safe: the owner serialises all calls. Hook runs are called from inside, inline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/hooks/hook.h"
#include "proto/wire/frame.h"
#include "proto/wire/mutants.h"
#include "proto/wire/overtake.h"

namespace gradwire::client {

struct MemberOptions {
  int rank = 0;
  int world_size = 1;
  std::uint64_t generation = 1;
  std::int64_t step = 0;
  std::size_t chunk_bytes = std::size_t{1} << 20;
  std::uint32_t window_chunks = 4;
  std::size_t eager_bytes = 0;
  std::size_t large_chunk_bytes = wire::kSmallPayload + 1;
  std::vector<ParameterSpec> manifest;
};

// Names one StartBucket to the caller.
using Ticket = std::uint64_t;

// Send a frame without payload.
struct SendEffect {
  wire::Header header;
};
// Encode the range now, before the next call to the core, and send it. Digests are left for the
// owner to fill in.
struct SendChunkEffect {
  wire::Contribution header;
  std::optional<wire::Announce> announce{};  // eager: the header to send instead
  HookRun* run = nullptr;
  ElementRange range;
  std::size_t bytes = 0;
};
// Send bytes of a broadcast: [offset, offset + bytes) of the root's data.
struct SendCollectiveEffect {
  wire::CollectiveChunk header;
  std::size_t offset = 0;
  std::size_t bytes = 0;
};
// Copy a broadcast's payload to `offset` of the member's data, now.
struct ReceiveCollectiveEffect {
  std::size_t offset = 0;
  wire::PayloadRef payload;
};
struct BucketDoneEffect {
  Ticket ticket = 0;
  absl::Status status;
  std::uint32_t bucket = 0;
  std::optional<BucketNorms> norms{};  // where they were asked for
};
struct StepDoneEffect {
  std::int64_t step = 0;
  Verdict verdict = Verdict::kApply;
};
struct CollectiveDoneEffect {
  std::uint64_t number = 0;
};
// The world is complete; calls may begin.
struct WelcomeEffect {};
// The session is over. Everything open has been completed with `status` before.
struct FailedEffect {
  absl::Status status;
};
using Effect = std::variant<SendEffect, SendChunkEffect, SendCollectiveEffect,
                            ReceiveCollectiveEffect, BucketDoneEffect, StepDoneEffect,
                            CollectiveDoneEffect, WelcomeEffect, FailedEffect>;
using Effects = std::vector<Effect>;

class Member {
 public:
  // `hook` outlives the member.
  Member(MemberOptions options, Hook* hook);
  ~Member();

  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  // Begins a bucket of the current step. An error leaves the session as it was. The buffer stays
  // with the core until the BucketDoneEffect, `bucket` until the step's verdict. `measure`: that
  // should have norms.
  absl::Status StartBucket(Ticket ticket, GradBucket& bucket, Effects& effects,
                           bool measure = false);

  // The coordinator writes this bucket's results over its contributions: they need no window, as
  // long as the stream lasts. Before its grant.
  void SendAhead(std::uint32_t id);

  // What frames call a bucket: the manifest position of its first parameter. None: not one of the
  // session's.
  std::optional<std::uint32_t> BucketId(const GradBucket& bucket) const;

  // No more buckets in this step. StepDoneEffect follows.
  absl::Status EndStep(Effects& effects);

  // Enters the next collective; returns its number. One at a time.
  absl::StatusOr<std::uint64_t> Enter(wire::CollectiveKind kind, int root, std::size_t bytes,
                                      Effects& effects);

  void Receive(const wire::Frame& frame, Effects& effects);

  // A new stream took over; the Hello has been sent. Announces again what the coordinator may have
  // missed; chunks follow on its Restart.
  void Resumed(Effects& effects);

  // Chunks from `large_chunk_bytes` on are handed out one at a time, so that what comes meanwhile
  // need not wait for all that a window allows. May turn out to be none. Only while has_chunks().
  bool has_chunks() const { return !sending_.empty(); }
  void SendNext(Effects& effects);

  // Ends everything open with `status`.
  void Fail(const absl::Status& status, Effects& effects);

  std::int64_t step() const { return step_; }
  bool failed() const { return !failure_.ok(); }
  const absl::Status& failure() const { return failure_; }
  // "bucket [fc1.weight, …]: 3 of 25 results": what is open here, for messages.
  std::string Progress() const;

 private:
  struct Bucket {
    Ticket ticket = 0;
    std::vector<std::uint32_t> parameters{};
    std::vector<RoundPlan> plans{};
    std::unique_ptr<HookRun> run{};
    std::uint32_t round = 0;
    std::uint32_t attempt = 0;
    bool granted = false;
    bool ahead = false;  // no window
    wire::ChunkLayout layout{};
    std::uint32_t sent = 0;      // chunks of this round handed out for sending, in this attempt
    std::uint32_t received = 0;  // results of this round decoded
    std::vector<std::byte> shared{};  // shared state received so far
    bool has_shared = false;          // it went to the run
    bool done = false;                // the result is in the buffer; the run waits for the verdict
    std::size_t eager_bytes = 0;      // went with the announcement; 0: it waits for a grant
  };

  absl::Status MapParameters(const GradBucket& bucket, std::vector<std::uint32_t>& positions) const;
  void OnSharedState(const wire::SharedState& state, const wire::PayloadRef& payload,
                     Effects& effects);
  void OnStateReset(const wire::StateReset& reset, Effects& effects);
  void OnGrant(const wire::Grant& grant, Effects& effects);
  void OnResult(const wire::Result& result, const wire::PayloadRef& payload, Effects& effects);
  void OnStepDone(const wire::StepDone& done, Effects& effects);
  void OnRestart(const wire::Restart& restart, Effects& effects);
  void OnBegin(const wire::Begin& begin, Effects& effects);
  void OnCollectiveChunk(const wire::CollectiveChunk& header, const wire::PayloadRef& payload,
                         Effects& effects);
  void OnCollectiveAck(const wire::CollectiveAck& ack, Effects& effects);
  absl::Status Decode(Bucket& bucket, const wire::Result& result, const wire::Payload& payload);
  absl::Status AdvanceRound(Bucket& bucket, Effects& effects);
  void Done(Bucket& bucket, Effects& effects);
  bool MayBeEager(const Bucket& bucket) const;
  wire::Announce AnnounceOf(const Bucket& bucket);
  void SendEager(Bucket& bucket, Effects& effects);
  bool MaySend(const Bucket& bucket) const;
  void SendChunk(std::uint32_t id, Bucket& bucket, Effects& effects);
  void SendChunks(std::uint32_t id, Bucket& bucket, Effects& effects);
  void SendAnnounce(const Bucket& bucket, Effects& effects);
  void FinishEager(Bucket& bucket);
  bool IsAnotherOpen(const Bucket& bucket) const;
  void SendCollectiveChunks(Effects& effects);
  void MaybeFinishCollective(Effects& effects);
  void ProtocolError(const std::string& what, Effects& effects);
  std::uint32_t CollectiveChunks() const;
  wire::RoundId IdOf(std::uint32_t id, const Bucket& bucket) const;
  RoundContext Context() const;

  struct Collective {
    std::uint64_t number = 0;
    wire::CollectiveKind kind = wire::CollectiveKind::kBarrier;
    int root = 0;
    std::size_t bytes = 0;
    bool begun = false;
    std::uint32_t sent = 0;
    std::uint32_t received = 0;  // chunks here (root: counts all), acknowledged
    std::uint32_t everybody = 0;
  };

  MemberOptions options_;
  Hook* hook_;
  std::unordered_map<std::string, std::uint32_t> positions_;
  std::int64_t step_;
  std::uint32_t attempt_ = 0;
  bool welcomed_ = false;
  bool ended_ = false;
  std::map<std::uint32_t, Bucket> buckets_;  // of the current step, by id
  std::vector<bool> used_;                   // parameters in the current step
  std::deque<std::uint32_t> sending_;        // of buckets_: may have a large chunk to send
  // Sent eagerly, and the results not acknowledged; the next announcement does that, at no cost.
  std::size_t eager_bytes_ = 0;
  std::size_t eager_done_bytes_ = 0;       // of these, what has its results
  std::vector<std::uint32_t> eager_done_;  // likewise: the buckets of this step
  bool eager_stopped_ = false;             // in this step
  std::optional<Collective> collective_;
  std::uint64_t next_collective_ = 0;
  std::optional<std::pair<std::int64_t, std::int64_t>> last_reset_;  // step, iteration
  absl::Status failure_;
};

}  // namespace gradwire::client
