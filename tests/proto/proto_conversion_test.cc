#include "proto/wire/proto_conversion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "tests/proto/frame_samples.h"

namespace gradwire::wire {
namespace {

using testing::AllOf;
using testing::HasSubstr;

static_assert(static_cast<int>(DType::kFloat32) == v1::DATA_TYPE_FLOAT32);
static_assert(static_cast<int>(DType::kFloat64) == v1::DATA_TYPE_FLOAT64);
static_assert(static_cast<int>(DType::kFloat16) == v1::DATA_TYPE_FLOAT16);
static_assert(static_cast<int>(DType::kBFloat16) == v1::DATA_TYPE_BFLOAT16);
static_assert(static_cast<int>(ReduceOp::kSum) == v1::REDUCE_OP_SUM);
static_assert(static_cast<int>(ReduceOp::kMean) == v1::REDUCE_OP_MEAN);
static_assert(static_cast<int>(Verdict::kApply) == v1::STEP_VERDICT_APPLY);
static_assert(static_cast<int>(Verdict::kSkip) == v1::STEP_VERDICT_SKIP);
static_assert(static_cast<int>(CollectiveKind::kBarrier) == v1::COLLECTIVE_KIND_BARRIER);
static_assert(static_cast<int>(CollectiveKind::kBroadcast) == v1::COLLECTIVE_KIND_BROADCAST);

TEST(ConvertTest, EnumeratorsAreAsManyAsInTheProto) {
  for (int value = -2; value < 100; ++value) {
    EXPECT_EQ(IsDType(value), v1::DataType_IsValid(value) && value != v1::DATA_TYPE_UNSPECIFIED);
  }
  EXPECT_EQ(v1::ReduceOp_MAX, v1::REDUCE_OP_ORTHONORMALIZED_SUM);
  EXPECT_EQ(v1::StepVerdict_MAX, v1::STEP_VERDICT_SKIP);
  EXPECT_EQ(v1::CollectiveKind_MAX, v1::COLLECTIVE_KIND_BROADCAST);
}

TEST(ConvertTest, EveryKindThereAndBack) {
  for (const Sample& sample : AllSamples()) {
    const absl::StatusOr<Header> header = FromProto(ToProto(sample.header));
    ASSERT_TRUE(header.ok()) << sample.name << ": " << header.status();
    EXPECT_TRUE(*header == sample.header) << sample.name;
  }
}

TEST(ConvertTest, SamplesSetEveryField) {
  std::set<std::string> known;
  std::set<std::string> set;
  const std::function<void(const google::protobuf::Message&)> note =
      [&](const google::protobuf::Message& message) {
        const auto* reflection = message.GetReflection();
        for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
          const auto* field = message.GetDescriptor()->field(i);
          known.insert(field->full_name());
          if (field->is_repeated()) {
            if (reflection->FieldSize(message, field) > 0) set.insert(field->full_name());
          } else if (reflection->HasField(message, field)) {
            set.insert(field->full_name());
            if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) {
              note(reflection->GetMessage(message, field));
            }
          }
        }
      };
  for (const Sample& sample : AllSamples()) {
    const v1::Header header = ToProto(sample.header);
    const auto* field = header.GetReflection()->GetOneofFieldDescriptor(
        header, header.GetDescriptor()->oneof_decl(0));
    ASSERT_NE(field, nullptr);
    EXPECT_EQ(sample.name.rfind(field->name(), 0), 0U) << sample.name;
    note(header.GetReflection()->GetMessage(header, field));
  }
  EXPECT_EQ(known, set);
}

TEST(ConvertTest, AbsentDigestStaysAbsent) {
  Contribution contribution = SampleOf<Contribution>();
  contribution.digest.reset();
  const v1::Header header = ToProto(contribution);
  EXPECT_FALSE(header.contribution().has_digest());
  EXPECT_TRUE(*FromProto(header) == Header(contribution));
  contribution.digest = 0;
  EXPECT_TRUE(ToProto(contribution).contribution().has_digest());
}

// Each changes one field of a good header into one that is refused; the error names it.
struct Hostile {
  std::string field;
  Header header;
  std::function<void(v1::Header&)> change;
};

