// The frames of gradwire.v1.Exchange as plain values: what the session core and the member core
// speak. proto/wire/codec.h turns them into bytes. Field meanings are in
// gradwire/v1/aggregation.proto.
//
// No gRPC and no protobuf here.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "gradwire/hooks/round_plan.h"
#include "gradwire/hooks/slice.h"
#include "hooks/ledger_row.h"
#include "proto/wire/roster.h"

namespace gradwire::wire {

struct RoundId {
  std::int64_t step = 0;
  std::uint32_t attempt = 0;
  std::uint32_t bucket = 0;
  std::uint32_t round = 0;

  auto operator<=>(const RoundId&) const = default;
};

struct Hello {
  std::string token;
  std::uint64_t start_id = 0;
  std::int64_t step = 0;
  std::uint64_t memory = 0;
  std::uint64_t pair = 0;  // with its bulk lane; 0: there is none
  bool bundles = false;
  bool takes_residuals = false;
  bool may_miss = false;
  bool operator==(const Hello&) const = default;
};

struct Announce {
  std::int64_t step = 0;
  std::uint64_t generation = 0;
  std::vector<std::uint32_t> parameters;
  std::vector<RoundPlan> rounds;
  bool eager = false;  // the payload is the only round's only chunk, of this attempt
  std::uint32_t attempt = 0;
  std::optional<std::uint64_t> digest{};
  std::vector<std::uint32_t> acknowledged{};
  std::uint32_t share = 0;
  bool operator==(const Announce&) const = default;
};

// A bucket of a member, before its node group has added it up.
struct GroupBucket {
  std::int64_t step = 0;
  std::uint64_t generation = 0;
  std::vector<std::uint32_t> parameters{};
  bool operator==(const GroupBucket&) const = default;
};

inline constexpr std::size_t kMaxGroupIdBytes = 1024;
struct GroupId {
  std::uint64_t generation = 0;
  std::string id{};
  bool operator==(const GroupId&) const = default;
};

// What all members of a node group do next.
struct GroupOrder {
  std::int64_t step = 0;
  std::uint32_t number = 0;
  std::uint32_t bucket = 0;
  bool gather = false;
  bool operator==(const GroupOrder&) const = default;
};

// A member's place among the session's node groups.
struct NodeGroup {
  std::vector<int> ranks{};  // ascending, with the member's own
  std::uint32_t shares = 1;
  std::uint32_t groups = 1;  // of the session
  std::uint32_t group = 0;   // the member's
  bool operator==(const NodeGroup&) const = default;
};

// Chunks that a frame may name beside its first.
inline constexpr std::uint32_t kMaxMore = std::uint32_t{1} << 20;

// Where a frame's payload lies in shared memory.
struct SharedBytes {
  std::uint32_t segment = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  bool raw = false;
  bool takes_result = false;
  bool operator==(const SharedBytes&) const = default;
};

struct Contribution {
  RoundId id;
  std::uint64_t generation = 0;
  int rank = 0;
  std::uint32_t chunk = 0;
  std::uint32_t received = 0;
  std::optional<std::uint64_t> digest{};
  std::optional<SharedBytes> shared{};
  std::uint32_t more = 0;
  bool operator==(const Contribution&) const = default;
};

struct Ack {
  RoundId id;
  std::uint32_t received = 0;
  bool operator==(const Ack&) const = default;
};

struct EndStep {
  std::int64_t step = 0;
  std::uint64_t generation = 0;
  bool operator==(const EndStep&) const = default;
};

struct ParameterDigest {
  std::int64_t step = 0;
  std::uint64_t generation = 0;
  std::uint64_t digest = 0;
  bool operator==(const ParameterDigest&) const = default;
};

struct DrawPlan {
  std::uint64_t generation = 0;
  std::uint32_t piece = 0;
  std::vector<std::vector<std::uint32_t>> buckets{};
  bool continued = false;
  bool last = false;
  bool operator==(const DrawPlan&) const = default;
};

// Totals since the member joined; field meanings are in the .proto.
struct BucketReport {
  std::uint32_t bucket = 0;
  std::uint32_t parameters = 0;
  std::uint64_t reductions = 0;
  std::uint64_t gradient_bytes = 0;
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
  double compress_seconds = 0;
  double wire_seconds = 0;
  double reduce_seconds = 0;
  double decompress_seconds = 0;
  double gradient_norm = 0;
  double residual_norm = 0;
  bool operator==(const BucketReport&) const = default;
};

struct Heartbeat {
  bool asks = false;      // of the daemon: for the member's step
  std::int64_t step = 0;  // of a member; 0: it does not say
  bool operator==(const Heartbeat&) const = default;
};

enum class CollectiveKind : std::uint8_t { kBarrier = 1, kBroadcast = 2 };

struct Enter {
  std::uint64_t number = 0;
  std::uint64_t generation = 0;
  CollectiveKind kind = CollectiveKind::kBarrier;
  int root = 0;
  std::uint64_t bytes = 0;
  bool operator==(const Enter&) const = default;
};

struct CollectiveChunk {
  std::uint64_t number = 0;
  std::uint32_t chunk = 0;
  bool operator==(const CollectiveChunk&) const = default;
};

struct CollectiveAck {
  std::uint64_t number = 0;
  std::uint32_t received = 0;
  bool operator==(const CollectiveAck&) const = default;
};

// From a leaf: the collective ends without effect.
struct CollectiveVoid {
  std::uint64_t number = 0;
  bool operator==(const CollectiveVoid&) const = default;
};

struct Recovery {
  std::string session_key;
  std::uint64_t lineage = 0;
  std::uint32_t grace_milliseconds = 0;
  std::optional<Roster> roster{};  // none: all ranks, always
  std::uint64_t life = 0;          // with several daemons
  std::uint64_t chain = 0;         // of the digests of all steps before the Welcome's
  std::uint64_t arbiter = 0;       // that rosters are claimed at; 0: they need a majority
  bool operator==(const Recovery&) const = default;
};

struct Welcome {
  std::int64_t step = 0;
  std::uint32_t attempt = 0;
  bool resumed = false;
  std::optional<NodeGroup> group{};          // none: the session has no node groups
  std::optional<Recovery> recovery{};        // none: the session ends with its daemon
  std::optional<MembershipChange> change{};  // to a newcomer
  bool operator==(const Welcome&) const = default;
};

struct Grant {
  RoundId id;
  bool operator==(const Grant&) const = default;
};

struct Result {
  RoundId id;
  std::uint32_t chunk = 0;
  std::uint64_t digest = 0;
  std::uint64_t reduce_nanoseconds = 0;
  std::optional<SharedBytes> shared{};
  bool in_place = false;
  std::uint32_t more = 0;
  bool operator==(const Result&) const = default;
};

struct StepDone {
  std::int64_t step = 0;
  std::uint32_t attempt = 0;
  Verdict verdict = Verdict::kApply;
  std::uint64_t digest = 0;
  bool dropped = false;                      // with its daemon: no member needs to have all results
  std::optional<MembershipChange> change{};  // with `dropped`
  std::string reason{};                      // of a skip, in a sentence; "": not known
  std::string drift{};                       // whose parameters differ; "": nobody's that is known
  bool operator==(const StepDone&) const = default;
};

// A shard has sent all its results of a step.
struct Prepared {
  std::int64_t step = 0;
  Verdict verdict = Verdict::kApply;
  std::uint64_t digest = 0;
  std::string reason{};  // of a skip; "": not known
  bool operator==(const Prepared&) const = default;
};

// A member holds all results of all shards.
struct Ready {
  std::int64_t step = 0;
  std::uint64_t generation = 0;
  Verdict verdict = Verdict::kApply;
  std::uint64_t digest = 0;
  bool operator==(const Ready&) const = default;
};

// What shard 0 decided, for the others.
struct Concluded {
  std::int64_t step = 0;
  std::uint64_t generation = 0;
  Verdict verdict = Verdict::kApply;
  bool operator==(const Concluded&) const = default;
};

// A member has lost a shard.
struct GatherAgain {
  std::uint64_t generation = 0;
  std::uint32_t shard = 0;
  bool operator==(const GatherAgain&) const = default;
};

// What became of one member's gradients, when it holds the step's results; and the sum of all
// members' accounts. Each has ledger_rows rows.
struct LedgerSnapshot {
  std::int64_t step = 0;
  std::vector<LedgerRow> own{};
  std::vector<LedgerRow> total{};  // none: it did not come
  bool operator==(const LedgerSnapshot&) const = default;
};
struct LedgerAccount {
  std::int64_t step = 0;
  std::uint64_t generation = 0;
  std::vector<LedgerRow> before{};
  std::vector<LedgerRow> change{};
  std::vector<LedgerSnapshot> earlier{};  // ascending, to a further daemon
  bool operator==(const LedgerAccount&) const = default;
};
struct LedgerTotal {
  std::int64_t step = 0;
  std::vector<LedgerRow> rows{};
  bool operator==(const LedgerTotal&) const = default;
};

// A piece of the residuals of a member that leaves, on its way to another one, and the answer.
struct HandOver {
  std::uint64_t generation = 0;
  std::uint64_t id = 0;
  int rank = 0;  // from a member: who takes them; to that one: whose they are
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;  // of the whole
  bool operator==(const HandOver&) const = default;
};
struct HandOverAnswer {
  std::uint64_t generation = 0;
  std::uint64_t id = 0;
  int rank = 0;  // as above
  std::uint64_t received = 0;
  bool taken = false;
  std::string refusal{};
  bool operator==(const HandOverAnswer&) const = default;
};

// The others reduce a bucket without the member.
struct Missed {
  RoundId id;
  std::vector<std::uint32_t> parameters{};
  bool operator==(const Missed&) const = default;
};

struct Restart {
  std::int64_t step = 0;
  std::uint32_t attempt = 0;
  std::vector<RoundId> open{};
  bool operator==(const Restart&) const = default;
};

// A piece of the state that a bucket's first round takes from the coordinator. Pieces come in order
// and before the member's grant.
struct SharedState {
  RoundId id;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;  // of the whole state
  bool operator==(const SharedState&) const = default;
};

// The coordinator's state was replaced between two steps.
struct StateReset {
  std::int64_t iteration = 0;
  bool operator==(const StateReset&) const = default;
};

// A piece of what only the coordinator knows of its state, before a step's Prepared.
struct CoordinatorState {
  std::int64_t step = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;  // of all pieces
  bool operator==(const CoordinatorState&) const = default;
};

// From a fresh daemon, and the answer: what a member holds of the coordinator's state.
struct StateRequest {
  bool donor = false;
  bool operator==(const StateRequest&) const = default;
};
struct StateCopy {
  std::uint64_t generation = 0;
  std::uint64_t digest = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;  // 0: of a member that is no donor
  bool unknown = false;
  bool operator==(const StateCopy&) const = default;
};

struct Failure {
  int code = 0;  // an absl::StatusCode
  std::string message;
  int blamed_rank = -1;
  bool operator==(const Failure&) const = default;
};

struct Begin {
  std::uint64_t number = 0;
  bool operator==(const Begin&) const = default;
};

using Header =
    std::variant<Hello, Announce, Contribution, Ack, EndStep, Heartbeat, Enter, CollectiveChunk,
                 CollectiveAck, Welcome, Grant, Result, StepDone, Restart, Failure, Begin,
                 SharedState, StateReset, BucketReport, DrawPlan, GroupBucket, GroupId, GroupOrder,
                 Prepared, Ready, Concluded, CoordinatorState, StateRequest, StateCopy,
                 ParameterDigest, GatherAgain, LedgerAccount, LedgerTotal, HandOver, HandOverAnswer,
                 Missed, CollectiveVoid>;

// Whether it has a digest that the coordinator compares with the payload's.
bool HasDigest(const Header& header);

// Where a result may be written over a contribution, so that its sender needs no other copy.
struct ResultRoom {
  std::span<std::byte> bytes;  // the very bytes of the contribution
  int rank = 0;                // its sender
  // The stream by which it came. A later stream of the member does not know the place.
  std::uint64_t stream = 0;
};

// Bytes that belong to a frame, immutable and shared: received slices, a pooled buffer, a test's
// vector. The pieces stay valid as long as the object.
class Payload {
 public:
  virtual ~Payload() = default;
  virtual std::span<const std::span<const std::byte>> pieces() const = 0;
  virtual std::size_t bytes() const = 0;

