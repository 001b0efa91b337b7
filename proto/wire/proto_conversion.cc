#include "proto/wire/proto_conversion.h"

#include <optional>
#include <variant>

#include "base/error_code.h"
#include "proto/wire/checks.h"
#include "proto/wire/field_checker.h"
#include "proto/wire/group_frames.h"
#include "proto/wire/late_frames.h"
#include "proto/wire/ledger_frames.h"
#include "proto/wire/rank_zero_frames.h"
#include "proto/wire/recovery_frames.h"
#include "proto/wire/shard_frames.h"

namespace gradwire::wire {
namespace {

void Set(const RoundId& id, v1::RoundId* out) {
  out->set_step(id.step);
  out->set_attempt(id.attempt);
  out->set_bucket(id.bucket);
  out->set_round(id.round);
}

void Set(const Hello& hello, v1::Header& out) {
  v1::Hello& message = *out.mutable_hello();
  message.set_token(hello.token);
  message.set_start_id(hello.start_id);
  message.set_step(hello.step);
  message.set_memory(hello.memory);
  message.set_pair(hello.pair);
  message.set_bundles(hello.bundles);
  message.set_takes_residuals(hello.takes_residuals);
  message.set_may_miss(hello.may_miss);
}

Hello Get(const v1::Hello& message, Checker& check) {
  if (message.token().empty() || message.token().size() > kMaxTokenBytes) {
    check.Range("token's size", message.token().size(), std::size_t{1}, kMaxTokenBytes);
  }
  return {.token = message.token(),
          .start_id = message.start_id(),
          .step = check.Step(message.step()),
          .memory = message.memory(),
          .pair = message.pair(),
          .bundles = message.bundles(),
          .takes_residuals = message.takes_residuals(),
          .may_miss = message.may_miss()};
}

void Set(const Announce& announce, v1::Header& out) {
  v1::Announce& message = *out.mutable_announce();
  message.set_step(announce.step);
  message.set_generation(announce.generation);
  message.mutable_parameters()->Add(announce.parameters.begin(), announce.parameters.end());
  message.set_eager(announce.eager);
  message.set_attempt(announce.attempt);
  message.set_share(announce.share);
  message.mutable_acknowledged()->Add(announce.acknowledged.begin(), announce.acknowledged.end());
  if (announce.digest.has_value()) message.set_digest(*announce.digest);
  for (const RoundPlan& round : announce.rounds) {
    v1::RoundPlan& plan = *message.add_rounds();
    for (const Segment& segment : round.segments) {
      v1::Segment& piece = *plan.add_segments();
      piece.set_dtype(static_cast<v1::DataType>(segment.dtype));
      piece.set_numel(segment.numel);
      piece.set_op(static_cast<v1::ReduceOp>(segment.op));
      piece.set_epsilon(segment.epsilon);
      for (const MatrixShape& shape : segment.matrices) {
        v1::MatrixShape& matrix = *piece.add_matrices();
        matrix.set_rows(shape.rows);
        matrix.set_cols(shape.cols);
      }
    }
  }
}

// Sides fit 2^32 before they are multiplied.
std::vector<MatrixShape> GetMatrices(const v1::Segment& message, Checker& check) {
  std::vector<MatrixShape> shapes;
  check.Count("rounds.segments.matrices", static_cast<std::size_t>(message.matrices_size()), 0,
              kMaxParameters);
  if (!check.status().ok()) return shapes;
  std::uint64_t numel = 0;
  for (const v1::MatrixShape& matrix : message.matrices()) {
    check.Range("rounds.segments.matrices.rows", matrix.rows(), std::uint64_t{1}, kMaxMatrixSide);
    if (!check.status().ok()) return shapes;
    check.Range("rounds.segments.matrices.cols", matrix.cols(), std::uint64_t{1},
                std::min(matrix.rows(), kMaxMatrixCols));
    if (!check.status().ok()) return shapes;
    // At most 2^42 each, and the sum is checked after each addition: no overflow.
    numel += matrix.rows() * matrix.cols();
    check.Range("the matrices' numel", numel, std::uint64_t{1}, kMaxNumel);
    if (!check.status().ok()) return shapes;
    shapes.push_back({.rows = static_cast<std::size_t>(matrix.rows()),
                      .cols = static_cast<std::size_t>(matrix.cols())});
  }
  const bool has_matrices = message.op() == v1::REDUCE_OP_ORTHONORMALIZED_SUM;
  check.Range("the matrices' numel", numel, has_matrices ? message.numel() : 0,
              has_matrices ? message.numel() : 0);
  check.Range("rounds.segments.epsilon", message.epsilon(), 0.0,
              std::numeric_limits<double>::max());
  return shapes;
}

RoundPlan Get(const v1::RoundPlan& message, Checker& check) {
  RoundPlan plan;
  check.Count("rounds.segments", static_cast<std::size_t>(message.segments_size()), 0,
              kMaxSegments);
  if (!check.status().ok()) return plan;
  plan.segments.reserve(static_cast<std::size_t>(message.segments_size()));
  std::uint64_t total = 0;
  for (const v1::Segment& piece : message.segments()) {
    check.Enumerator("rounds.segments.dtype", piece.dtype(), IsDType(piece.dtype()), "1 to 4");
    check.Enumerator(
        "rounds.segments.op", piece.op(),
        piece.op() >= v1::REDUCE_OP_SUM && piece.op() <= v1::REDUCE_OP_ORTHONORMALIZED_SUM,
        "1 to 3");
    check.Range("rounds.segments.numel", piece.numel(), std::uint64_t{0}, kMaxNumel);
    total += piece.numel();  // of at most kMaxSegments: no overflow
    check.Range("the round's numel", total, std::uint64_t{0}, kMaxNumel);
    std::vector<MatrixShape> matrices = GetMatrices(piece, check);
    if (!check.status().ok()) return plan;
    plan.segments.push_back({.dtype = static_cast<DType>(piece.dtype()),
                             .numel = static_cast<std::size_t>(piece.numel()),
                             .op = static_cast<ReduceOp>(piece.op()),
                             .matrices = std::move(matrices),
                             .epsilon = piece.epsilon()});
  }
  return plan;
}

Announce Get(const v1::Announce& message, Checker& check) {
  Announce announce;
  announce.step = check.Step(message.step());
  announce.generation = message.generation();
  announce.eager = message.eager();
  announce.attempt = message.attempt();
  announce.share = check.Range("share", message.share(), std::uint32_t{0},
                               static_cast<std::uint32_t>(kMaxWorldSize - 1));
  if (message.has_digest()) announce.digest = message.digest();
  check.Count("parameters", static_cast<std::size_t>(message.parameters_size()), 1, kMaxParameters);
  check.Count("rounds", static_cast<std::size_t>(message.rounds_size()), 0, kMaxRounds);
  check.Count("acknowledged", static_cast<std::size_t>(message.acknowledged_size()), 0,
              kMaxParameters);
  if (!check.status().ok()) return announce;
  announce.acknowledged.assign(message.acknowledged().begin(), message.acknowledged().end());
  announce.parameters.reserve(static_cast<std::size_t>(message.parameters_size()));
  for (const std::uint32_t parameter : message.parameters()) {
    announce.parameters.push_back(check.Parameter("parameters", parameter));
  }
  for (const v1::RoundPlan& round : message.rounds()) announce.rounds.push_back(Get(round, check));
  return announce;
}

void Set(const SharedBytes& shared, v1::SharedBytes* out) {
  out->set_segment(shared.segment);
  out->set_offset(shared.offset);
  out->set_bytes(shared.bytes);
  out->set_raw(shared.raw);
  out->set_takes_result(shared.takes_result);
}

// Whether they lie in the segment is for its owner to say.
SharedBytes Get(const v1::SharedBytes& message) {
  return {.segment = message.segment(),
          .offset = message.offset(),
          .bytes = message.bytes(),
          .raw = message.raw(),
          .takes_result = message.takes_result()};
}

void Set(const Contribution& contribution, v1::Header& out) {
  v1::Contribution& message = *out.mutable_contribution();
  Set(contribution.id, message.mutable_id());
  message.set_generation(contribution.generation);
  message.set_rank(contribution.rank);
  message.set_chunk(contribution.chunk);
  message.set_received(contribution.received);
  if (contribution.digest.has_value()) message.set_digest(*contribution.digest);
  if (contribution.shared.has_value()) Set(*contribution.shared, message.mutable_shared());
  message.set_more(contribution.more);
}

Contribution Get(const v1::Contribution& message, Checker& check) {
  return {.id = check.Id(message.id()),
          .generation = message.generation(),
          .rank = check.Rank("rank", message.rank()),
          .chunk = message.chunk(),
          .received = message.received(),
          .digest = message.has_digest() ? std::optional(message.digest()) : std::nullopt,
          .shared = message.has_shared() ? std::optional(Get(message.shared())) : std::nullopt,
          .more = check.Range("more", message.more(), std::uint32_t{0}, kMaxMore)};
}

void Set(const Ack& ack, v1::Header& out) {
  Set(ack.id, out.mutable_ack()->mutable_id());
  out.mutable_ack()->set_received(ack.received);
}

Ack Get(const v1::Ack& message, Checker& check) {
  return {.id = check.Id(message.id()), .received = message.received()};
}

void Set(const EndStep& end, v1::Header& out) {
  out.mutable_end_step()->set_step(end.step);
  out.mutable_end_step()->set_generation(end.generation);
}

EndStep Get(const v1::EndStep& message, Checker& check) {
  return {.step = check.Step(message.step()), .generation = message.generation()};
}

void Set(const Enter& enter, v1::Header& out) {
  v1::Enter& message = *out.mutable_enter();
  message.set_number(enter.number);
  message.set_generation(enter.generation);
  message.set_kind(static_cast<v1::CollectiveKind>(enter.kind));
  message.set_root(enter.root);
  message.set_bytes(enter.bytes);
}

Enter Get(const v1::Enter& message, Checker& check) {
  const bool known = message.kind() == v1::COLLECTIVE_KIND_BARRIER ||
                     message.kind() == v1::COLLECTIVE_KIND_BROADCAST;
  check.Enumerator("kind", message.kind(), known, "1 to 2");
  return {.number = message.number(),
          .generation = message.generation(),
          .kind = known ? static_cast<CollectiveKind>(message.kind()) : CollectiveKind::kBarrier,
          .root = check.Rank("root", message.root()),
          .bytes = check.Range("bytes", message.bytes(), std::uint64_t{0}, kMaxManifestBytes)};
}

void Set(const CollectiveChunk& chunk, v1::Header& out) {
  out.mutable_collective_chunk()->set_number(chunk.number);
  out.mutable_collective_chunk()->set_chunk(chunk.chunk);
}

CollectiveChunk Get(const v1::CollectiveChunk& message, Checker& /*check*/) {
  return {.number = message.number(), .chunk = message.chunk()};
}

void Set(const CollectiveAck& ack, v1::Header& out) {
  out.mutable_collective_ack()->set_number(ack.number);
  out.mutable_collective_ack()->set_received(ack.received);
}

void Set(const CollectiveVoid& over, v1::Header& out) {
  out.mutable_collective_void()->set_number(over.number);
}

CollectiveVoid Get(const v1::CollectiveVoid& message, Checker& /*check*/) {
  return {.number = message.number()};
}

CollectiveAck Get(const v1::CollectiveAck& message, Checker& /*check*/) {
  return {.number = message.number(), .received = message.received()};
}

void Set(const Welcome& welcome, v1::Header& out) {
  v1::Welcome& message = *out.mutable_welcome();
  message.set_step(welcome.step);
  message.set_attempt(welcome.attempt);
  message.set_resumed(welcome.resumed);
  if (welcome.group) Set(*welcome.group, message.mutable_node_group());
  if (welcome.recovery) Set(*welcome.recovery, *message.mutable_recovery());
  if (welcome.change) Set(*welcome.change, *message.mutable_change());
}

Welcome Get(const v1::Welcome& message, Checker& check) {
  return {
      .step = check.Step(message.step()),
      .attempt = message.attempt(),
      .resumed = message.resumed(),
      .group =
          message.has_node_group() ? std::optional(Get(message.node_group(), check)) : std::nullopt,
      .recovery =
          message.has_recovery() ? std::optional(Get(message.recovery(), check)) : std::nullopt,
      .change = message.has_change() ? std::optional(Get(message.change(), check)) : std::nullopt};
}

void Set(const Grant& grant, v1::Header& out) { Set(grant.id, out.mutable_grant()->mutable_id()); }

Grant Get(const v1::Grant& message, Checker& check) { return {.id = check.Id(message.id())}; }

void Set(const Result& result, v1::Header& out) {
  v1::Result& message = *out.mutable_result();
  Set(result.id, message.mutable_id());
  message.set_chunk(result.chunk);
  message.set_digest(result.digest);
  message.set_reduce_nanoseconds(result.reduce_nanoseconds);
  if (result.shared.has_value()) Set(*result.shared, message.mutable_shared());
  message.set_in_place(result.in_place);
  message.set_more(result.more);
}

Result Get(const v1::Result& message, Checker& check) {
  return {.id = check.Id(message.id()),
          .chunk = message.chunk(),
          .digest = message.digest(),
          .reduce_nanoseconds = message.reduce_nanoseconds(),
          .shared = message.has_shared() ? std::optional(Get(message.shared())) : std::nullopt,
          .in_place = message.in_place(),
          .more = check.Range("more", message.more(), std::uint32_t{0}, kMaxMore)};
}

void Set(const StepDone& done, v1::Header& out) {
  v1::StepDone& message = *out.mutable_step_done();
  message.set_step(done.step);
  message.set_attempt(done.attempt);
  message.set_verdict(static_cast<v1::StepVerdict>(done.verdict));
  message.set_digest(done.digest);
  message.set_dropped(done.dropped);
  if (done.change) Set(*done.change, *message.mutable_change());
  message.set_reason(Shortened(done.reason));
  message.set_drift(Shortened(done.drift));
}

StepDone Get(const v1::StepDone& message, Checker& check) {
  return {
      .step = check.Step(message.step()),
      .attempt = message.attempt(),
      .verdict = GetVerdict(message.verdict(), check),
      .digest = message.digest(),
      .dropped = message.dropped(),
      .change = message.has_change() ? std::optional(Get(message.change(), check)) : std::nullopt,
      .reason = Shortened(message.reason()),
      .drift = Shortened(message.drift())};
}

void Set(const SharedState& state, v1::Header& out) {
  v1::SharedState& message = *out.mutable_shared_state();
  Set(state.id, message.mutable_id());
  message.set_offset(state.offset);
  message.set_bytes(state.bytes);
}

SharedState Get(const v1::SharedState& message, Checker& check) {
  const std::uint64_t bytes =
      check.Range("bytes", message.bytes(), std::uint64_t{1}, kMaxManifestBytes);
  return {.id = check.Id(message.id()),
          .offset = check.Range("offset", message.offset(), std::uint64_t{0}, bytes),
          .bytes = bytes};
}

void Set(const StateReset& reset, v1::Header& out) {
  out.mutable_state_reset()->set_iteration(reset.iteration);
}

StateReset Get(const v1::StateReset& message, Checker& check) {
  return {.iteration = check.Range("iteration", message.iteration(), std::int64_t{0}, kMaxInt64)};
}

void Set(const Restart& restart, v1::Header& out) {
  v1::Restart& message = *out.mutable_restart();
  message.set_step(restart.step);
  message.set_attempt(restart.attempt);
  for (const RoundId& id : restart.open) Set(id, message.add_open());
}

Restart Get(const v1::Restart& message, Checker& check) {
  Restart restart{.step = check.Step(message.step()), .attempt = message.attempt()};
  check.Count("open", static_cast<std::size_t>(message.open_size()), 0, kMaxOpenRounds);
  if (!check.status().ok()) return restart;
  for (const v1::RoundId& id : message.open()) restart.open.push_back(check.Id(id));
  return restart;
}

void Set(const Failure& failure, v1::Header& out) {
  v1::Failure& message = *out.mutable_failure();
  message.set_code(failure.code);
  message.set_message(Shortened(failure.message));
  message.set_blamed_rank(failure.blamed_rank);
}

Failure Get(const v1::Failure& message, Checker& check) {
  return {.code = check.Range("code", int{message.code()}, 1, 16),
          .message = Shortened(message.message()),
          .blamed_rank = check.Rank("blamed_rank", message.blamed_rank(), -1)};
}

void Set(const Begin& begin, v1::Header& out) { out.mutable_begin()->set_number(begin.number); }

Begin Get(const v1::Begin& message, Checker& /*check*/) { return {.number = message.number()}; }

template <class Message>
absl::StatusOr<Header> Checked(const char* name, const Message& message) {
  Checker check(name);
  Header header = Get(message, check);
  if (!check.status().ok()) return check.status();
  return header;
}

// What sessions have that outlive a daemon or a member, or have several daemons.
absl::StatusOr<Header> OfSeveralLives(const v1::Header& header) {
  switch (header.body_case()) {
    case v1::Header::kPrepared:
      return Checked("prepared", header.prepared());
    case v1::Header::kReady:
      return Checked("ready", header.ready());
    case v1::Header::kConcluded:
      return Checked("concluded", header.concluded());
    case v1::Header::kGatherAgain:
      return Checked("gather_again", header.gather_again());
    case v1::Header::kLedgerAccount:
      return Checked("ledger_account", header.ledger_account());
    case v1::Header::kLedgerTotal:
      return Checked("ledger_total", header.ledger_total());
    case v1::Header::kHandOver:
      return Checked("hand_over", header.hand_over());
    case v1::Header::kHandOverAnswer:
      return Checked("hand_over_answer", header.hand_over_answer());
    case v1::Header::kMissed:
      return Checked("missed", header.missed());
    case v1::Header::kCollectiveVoid:
      return Checked("collective_void", header.collective_void());
    case v1::Header::kCoordinatorState:
      return Checked("coordinator_state", header.coordinator_state());
    case v1::Header::kStateRequest:
      return Checked("state_request", header.state_request());
    case v1::Header::kStateCopy:
      return Checked("state_copy", header.state_copy());
    case v1::Header::kParameterDigest:
      return Checked("parameter_digest", header.parameter_digest());
    default:
      return NotAllowed("header.body", "none that version 1 knows", "one of gradwire.v1.Header's");
  }
}

}  // namespace

v1::Header ToProto(const Header& header) {
  v1::Header message;
  std::visit([&](const auto& body) { Set(body, message); }, header);
  return message;
}

absl::StatusOr<Header> FromProto(const v1::Header& header) {
  switch (header.body_case()) {
    case v1::Header::kHello:
      return Checked("hello", header.hello());
    case v1::Header::kAnnounce:
      return Checked("announce", header.announce());
    case v1::Header::kContribution:
      return Checked("contribution", header.contribution());
    case v1::Header::kAck:
      return Checked("ack", header.ack());
    case v1::Header::kEndStep:
      return Checked("end_step", header.end_step());
    case v1::Header::kHeartbeat:
      return Checked("heartbeat", header.heartbeat());
    case v1::Header::kEnter:
      return Checked("enter", header.enter());
    case v1::Header::kCollectiveChunk:
      return Checked("collective_chunk", header.collective_chunk());
    case v1::Header::kCollectiveAck:
      return Checked("collective_ack", header.collective_ack());
    case v1::Header::kBucketReport:
      return Checked("bucket_report", header.bucket_report());
    case v1::Header::kDrawPlan:
      return Checked("draw_plan", header.draw_plan());
    case v1::Header::kGroupBucket:
      return Checked("group_bucket", header.group_bucket());
    case v1::Header::kGroupId:
      return Checked("group_id", header.group_id());
    case v1::Header::kGroupOrder:
      return Checked("group_order", header.group_order());
    case v1::Header::kWelcome:
      return Checked("welcome", header.welcome());
    case v1::Header::kGrant:
      return Checked("grant", header.grant());
    case v1::Header::kResult:
      return Checked("result", header.result());
    case v1::Header::kStepDone:
      return Checked("step_done", header.step_done());
    case v1::Header::kRestart:
      return Checked("restart", header.restart());
    case v1::Header::kFailure:
      return Checked("failure", header.failure());
    case v1::Header::kBegin:
      return Checked("begin", header.begin());
    case v1::Header::kSharedState:
      return Checked("shared_state", header.shared_state());
    case v1::Header::kStateReset:
      return Checked("state_reset", header.state_reset());
    default:
      return OfSeveralLives(header);
  }
}

}  // namespace gradwire::wire