v1::RoundId* IdOf(v1::Header& header) {
  if (header.has_grant()) return header.mutable_grant()->mutable_id();
  if (header.has_ack()) return header.mutable_ack()->mutable_id();
  if (header.has_result()) return header.mutable_result()->mutable_id();
  if (header.has_restart()) return header.mutable_restart()->mutable_open(0);
  return header.mutable_contribution()->mutable_id();
}

std::vector<Hostile> HostileIds() {
  std::vector<Hostile> cases;
  const std::vector<Sample> samples = {{"grant", SampleOf<Grant>()},
                                       {"ack", SampleOf<Ack>()},
                                       {"result", SampleOf<Result>()},
                                       {"restart", SampleOf<Restart>()},
                                       {"contribution", SampleOf<Contribution>()}};
  for (const Sample& sample : samples) {
    cases.push_back(
        {sample.name + ".id.step", sample.header, [](v1::Header& h) { IdOf(h)->set_step(-1); }});
    cases.push_back({sample.name + ".id.bucket", sample.header,
                     [](v1::Header& h) { IdOf(h)->set_bucket(kMaxParameters); }});
    cases.push_back({sample.name + ".id.round", sample.header,
                     [](v1::Header& h) { IdOf(h)->set_round(kMaxRounds); }});
  }
  return cases;
}

v1::Segment* FirstSegment(v1::Header& header) {
  return header.mutable_announce()->mutable_rounds(0)->mutable_segments(0);
}

// One matrix that fills the first segment.
void SetMatrix(v1::Header& header, std::uint64_t rows, std::uint64_t cols) {
  v1::Segment& segment = *FirstSegment(header);
  segment.set_op(v1::REDUCE_OP_ORTHONORMALIZED_SUM);
  segment.set_numel(rows * cols);
  segment.clear_matrices();
  v1::MatrixShape& matrix = *segment.add_matrices();
  matrix.set_rows(rows);
  matrix.set_cols(cols);
}

std::vector<Hostile> HostileAnnounces() {
  const Header announce = SampleOf<Announce>();
  const auto plan = [](v1::Header& h) { return h.mutable_announce()->mutable_rounds(1); };
  return {
      {"announce.step", announce, [](v1::Header& h) { h.mutable_announce()->set_step(-41); }},
      {"announce.parameters", announce,
       [](v1::Header& h) { h.mutable_announce()->clear_parameters(); }},
      {"announce.parameters", announce,
       [](v1::Header& h) { h.mutable_announce()->set_parameters(1, kMaxParameters); }},
      {"announce.parameters", announce,
       [](v1::Header& h) {
         h.mutable_announce()->mutable_parameters()->Resize(kMaxParameters + 1, 0);
       }},
      {"announce.rounds", announce,
       [](v1::Header& h) {
         while (h.announce().rounds_size() <= static_cast<int>(kMaxRounds))
           h.mutable_announce()->add_rounds();
       }},
      {"announce.rounds.segments", announce,
       [plan](v1::Header& h) {
         while (plan(h)->segments_size() <= static_cast<int>(kMaxSegments))
           *plan(h)->add_segments() = plan(h)->segments(0);
       }},
      {"announce.rounds.segments.dtype", announce,
       [](v1::Header& h) { FirstSegment(h)->set_dtype(v1::DATA_TYPE_UNSPECIFIED); }},
      {"announce.rounds.segments.dtype", announce,
       [](v1::Header& h) { FirstSegment(h)->set_dtype(static_cast<v1::DataType>(5)); }},
      {"announce.rounds.segments.dtype", announce,
       [](v1::Header& h) { FirstSegment(h)->set_dtype(static_cast<v1::DataType>(257)); }},
      {"announce.rounds.segments.dtype", announce,
       [](v1::Header& h) { FirstSegment(h)->set_dtype(static_cast<v1::DataType>(-1)); }},
      {"announce.rounds.segments.op", announce,
       [](v1::Header& h) { FirstSegment(h)->set_op(v1::REDUCE_OP_UNSPECIFIED); }},
      {"announce.rounds.segments.op", announce,
       [](v1::Header& h) { FirstSegment(h)->set_op(static_cast<v1::ReduceOp>(258)); }},
      {"announce.rounds.segments.numel", announce,
       [](v1::Header& h) { FirstSegment(h)->set_numel(kMaxNumel + 1); }},
      {"announce.rounds.segments.numel", announce,
       [](v1::Header& h) { FirstSegment(h)->set_numel(~std::uint64_t{0}); }},
      {"announce.rounds.segments.matrices.rows", announce,
       [](v1::Header& h) { SetMatrix(h, 0, 1); }},
      {"announce.rounds.segments.matrices.rows", announce,
       [](v1::Header& h) { SetMatrix(h, kMaxMatrixSide + 1, 1); }},
      {"announce.rounds.segments.matrices.cols", announce,
       [](v1::Header& h) { SetMatrix(h, 4, 5); }},
      {"announce.rounds.segments.matrices.cols", announce,
       [](v1::Header& h) { SetMatrix(h, 4096, kMaxMatrixCols + 1); }},
      {"announce.the matrices' numel", announce,
       [](v1::Header& h) {
         SetMatrix(h, 5, 2);
         FirstSegment(h)->set_numel(11);
       }},
      {"announce.the matrices' numel", announce,
       [](v1::Header& h) {
         SetMatrix(h, 5, 2);
         FirstSegment(h)->set_op(v1::REDUCE_OP_SUM);
       }},
      {"announce.rounds.segments.epsilon", announce,
       [](v1::Header& h) { FirstSegment(h)->set_epsilon(-1e-9); }},
      {"announce.rounds.segments.epsilon", announce,
       [](v1::Header& h) {
         FirstSegment(h)->set_epsilon(std::numeric_limits<double>::quiet_NaN());
       }},
      {"announce.the round's numel", announce,
       [](v1::Header& h) { FirstSegment(h)->set_numel(kMaxNumel); }},
  };
}

