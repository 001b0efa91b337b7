// A replay agrees with a recording that is right, and names the place of what is not. Damaged files
// are errors that name the record.
#include "server/record/replay.h"

#include <google/protobuf/stubs/logging.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/cpu/kernels.h"
#include "server/record/comparison.h"
#include "tests/server/record/step_builder.h"

namespace gradwire::server {
namespace {

using ::gradwire::testing::Draws;
using ::gradwire::testing::RecordBytes;
using ::gradwire::testing::StepBuilder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using What = ReplayDifference::What;

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

void Flip(std::string& bytes, std::size_t bit) {
  bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
}

absl::StatusOr<ReplayReport> ReplayOf(const std::string& file) {
  MemorySource source(BytesOf(file));
  return Replay(source);
}

absl::StatusOr<StepContents> ContentsOf(const std::string& file) {
  MemorySource source(BytesOf(file));
  return ReadContents(source);
}

// An answer in a test that needs one.
ReplayReport Replayed(const std::string& file) {
  absl::StatusOr<ReplayReport> report = ReplayOf(file);
  EXPECT_TRUE(report.ok()) << report.status();
  return report.ok() ? *std::move(report) : ReplayReport();
}

struct Case {
  const char* name;
  StepBuilder::Options options;
};

std::string NameOf(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

class ReplayOfHook : public ::testing::TestWithParam<Case> {};

constexpr char kPowerSgd[] =
    "power_sgd,start_powerSGD_iter=0,matrix_approximation_rank=2,min_compression_rate=1";
constexpr char kBatched[] =
    "batched_power_sgd,start_powerSGD_iter=0,matrix_approximation_rank=1,"
    "orthogonalization_epsilon=1e-8";

INSTANTIATE_TEST_SUITE_P(
    Hooks, ReplayOfHook,
    ::testing::Values(Case{"no", {}}, Case{"float64", {.dtype = DType::kFloat64}},
                      Case{"half", {.dtype = DType::kFloat16}}, Case{"one", {.members = 1}},
                      Case{"many", {.members = 70}}, Case{"fp16", {.hook = "fp16"}},
                      Case{"bf16", {.hook = "bf16"}},
                      Case{"raw", {.members = 2, .raw = {true, false}}},
                      Case{"raw_bf16", {.hook = "bf16", .members = 2, .raw = {true, true}}},
                      Case{"power_sgd", {.hook = kPowerSgd}},
                      Case{"power_sgd_64",
                           {.hook = kPowerSgd, .dtype = DType::kFloat64, .chunk_bytes = 64}},
                      Case{"batched", {.hook = kBatched}},
                      Case{"slice", {.slice = {.part = 1, .parts = 2}, .parameters = {4000, 100}}}),
    NameOf);

TEST_P(ReplayOfHook, IsAsRecorded) {
  StepBuilder builder(GetParam().options);
  ASSERT_FALSE(builder.reductions().empty());
  const ReplayReport report = Replayed(builder.File());
  EXPECT_EQ(report.differences, 0u);
  EXPECT_EQ(report.digest, builder.end().own_digest());
  EXPECT_EQ(report.members, static_cast<std::size_t>(GetParam().options.members));
  EXPECT_EQ(report.buckets, 1u);
  EXPECT_EQ(report.chunks, static_cast<std::size_t>(builder.end().results_size()));
  EXPECT_EQ(report.step.session, "digits");
}

// Another machine may have other instructions.
TEST_P(ReplayOfHook, IsAsRecordedWithTheInstructionsOfOtherProcessors) {
  const std::string file = StepBuilder(GetParam().options).File();
  for (const cpu::Target& target : cpu::SupportedTargets()) {
    cpu::SetTargetForTesting(target.id);
    EXPECT_EQ(Replayed(file).differences, 0u) << target.name;
  }
  cpu::SetTargetForTesting(0);
}

TEST_P(ReplayOfHook, ABitOfAContributionHasItsPlace) {
  StepBuilder builder(GetParam().options);
  const std::size_t last = builder.reductions().size() - 1;
  // The highest bit but one of an exponent, whatever the dtype: no rounding hides it.
  std::string& payload = builder.payload(last);
  Flip(payload, 8 * payload.size() - 2);
  const ReplayReport report = Replayed(builder.File());
  ASSERT_GE(report.differences, 2u);  // the chunk and the step
  const ReplayDifference& first = report.listed.front();
  EXPECT_EQ(first.what, What::kResult);
  EXPECT_EQ(first.id.round, builder.reductions()[last].id().round());
  EXPECT_GE(first.id.chunk, builder.reductions()[last].chunk());
  EXPECT_GT(first.range.numel(), 0u);
  EXPECT_NE(first.recorded, first.computed);
  EXPECT_FALSE(first.wrong.has_value());  // the sum is right, for what the file has
  EXPECT_EQ(report.listed.back().what, What::kStepDigest);
}

TEST_P(ReplayOfHook, AResultThatIsRecordedWrongHasItsPlace) {
  StepBuilder builder(GetParam().options);
  const int at = builder.end().results_size() / 2;
  v1::RecordedResult& result = *builder.end().mutable_results(at);
  result.set_digest(result.digest() ^ 1);
  const ReplayReport report = Replayed(builder.File());
  ASSERT_EQ(report.differences, 1u);
  const ReplayDifference& only = report.listed.front();
  EXPECT_EQ(only.what, What::kResult);
  EXPECT_EQ(only.id, (ResultId{0, result.round(), result.chunk()}));
  EXPECT_EQ(only.recorded, result.digest());
  EXPECT_EQ(only.computed, result.digest() ^ 1);
}

TEST(ReplayTest, NamesWhatOfTheStepIsWrong) {
  const auto whats = [](const std::function<void(StepBuilder&)>& change) {
    StepBuilder builder({});
    change(builder);
    std::vector<What> all;
    for (const ReplayDifference& one : Replayed(builder.File()).listed) all.push_back(one.what);
    return all;
  };
  EXPECT_THAT(whats([](StepBuilder& b) { b.end().set_own_digest(1); }),
              ElementsAre(What::kStepDigest, What::kSharedDigest));
  EXPECT_THAT(whats([](StepBuilder& b) { b.end().set_chain(1); }), ElementsAre(What::kChain));
  EXPECT_THAT(whats([](StepBuilder& b) { b.step().set_chain_before(0); }),
              ElementsAre(What::kChain));
  EXPECT_THAT(whats([](StepBuilder& b) { b.end().mutable_results()->RemoveLast(); }),
              ElementsAre(What::kNoResult));
  EXPECT_THAT(whats([](StepBuilder& b) { *b.end().add_results() = b.end().results(0); }),
              ElementsAre(What::kNoSum));
  EXPECT_THAT(whats([](StepBuilder& b) { b.reductions().pop_back(); }),
              ElementsAre(What::kNoSum, What::kStepDigest));
}

TEST(ReplayTest, AnotherShardsVerdictMaySkipAFiniteStepButNoneAppliesNaN) {
  StepBuilder::Options nan{.number = [](int rank, std::size_t element) {
    return rank == 1 && element == 3 ? std::nan("") : 1.0;
  }};
  StepBuilder builder(nan);
  EXPECT_EQ(builder.end().verdict(), v1::STEP_VERDICT_SKIP);
  EXPECT_EQ(Replayed(builder.File()).differences, 0u);
  builder.end().set_verdict(v1::STEP_VERDICT_APPLY);
  const ReplayReport report = Replayed(builder.File());
  ASSERT_FALSE(report.listed.empty());
  EXPECT_EQ(report.listed.back().what, What::kVerdict);
}

// Where members are asked before the step is concluded, they agree on the digests of all shards.
TEST(ReplayTest, TheDigestThatMembersAgreedOnFollowsFromTheResults) {
  StepBuilder builder({});
  const std::uint64_t agreed = 0x1234;
  builder.end().set_digest(agreed);
  const ReplayReport report = Replayed(builder.File());
  ASSERT_EQ(report.listed.size(), 2u);
  EXPECT_EQ(report.listed[0].what, What::kSharedDigest);
  builder.end().set_digest(report.listed[0].computed);
  const ReplayReport again = Replayed(builder.File());
  ASSERT_EQ(again.listed.size(), 1u);
  EXPECT_EQ(again.listed[0].what, What::kChain);
}

TEST(ReplayTest, ListsTheFirstDifferencesAndCountsAll) {
  StepBuilder builder({.chunk_bytes = 64, .parameters = {4096}});
  for (v1::RecordedResult& result : *builder.end().mutable_results()) result.set_digest(7);
  const ReplayReport report = Replayed(builder.File());
  EXPECT_EQ(report.differences, 4096u * 4 / 64);
  EXPECT_EQ(report.listed.size(), ReplayReport::kMostListed);
}

// ---- Damage

class DamagedFile : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(
    Hooks, DamagedFile,
    ::testing::Values(Case{"no", {.members = 2, .raw = {true, false}, .parameters = {25, 3}}},
                      Case{"power_sgd", {.hook = kPowerSgd, .members = 2, .parameters = {36, 3}}}),
    NameOf);

TEST_P(DamagedFile, EachTruncationIsAnError) {
  const std::string file = StepBuilder(GetParam().options).File();
  for (std::size_t bytes = 0; bytes < file.size(); ++bytes) {
    const auto report = ReplayOf(file.substr(0, bytes));
    ASSERT_FALSE(report.ok()) << bytes << " of " << file.size();
    EXPECT_THAT(report.status().message(),
                ::testing::AnyOf(HasSubstr("is not a recording"), HasSubstr("record "),
                                 HasSubstr("the file is not complete")));
  }
}

TEST_P(DamagedFile, EachBitFlipIsAnError) {
  std::string file = StepBuilder(GetParam().options).File();
  for (std::size_t bit = 0; bit < 8 * file.size(); ++bit) {
    Flip(file, bit);
    ASSERT_FALSE(ReplayOf(file).ok()) << "bit " << bit;
    Flip(file, bit);
  }
  EXPECT_TRUE(ReplayOf(file).ok());
}

// Checksums that fit, so that what is behind them is reached.
TEST_P(DamagedFile, HeadsWithBitsThatFlippedDoNoHarm) {
  StepBuilder builder(GetParam().options);
  const google::protobuf::LogSilencer silencer;
  const std::string original = builder.File();
  Draws draws(3);
  for (int i = 0; i < 20'000; ++i) {
    MemorySource records(BytesOf(original));
    ASSERT_TRUE(ReadMagic(records).ok());
    std::string changed = kRecordMagic;
    while (true) {
      auto record = ReadRecord(records);
      ASSERT_TRUE(record.ok());
      if (!record->has_value()) break;
      std::string head = (*record)->head;
      if (draws.Next() % 3 == 0 && !head.empty()) {
        Flip(head, draws.Next() % (8 * head.size()));
      }
      const auto& payload = (*record)->payload;
      changed +=
          RecordBytes((*record)->kind, head,
                      std::string(reinterpret_cast<const char*>(payload.data()), payload.size()));
    }
    static_cast<void>(ReplayOf(changed));
    static_cast<void>(ContentsOf(changed));
  }
}

std::string WhyNot(const std::function<void(StepBuilder&)>& change,
                   const StepBuilder::Options& options = {}) {
  StepBuilder builder(options);
  change(builder);
  const auto report = ReplayOf(builder.File());
  return report.ok() ? "ok" : std::string(report.status().message());
}

TEST(RecordedFields, ThatAreWrongAreNamed) {
  EXPECT_THAT(WhyNot([](auto& b) { b.step().set_version(2); }),
              HasSubstr("record 1 (step): version: 2; allowed: 1"));
  EXPECT_THAT(WhyNot([](auto& b) { b.step().set_world_size(0); }), HasSubstr("world_size: 0"));
  EXPECT_THAT(WhyNot([](auto& b) { b.step().set_chunk_bytes(0); }), HasSubstr("chunk_bytes: 0"));
  EXPECT_THAT(WhyNot([](auto& b) { b.step().set_chunk_bytes(100); }), HasSubstr("multiples of 8"));
  EXPECT_THAT(WhyNot([](auto& b) { b.step().set_shard(1); }), HasSubstr("shard: 1"));
  EXPECT_THAT(WhyNot([](auto& b) { b.bucket().mutable_announce()->set_parameters(0, 9); }),
              HasSubstr("record 3 (bucket): parameters: 9"));
  EXPECT_THAT(WhyNot([](auto& b) { b.bucket().set_parts(0); }), HasSubstr("parts: 0"));
  EXPECT_THAT(WhyNot([](auto& b) { b.reductions()[0].mutable_id()->set_bucket(4); }),
              HasSubstr("record 4 (reduction): id.bucket: 4"));
  EXPECT_THAT(WhyNot([](auto& b) { b.reductions()[0].mutable_id()->set_round(1); }),
              HasSubstr("id.round: 1"));
  EXPECT_THAT(WhyNot([](auto& b) { b.reductions()[0].mutable_id()->set_step(1); }),
              HasSubstr("id.step: 1; allowed: 41"));
  EXPECT_THAT(WhyNot([](auto& b) { b.reductions()[0].set_chunk(1000); }), HasSubstr("chunk: 1000"));
  EXPECT_THAT(WhyNot([](auto& b) { b.reductions()[1].set_chunk(0); }), HasSubstr("comes twice"));
  EXPECT_THAT(WhyNot([](auto& b) { b.reductions()[0].set_weight(0); }), HasSubstr("weight: 0"));
  EXPECT_THAT(WhyNot([](auto& b) { b.reductions()[0].set_ranks(1, 0); }), HasSubstr("ranks: 0"));
  EXPECT_THAT(WhyNot([](auto& b) { b.reductions()[0].clear_ranks(); }), HasSubstr("ranks: none"));
  EXPECT_THAT(WhyNot([](auto& b) { b.payload(0).pop_back(); }),
              HasSubstr("the payload has 255 bytes left for rank 2, whose contribution has 256"));
  EXPECT_THAT(WhyNot([](auto& b) { b.payload(0) += "x"; }), HasSubstr("1 bytes more"));
  EXPECT_THAT(WhyNot([](auto& b) { b.end().set_verdict(v1::STEP_VERDICT_UNSPECIFIED); }),
              HasSubstr("(end): verdict: 0"));
  const StepBuilder::Options raw{.members = 2, .raw = {true, false}};
  EXPECT_THAT(WhyNot([](auto& b) { b.reductions()[0].mutable_raw()->RemoveLast(); }, raw),
              HasSubstr("raw: 1 entries; allowed: 2, as many as ranks"));
  EXPECT_THAT(WhyNot([](auto& b) { b.reductions()[0].set_raw_dtype(v1::DataType(9)); }, raw),
              HasSubstr("raw_dtype: 9"));
  EXPECT_THAT(WhyNot([](auto& b) { b.reductions()[0].set_raw_divisor(0); }, raw),
              HasSubstr("raw_divisor: 0"));
}

TEST(RecordedFields, SizesThatTheFileDoesNotHaveTakeNoMemory) {
  std::string file = kRecordMagic;
  file += RecordBytes(RecordKind::kStep, "x");
  std::memset(file.data() + kRecordMagicBytes + 8, 0x7F, 8);  // the payload's
  EXPECT_THAT(ReplayOf(file).status().message(),
              AllOf(HasSubstr("record 1: says that it has"), HasSubstr("the file has 1 left")));
}

TEST(RecordedFields, RecordsHaveAnOrder) {
  const std::string file = StepBuilder({}).File();
  const std::string end = RecordBytes(RecordKind::kEnd, "");
  EXPECT_THAT(ReplayOf(kRecordMagic + end).status().message(),
              HasSubstr("record 1 (end): is a end; allowed here: step"));
  EXPECT_THAT(ReplayOf(file + end).status().message(), HasSubstr("follows the end"));
  EXPECT_THAT(ReplayOf("GWRECORE").status().message(), HasSubstr("is not a recording"));
}

// ---- fp64

RecordedReduction OneSum(DType dtype, const std::vector<std::span<const std::byte>>& inputs,
                         std::size_t numel) {
  RecordedReduction reduction;
  reduction.segment = {.dtype = dtype, .numel = numel, .op = ReduceOp::kSum};
  reduction.weight = static_cast<double>(inputs.size());
  reduction.inputs = inputs;
  return reduction;
}

TEST(ExactSum, RefutesWhatIsOffByTwoUnits) {
  Draws draws(9);
  std::vector<float> a(1000);
  std::vector<float> b(a.size());
  std::vector<float> sum(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<float>(draws.Number());
    b[i] = static_cast<float>(draws.Number() * 1e-3);
    sum[i] = a[i] + b[i];
  }
  const auto reduction =
      OneSum(DType::kFloat32, {std::as_bytes(std::span(a)), std::as_bytes(std::span(b))}, a.size());
  EXPECT_FALSE(FindWrongElement(reduction, std::as_bytes(std::span(sum))).has_value());
  sum[500] = std::nextafter(std::nextafter(sum[500], 2.0F), 2.0F);
  const auto wrong = FindWrongElement(reduction, std::as_bytes(std::span(sum)));
  ASSERT_TRUE(wrong.has_value());
  EXPECT_EQ(wrong->element, 500u);
  EXPECT_EQ(wrong->result, sum[500]);
  sum[500] = std::nanf("");
  EXPECT_TRUE(FindWrongElement(reduction, std::as_bytes(std::span(sum))).has_value());
}

TEST(ExactSum, TakesInfinityOnlyWhereItMayBe) {
  const std::vector<float> large = {3e38F, 1, INFINITY, INFINITY};
  const std::vector<float> more = {3e38F, 1, 1, -INFINITY};
  const auto reduction =
      OneSum(DType::kFloat32, {std::as_bytes(std::span(large)), std::as_bytes(std::span(more))}, 4);
  std::vector<float> sum = {INFINITY, 2, INFINITY, std::nanf("")};
  EXPECT_FALSE(FindWrongElement(reduction, std::as_bytes(std::span(sum))).has_value());
  sum[1] = INFINITY;
  EXPECT_EQ(FindWrongElement(reduction, std::as_bytes(std::span(sum)))->element, 1u);
  sum = {INFINITY, 2, 5, std::nanf("")};
  EXPECT_EQ(FindWrongElement(reduction, std::as_bytes(std::span(sum)))->element, 2u);
}

TEST(ExactSum, RefutesColumnsThatAreNotOrthonormal) {
  std::vector<double> matrix = {1, 1, 0, 1, 0, 0};  // 3 x 2
  RecordedReduction reduction = OneSum(DType::kFloat64, {std::as_bytes(std::span(matrix))}, 6);
  reduction.segment.op = ReduceOp::kOrthonormalizedSum;
  reduction.segment.matrices = {{.rows = 3, .cols = 2}};
  std::vector<double> result = {1, 0, 0, 1, 0, 0};
  EXPECT_FALSE(FindWrongElement(reduction, std::as_bytes(std::span(result))).has_value());
  result[3] = -1;
  EXPECT_EQ(FindWrongElement(reduction, std::as_bytes(std::span(result)))->element, 3u);
}

// ---- Comparison

std::optional<StepDifference> DifferenceOf(const std::string& ours, const std::string& theirs) {
  const auto a = ContentsOf(ours);
  const auto b = ContentsOf(theirs);
  EXPECT_TRUE(a.ok() && b.ok());
  const auto difference = Compare(*a, *b);
  EXPECT_TRUE(difference.ok()) << difference.status();
  return *difference;
}

TEST(ComparisonTest, NamesTheRankWhoseContributionDiffers) {
  StepBuilder ours({});
  EXPECT_FALSE(DifferenceOf(ours.File(), StepBuilder({}).File()).has_value());
  StepBuilder theirs({});
  std::string& payload = theirs.payload(2);
  const std::size_t each = payload.size() / 3;
  Flip(payload, 8 * (each + 5));
  const auto found = DifferenceOf(ours.File(), theirs.File());
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->what, StepDifference::What::kContribution);
  EXPECT_EQ(found->rank, 1);
  EXPECT_EQ(found->id, (ResultId{0, 0, 2}));
  EXPECT_EQ(found->bucket, "[p0, p1, p2]");
}

TEST(ComparisonTest, SameContributionsAnotherResult) {
  StepBuilder theirs({});
  theirs.end().mutable_results(1)->set_digest(5);
  const auto found = DifferenceOf(StepBuilder({}).File(), theirs.File());
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->what, StepDifference::What::kResult);
  EXPECT_EQ(found->id.chunk, 1u);
}

// What members send in the second round follows from the first one's results.
TEST(ComparisonTest, AResultComesBeforeTheContributionsThatFollowFromIt) {
  const StepBuilder::Options options{.hook = kPowerSgd};
  StepBuilder theirs(options);
  theirs.end().mutable_results(0)->set_digest(5);
  for (std::size_t i = 0; i < theirs.reductions().size(); ++i) {
    if (theirs.reductions()[i].id().round() > 0) Flip(theirs.payload(i), 0);
  }
  const auto found = DifferenceOf(StepBuilder(options).File(), theirs.File());
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->what, StepDifference::What::kResult);
  EXPECT_EQ(found->id.round, 0u);
}

// One member shared its memory in one run, and none in the other.
TEST(ComparisonTest, HowAMemberSentItMakesNoDifference) {
  const auto number = [](int rank, std::size_t element) {
    return static_cast<double>(rank + 1) / static_cast<double>(element + 1);
  };
  StepBuilder raw({.members = 2, .raw = {true, true}, .number = number});
  StepBuilder encoded({.members = 2, .raw = {false, true}, .number = [&](int rank, std::size_t i) {
                         const auto gradient = static_cast<float>(number(rank, i));
                         return rank == 0 ? static_cast<double>(gradient / 2) : number(rank, i);
                       }});
  EXPECT_FALSE(DifferenceOf(raw.File(), encoded.File()).has_value());
}

TEST(ComparisonTest, WhatIsCutInAnotherWayIsNotCompared) {
  const auto ours = ContentsOf(StepBuilder({}).File());
  const auto theirs = ContentsOf(StepBuilder({.chunk_bytes = 512}).File());
  EXPECT_THAT(Compare(*ours, *theirs).status().message(),
              HasSubstr("chunk_bytes is 256 in the one and 512 in the other"));
}

}  // namespace
}  // namespace gradwire::server