  // False: another process may change the bytes at any time, so that a digest says nothing.
  virtual bool fixed() const { return true; }

  // Null: no result may be written over the bytes. Valid as long as the object.
  virtual const ResultRoom* result_room() const { return nullptr; }
  bool takes_result() const { return result_room() != nullptr; }

  // [offset, offset + bytes) of a payload that takes its result, as one that does. Null: others.
  virtual std::shared_ptr<const Payload> Cut(std::size_t offset, std::size_t bytes) const;

  // XXH3-64 of the bytes. The first call computes it, so that an owner can do that outside of its
  // lock. Thread-safe.
  std::uint64_t digest() const;

 protected:
  // Where it is known already.
  void SetDigest(std::uint64_t value) const;

 private:
  mutable std::atomic<std::uint64_t> digest_ = 0;
  mutable std::atomic<bool> has_digest_ = false;
};
using PayloadRef = std::shared_ptr<const Payload>;

struct Frame {
  Header header;
  // Null: none. Where the header says that it is in shared memory, whoever owns the stream puts it
  // here, so that the cores see no difference.
  PayloadRef payload{};
  // Frames of the other lane that go before this one (wire::ReorderGate).
  std::uint64_t after = 0;
};

// The payload's digest; null gives that of the empty string.
std::uint64_t Digest(const Payload* payload);

// Chunks of a round: each segment, or a slice of it, is cut at multiples of `chunk_bytes` from its
// first element on, so that a chunk lies in one segment. chunk_bytes is a positive multiple of 8. A
// kOrthonormalizedSum segment is cut between matrices, as many to a chunk as fit; only a matrix
// that alone exceeds chunk_bytes has chunks of its own.
class ChunkLayout {
 public:
  ChunkLayout() = default;
  // A plan with matrices has one slice only.
  ChunkLayout(const RoundPlan& plan, std::size_t chunk_bytes, Slice slice = {});