std::vector<Hostile> HostileOthers() {
  constexpr int too_large = static_cast<int>(kMaxRank) + 1;
  return {
      {"hello.token", SampleOf<Hello>(), [](v1::Header& h) { h.mutable_hello()->clear_token(); }},
      {"hello.token", SampleOf<Hello>(),
       [](v1::Header& h) { h.mutable_hello()->set_token(std::string(kMaxTokenBytes + 1, 't')); }},
      {"hello.step", SampleOf<Hello>(),
       [](v1::Header& h) {
         h.mutable_hello()->set_step(std::numeric_limits<std::int64_t>::min());
       }},
      {"contribution.rank", SampleOf<Contribution>(),
       [](v1::Header& h) { h.mutable_contribution()->set_rank(-1); }},
      {"contribution.rank", SampleOf<Contribution>(),
       [](v1::Header& h) { h.mutable_contribution()->set_rank(too_large); }},
      {"end_step.step", SampleOf<EndStep>(),
       [](v1::Header& h) { h.mutable_end_step()->set_step(-1); }},
      {"draw_plan.piece", SampleOf<DrawPlan>(),
       [](v1::Header& h) { h.mutable_draw_plan()->set_piece(kMaxParameters); }},
      {"draw_plan.buckets", SampleOf<DrawPlan>(),
       [](v1::Header& h) { h.mutable_draw_plan()->clear_buckets(); }},
      {"draw_plan.buckets", SampleOf<DrawPlan>(),
       [](v1::Header& h) {
         while (h.draw_plan().buckets_size() <= static_cast<int>(kMaxDrawPlanPiece))
           h.mutable_draw_plan()->add_buckets()->add_parameters(0);
       }},
      {"draw_plan.buckets.parameters", SampleOf<DrawPlan>(),
       [](v1::Header& h) { h.mutable_draw_plan()->add_buckets(); }},
      {"draw_plan.buckets.parameters", SampleOf<DrawPlan>(),
       [](v1::Header& h) {
         v1::DrawBucket& first = *h.mutable_draw_plan()->mutable_buckets(0);
         while (first.parameters_size() < static_cast<int>(kMaxDrawPlanPiece))
           first.add_parameters(0);
       }},
      {"draw_plan.buckets.parameters", SampleOf<DrawPlan>(),
       [](v1::Header& h) {
         h.mutable_draw_plan()->mutable_buckets(0)->set_parameters(0, kMaxParameters);
       }},
      {"enter.kind", SampleOf<Enter>(),
       [](v1::Header& h) { h.mutable_enter()->set_kind(v1::COLLECTIVE_KIND_UNSPECIFIED); }},
      {"enter.kind", SampleOf<Enter>(),
       [](v1::Header& h) { h.mutable_enter()->set_kind(static_cast<v1::CollectiveKind>(257)); }},
      {"enter.root", SampleOf<Enter>(), [](v1::Header& h) { h.mutable_enter()->set_root(-1); }},
      {"enter.root", SampleOf<Enter>(),
       [](v1::Header& h) { h.mutable_enter()->set_root(too_large); }},
      {"enter.bytes", SampleOf<Enter>(),
       [](v1::Header& h) { h.mutable_enter()->set_bytes(kMaxManifestBytes + 1); }},
      {"welcome.step", SampleOf<Welcome>(),
       [](v1::Header& h) { h.mutable_welcome()->set_step(-1); }},
      {"step_done.step", SampleOf<StepDone>(),
       [](v1::Header& h) { h.mutable_step_done()->set_step(-1); }},
      {"step_done.verdict", SampleOf<StepDone>(),
       [](v1::Header& h) { h.mutable_step_done()->set_verdict(v1::STEP_VERDICT_UNSPECIFIED); }},
      {"step_done.verdict", SampleOf<StepDone>(),
       [](v1::Header& h) {
         h.mutable_step_done()->set_verdict(static_cast<v1::StepVerdict>(257));
       }},
      {"restart.step", SampleOf<Restart>(),
       [](v1::Header& h) { h.mutable_restart()->set_step(-1); }},
      {"restart.open", SampleOf<Restart>(),
       [](v1::Header& h) {
         while (h.restart().open_size() <= static_cast<int>(kMaxOpenRounds))
           h.mutable_restart()->add_open();
       }},
      {"failure.code", SampleOf<Failure>(),
       [](v1::Header& h) { h.mutable_failure()->set_code(0); }},
      {"failure.code", SampleOf<Failure>(),
       [](v1::Header& h) { h.mutable_failure()->set_code(17); }},
      {"failure.blamed_rank", SampleOf<Failure>(),
       [](v1::Header& h) { h.mutable_failure()->set_blamed_rank(-2); }},
      {"failure.blamed_rank", SampleOf<Failure>(),
       [](v1::Header& h) { h.mutable_failure()->set_blamed_rank(too_large); }},
  };
}

