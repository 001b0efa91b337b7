#include "tests/proto/frame_samples.h"

#include <grpcpp/support/slice.h>

#include <algorithm>
#include <utility>

#include "proto/wire/owned_payload.h"
#include "proto/wire/proto_conversion.h"

namespace gradwire::wire {
namespace {

LedgerRow LedgerSample(double first) {
  return {.contributed = first,
          .applied = first + 1,
          .residual = first + 2,
          .skipped = first + 3,
          .dropped = first + 4,
          .lost = first + 5,
          .contributed_squares = first + 6,
          .residual_squares = first + 7,
          .skipped_squares = first + 8,
          .dropped_squares = first + 9,
          .lost_squares = first + 10,
          .rounded_squares = first + 11};
}

}  // namespace

std::vector<Sample> AllSamples() {
  std::vector<Sample> all = Samples();
  for (Sample& sample : LaterSamples()) all.push_back(std::move(sample));
  return all;
}

std::vector<Sample> LaterSamples() {
  const RoundId id{.step = 41, .attempt = 2, .bucket = 300, .round = 1};
  const MembershipChange change{
      .newcomers = {1, 300}, .root = 2, .collectives = 9, .iteration = 30};
  return {{"hello_memory",
           Hello{.token = "token", .start_id = 0x8877665544332211, .step = 7, .memory = 0x99}},
          {"hello_pair", Hello{.token = "token",
                               .start_id = 0x8877665544332211,
                               .step = 7,
                               .pair = 0x1122334455667788}},
          {"heartbeat_asks", Heartbeat{.asks = true}},
          {"heartbeat_step", Heartbeat{.step = 42}},
          {"hello_bundles",
           Hello{.token = "token", .start_id = 0x8877665544332211, .step = 7, .bundles = true}},
          {"hello_takes", Hello{.token = "token",
                                .start_id = 0x8877665544332211,
                                .step = 7,
                                .takes_residuals = true,
                                .may_miss = true}},
          {"announce_eager", Announce{.step = 41,
                                      .generation = 5,
                                      .parameters = {300},
                                      .rounds = {{{{DType::kFloat32, 3, ReduceOp::kSum}}}},
                                      .eager = true,
                                      .attempt = 2,
                                      .digest = 0xfeed,
                                      .acknowledged = {7, 70000}}},
          {"announce_share", Announce{.step = 41,
                                      .generation = 5,
                                      .parameters = {300},
                                      .rounds = {{{{DType::kFloat32, 3, ReduceOp::kSum}}}},
                                      .share = 3}},
          {"welcome_grouped",
           Welcome{.step = 41,
                   .attempt = 2,
                   .group = NodeGroup{.ranks = {1, 3, 4}, .shares = 4, .groups = 2, .group = 1}}},
          {"welcome_recovery", Welcome{.step = 41,
                                       .recovery = Recovery{.session_key = "0123456789abcdef",
                                                            .lineage = 0x1122334455667788,
                                                            .grace_milliseconds = 60'000}}},
          {"welcome_roster",
           Welcome{.step = 41,
                   .recovery = Recovery{.session_key = "0123456789abcdef",
                                        .lineage = 0x1122334455667788,
                                        .grace_milliseconds = 60'000,
                                        .roster = Roster{.number = 3, .ranks = {0, 2, 300}}}}},
          {"welcome_life", Welcome{.step = 41,
                                   .recovery = Recovery{.session_key = "0123456789abcdef",
                                                        .lineage = 0x1122334455667788,
                                                        .grace_milliseconds = 60'000,
                                                        .life = 4}}},
          {"welcome_chain", Welcome{.step = 41,
                                    .recovery = Recovery{.session_key = "0123456789abcdef",
                                                         .lineage = 0x1122334455667788,
                                                         .grace_milliseconds = 60'000,
                                                         .chain = 0x123}}},
          {"welcome_arbiter", Welcome{.step = 41,
                                      .recovery = Recovery{.session_key = "0123456789abcdef",
                                                           .lineage = 0x1122334455667788,
                                                           .grace_milliseconds = 60'000,
                                                           .arbiter = 0x321}}},
          {"step_done_change_ranks",
           StepDone{.step = 41,
                    .verdict = Verdict::kSkip,
                    .dropped = true,
                    .change = MembershipChange{.newcomers = {1}, .root = 2, .ranks = {1, 2}}}},
          {"step_done_dropped",
           StepDone{.step = 41, .verdict = Verdict::kSkip, .digest = 0xabcd, .dropped = true}},
          {"step_done_change", StepDone{.step = 41,
                                        .verdict = Verdict::kSkip,
                                        .dropped = true,
                                        .change = change,
                                        .reason = "rank 3 contributed 5 NaN"}},
          {"step_done_drift", StepDone{.step = 41, .drift = "the parameters of rank 3 differ"}},
          {"prepared_reason",
           Prepared{.step = 41, .verdict = Verdict::kSkip, .reason = "rank 3 contributed 5 NaN"}},
          {"welcome_change", Welcome{.step = 42, .change = change}},
          {"contribution_shared",
           Contribution{
               .id = id,
               .generation = 5,
               .rank = 3,
               .chunk = 17,
               .received = 13,
               .shared = SharedBytes{.segment = 2, .offset = 4096, .bytes = 800, .raw = true}}},
          {"contribution_taking",
           Contribution{
               .id = id,
               .generation = 5,
               .rank = 3,
               .chunk = 17,
               .received = 13,
               .shared = SharedBytes{.offset = 8, .bytes = 16, .raw = true, .takes_result = true},
               .more = 2}},
          {"result_in_place", Result{.id = id,
                                     .chunk = 17,
                                     .digest = 0xbeef,
                                     .reduce_nanoseconds = 1234,
                                     .in_place = true,
                                     .more = 3}},
          {"result_shared", Result{.id = id,
                                   .chunk = 17,
                                   .digest = 0xbeef,
                                   .reduce_nanoseconds = 1234,
                                   .shared = SharedBytes{.offset = 2048, .bytes = 800}}}};
}

std::vector<Sample> Samples() {
  const RoundId id{.step = 41, .attempt = 2, .bucket = 300, .round = 1};
  const RoundPlan first{
      {{DType::kFloat32, 1000, ReduceOp::kSum}, {DType::kFloat64, 3, ReduceOp::kMean}}};
  const RoundPlan second{
      {{DType::kFloat16, 77, ReduceOp::kMean}, {DType::kBFloat16, 1, ReduceOp::kSum}}};
  return {
      {"hello", Hello{.token = "token-0123456789", .start_id = 0x8877665544332211, .step = 7}},
      {"announce",
       Announce{
           .step = 41, .generation = 5, .parameters = {300, 2, 70000}, .rounds = {first, second}}},
      {"contribution",
       Contribution{
           .id = id, .generation = 5, .rank = 3, .chunk = 17, .received = 13, .digest = 0xfeed}},
      {"ack", Ack{.id = id, .received = 14}},
      {"end_step", EndStep{.step = 41, .generation = 5}},
      {"heartbeat", Heartbeat{}},
      {"enter", Enter{.number = 9,
                      .generation = 5,
                      .kind = CollectiveKind::kBroadcast,
                      .root = 2,
                      .bytes = 123456789}},
      {"collective_chunk", CollectiveChunk{.number = 9, .chunk = 4}},
      {"collective_ack", CollectiveAck{.number = 9, .received = 5}},
      {"welcome", Welcome{.step = 41, .attempt = 2, .resumed = true}},
      {"grant", Grant{.id = id}},
      {"result", Result{.id = id, .chunk = 17, .digest = 0xbeef, .reduce_nanoseconds = 1234}},
      {"step_done",
       StepDone{.step = 41, .attempt = 2, .verdict = Verdict::kSkip, .digest = 0xabcd}},
      {"restart", Restart{.step = 41,
                          .attempt = 2,
                          .open = {id, {.step = 41, .attempt = 1, .bucket = 8, .round = 3}}}},
      {"failure", Failure{.code = 14, .message = "rank 1 is lost", .blamed_rank = 1}},
      {"begin", Begin{.number = 9}},
      {"shared_state", SharedState{.id = id, .offset = 4096, .bytes = 5000}},
      {"state_reset", StateReset{.iteration = 30}},
      {"bucket_report", BucketReport{.bucket = 7,
                                     .parameters = 3,
                                     .reductions = 41,
                                     .gradient_bytes = 4000,
                                     .sent_bytes = 160,
                                     .received_bytes = 161,
                                     .compress_seconds = 0.5,
                                     .wire_seconds = 0.25,
                                     .reduce_seconds = 0.125,
                                     .decompress_seconds = 0.0625,
                                     .gradient_norm = 2,
                                     .residual_norm = 1.5}},
      {"draw_plan", DrawPlan{.generation = 5,
                             .piece = 1,
                             .buckets = {{300, 2}, {70000}},
                             .continued = true,
                             .last = true}},
      {"group_bucket", GroupBucket{.step = 41, .generation = 5, .parameters = {300, 2}}},
      {"group_id", GroupId{.generation = 5, .id = std::string("an id\0of bytes", 14)}},
      {"group_order", GroupOrder{.step = 41, .number = 3, .bucket = 300, .gather = true}},
      {"prepared", Prepared{.step = 41, .verdict = Verdict::kSkip, .digest = 0xabcd}},
      {"ready", Ready{.step = 41, .generation = 5, .verdict = Verdict::kSkip, .digest = 0xabcd}},
      {"concluded", Concluded{.step = 41, .generation = 5, .verdict = Verdict::kSkip}},
      {"coordinator_state", CoordinatorState{.step = 41, .offset = 4096, .bytes = 5000}},
      {"state_request", StateRequest{.donor = true}},
      {"state_copy",
       StateCopy{
           .generation = 5, .digest = 0xabcd, .offset = 4096, .bytes = 5000, .unknown = true}},
      {"parameter_digest", ParameterDigest{.step = 41, .generation = 5, .digest = 0xabcd}},
      {"gather_again", GatherAgain{.generation = 5, .shard = 3}},
      {"ledger_account",
       LedgerAccount{.step = 41,
                     .generation = 5,
                     .before = {LedgerSample(1), LedgerSample(20)},
                     .change = {LedgerSample(300), LedgerSample(4000)},
                     .earlier = {{.step = 39, .own = {LedgerSample(5)}, .total = {LedgerSample(6)}},
                                 {.step = 40, .own = {LedgerSample(7)}}}}},
      {"ledger_total", LedgerTotal{.step = 41, .rows = {LedgerSample(0.5), LedgerSample(-2)}}},
      {"hand_over",
       HandOver{.generation = 5, .id = 0xfeed, .rank = 300, .offset = 4096, .bytes = 5000}},
      {"hand_over_answer", HandOverAnswer{.generation = 5,
                                          .id = 0xfeed,
                                          .rank = 300,
                                          .received = 5000,
                                          .taken = true,
                                          .refusal = "it leaves"}},
      {"missed", Missed{.id = id, .parameters = {300, 2}}},
      {"collective_void", CollectiveVoid{.number = 9}},
  };
}

std::string Pattern(std::size_t bytes) {
  std::string text(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 7 + i / 251);
  return text;
}

PayloadRef MakePayload(const std::string& content) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(content));
  return OwnedPayload::Make({bytes.begin(), bytes.end()});
}

std::string Content(const PayloadRef& payload) {
  std::string content;
  if (payload == nullptr) return content;
  for (const std::span<const std::byte>& piece : payload->pieces()) {
    content.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  return content;
}

grpc::ByteBuffer Cut(const std::string& bytes, const std::vector<std::size_t>& cuts) {
  std::vector<grpc::Slice> slices;
  std::size_t begin = 0;
  for (const std::size_t cut : cuts) {
    slices.emplace_back(bytes.data() + begin, cut - begin);
    begin = cut;
  }
  slices.emplace_back(bytes.data() + begin, bytes.size() - begin);
  return {slices.data(), slices.size()};
}

grpc::ByteBuffer CutEvery(const std::string& bytes, std::size_t piece_bytes) {
  std::vector<std::size_t> cuts;
  for (std::size_t cut = piece_bytes; cut < bytes.size(); cut += piece_bytes) cuts.push_back(cut);
  return Cut(bytes, cuts);
}

std::string Joined(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Dump(&slices).ok()) return bytes;
  for (const grpc::Slice& slice : slices) bytes.append(slice.begin(), slice.end());
  return bytes;
}

std::string EncodeWithProtobuf(const Header& header, const std::string& payload) {
  v1::Frame frame;
  *frame.mutable_header() = ToProto(header);
  frame.set_payload(payload);
  return frame.SerializeAsString();
}

}  // namespace gradwire::wire