  std::uint32_t chunk_count() const { return chunk_count_; }

  // chunk < chunk_count().
  ElementRange Range(std::uint32_t chunk) const;

  // Chunks that are reduced together, with the segment that they hold: one chunk, or all of one
  // large matrix.
  struct Unit {
    std::uint32_t first = 0;
    std::uint32_t count = 1;
  };
  Unit UnitOf(std::uint32_t chunk) const;
  Segment UnitSegment(const Unit& unit) const;

  // A member that has `received` results may send `chunk`: the first chunk of its unit is in the
  // window.
  bool InWindow(std::uint32_t chunk, std::uint32_t received, std::uint32_t window) const {
    return UnitOf(chunk).first < received + window;
  }
  const Segment& segment(std::uint32_t chunk) const;
  std::size_t ChunkBytes(std::uint32_t chunk) const;

 private:
  RoundPlan plan_;
  std::size_t chunk_bytes_ = 0;
  Slice slice_;
  struct MatrixUnit {
    Unit unit;
    ElementRange range;
    std::size_t first_matrix = 0;
    std::size_t matrices = 0;
  };
  const MatrixUnit* FindMatrixUnit(std::uint32_t chunk) const;
  void CutMatrices(std::size_t segment);

  std::vector<std::uint32_t> first_chunk_;  // of each segment
  std::vector<MatrixUnit> matrix_units_;    // of kOrthonormalizedSum segments
  std::uint32_t chunk_count_ = 0;
};

}  // namespace gradwire::wire