std::vector<Hostile> HostileGroups() {
  Welcome grouped;
  grouped.group = NodeGroup{.ranks = {1, 3}, .shares = 2, .groups = 2, .group = 1};
  const auto change = [](void (*of_group)(v1::NodeGroup&)) {
    return [of_group](v1::Header& h) { of_group(*h.mutable_welcome()->mutable_node_group()); };
  };
  return {
      {"announce.share", SampleOf<Announce>(),
       [](v1::Header& h) { h.mutable_announce()->set_share(4096); }},
      {"group_bucket.step", SampleOf<GroupBucket>(),
       [](v1::Header& h) { h.mutable_group_bucket()->set_step(-1); }},
      {"group_bucket.parameters", SampleOf<GroupBucket>(),
       [](v1::Header& h) { h.mutable_group_bucket()->clear_parameters(); }},
      {"group_bucket.parameters", SampleOf<GroupBucket>(),
       [](v1::Header& h) { h.mutable_group_bucket()->set_parameters(1, kMaxParameters); }},
      {"group_id.id's bytes", SampleOf<GroupId>(),
       [](v1::Header& h) { h.mutable_group_id()->clear_id(); }},
      {"group_id.id's bytes", SampleOf<GroupId>(),
       [](v1::Header& h) { h.mutable_group_id()->set_id(std::string(kMaxGroupIdBytes + 1, 'x')); }},
      {"group_order.step", SampleOf<GroupOrder>(),
       [](v1::Header& h) { h.mutable_group_order()->set_step(-1); }},
      {"group_order.bucket", SampleOf<GroupOrder>(),
       [](v1::Header& h) { h.mutable_group_order()->set_bucket(kMaxParameters); }},
      {"welcome.node_group.ranks", grouped, change([](v1::NodeGroup& g) { g.clear_ranks(); })},
      {"welcome.node_group.ranks", grouped, change([](v1::NodeGroup& g) { g.set_ranks(0, -1); })},
      {"welcome.node_group.ranks", grouped,
       change([](v1::NodeGroup& g) { g.set_ranks(1, 1'000'000); })},
      {"node_group.ranks", grouped, change([](v1::NodeGroup& g) { g.set_ranks(0, 3); })},
      {"welcome.node_group.shares", grouped, change([](v1::NodeGroup& g) { g.set_shares(0); })},
      {"welcome.node_group.shares", grouped, change([](v1::NodeGroup& g) { g.set_shares(4097); })},
      {"welcome.node_group.groups", grouped, change([](v1::NodeGroup& g) { g.set_groups(0); })},
      {"welcome.node_group.groups", grouped, change([](v1::NodeGroup& g) { g.set_groups(4097); })},
      {"welcome.node_group.group", grouped, change([](v1::NodeGroup& g) { g.set_group(2); })},
  };
}

void ExpectRefused(const std::vector<Hostile>& cases) {
  for (const Hostile& hostile : cases) {
    v1::Header header = ToProto(hostile.header);
    hostile.change(header);
    const absl::Status status = FromProto(header).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << hostile.field;
    EXPECT_THAT(std::string(status.message()),
                AllOf(testing::StartsWith(hostile.field), HasSubstr("; allowed: ")));
  }
}

TEST(ConvertTest, HostileIdsAreRefused) { ExpectRefused(HostileIds()); }
TEST(ConvertTest, HostileAnnouncesAreRefused) { ExpectRefused(HostileAnnounces()); }
TEST(ConvertTest, OtherHostileValuesAreRefused) { ExpectRefused(HostileOthers()); }
TEST(ConvertTest, HostileNodeGroupsAreRefused) { ExpectRefused(HostileGroups()); }

TEST(ConvertTest, LargestValuesPass) {
  const RoundId id{.step = std::numeric_limits<std::int64_t>::max(),
                   .attempt = std::numeric_limits<std::uint32_t>::max(),
                   .bucket = static_cast<std::uint32_t>(kMaxParameters - 1),
                   .round = static_cast<std::uint32_t>(kMaxRounds - 1)};
  const std::vector<Header> headers = {
      Grant{id},
      Contribution{.id = id,
                   .generation = ~std::uint64_t{0},
                   .rank = static_cast<int>(kMaxRank),
                   .chunk = ~std::uint32_t{0},
                   .received = ~std::uint32_t{0},
                   .digest = ~std::uint64_t{0}},
      Announce{.step = 0,
               .generation = 0,
               .parameters = {static_cast<std::uint32_t>(kMaxParameters - 1)},
               .rounds = {RoundPlan{{{DType::kFloat64, std::size_t{kMaxNumel}, ReduceOp::kSum}}}}},
      Announce{.step = 0,
               .generation = 0,
               .parameters = {0},
               .rounds = {RoundPlan{{{.dtype = DType::kFloat16,
                                      .numel = 35,
                                      .op = ReduceOp::kOrthonormalizedSum,
                                      .matrices = {{5, 2}, {5, 5}},
                                      .epsilon = 1e-8}}}}},
      SharedState{.id = id, .offset = kMaxManifestBytes, .bytes = kMaxManifestBytes},
      Failure{.code = 16, .message = "", .blamed_rank = -1},
  };
  for (const Header& header : headers) {
    const absl::StatusOr<Header> back = FromProto(ToProto(header));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_TRUE(*back == header);
  }
}

TEST(ConvertTest, LongFailureMessagesKeepTheirCode) {
  std::string message(kMaxMessageBytes, 'x');
  const v1::Header header = ToProto(Failure{.code = 13, .message = message + " [GW301]"});
  EXPECT_EQ(header.failure().message(), message.substr(0, kMaxMessageBytes - 8) + " [GW301]");
}

TEST(ConvertTest, LongFailureMessagesAreCutBetweenCharacters) {
  const std::string a_umlaut = "\xc3\xa4";
  std::string message = "x";
  while (message.size() <= kMaxMessageBytes + 10) message += a_umlaut;
  const v1::Header header = ToProto(Failure{.code = 13, .message = message});
  EXPECT_EQ(header.failure().message(), message.substr(0, kMaxMessageBytes - 1));
  v1::Header back;
  EXPECT_TRUE(back.ParseFromString(header.SerializeAsString()));
}

}  // namespace
}  // namespace gradwire::wire
