// Export and import of the hook's state, as the core sees them.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/core/step.h"
#include "tests/server/core/session_harness.h"

namespace gradwire::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

SessionOptions Compressed() {
  SessionOptions options = SmallOptions();
  options.spec = *HookSpec::Parse("power_sgd,start_powerSGD_iter=3,matrix_approximation_rank=1");
  return options;
}

absl::Status Import(SessionHarness& harness, const HookState& state) {
  Effects effects;
  absl::Status status = harness.session.CheckImport();
  if (status.ok()) {
    const auto import = harness.session.ReadState(state);
    status = import.ok() ? harness.session.Install(**import, effects) : import.status();
  }
  for (const Effect& effect : effects) {
    const auto* fan_out = std::get_if<FanOutEffect>(&effect);
    if (fan_out == nullptr) continue;
    for (int rank : fan_out->ranks) harness.frames[rank].push_back(fan_out->frame);
  }
  return status;
}

absl::StatusOr<HookState> Export(const SessionHarness& harness) {
  const auto snapshot = harness.session.Export();
  if (!snapshot.ok()) return snapshot.status();
  return snapshot->State();
}

// A state after `steps` steps without buckets.
HookState StateAfter(int steps) {
  SessionHarness harness(Compressed());
  harness.Start();
  for (int step = 0; step < steps; ++step) {
    for (int rank : {0, 1}) harness.EndStep(rank);
  }
  auto state = Export(harness);
  EXPECT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->metadata["step"], std::to_string(steps));
  return *std::move(state);
}

TEST(SessionState, AnImportTellsEveryMember) {
  SessionHarness harness(Compressed());
  harness.Start();
  ASSERT_TRUE(Import(harness, StateAfter(2)).ok());
  EXPECT_EQ(harness.session.hook_state().iteration(), 2);
  for (int rank : {0, 1}) {
    const auto resets = harness.Sent<wire::StateReset>(rank);
    ASSERT_EQ(resets.size(), 1U);
    EXPECT_EQ(resets[0].iteration, 2);
  }
}

TEST(SessionState, AMemberThatWasAwayHearsOfItWhenItResumes) {
  SessionHarness harness(Compressed());
  harness.Start();
  harness.Detach(1);
  ASSERT_TRUE(Import(harness, StateAfter(2)).ok());
  EXPECT_EQ(harness.Sent<wire::StateReset>(1).size(), 0U);
  ASSERT_TRUE(harness.Attach(1).ok());
  ASSERT_EQ(harness.Sent<wire::StateReset>(1).size(), 1U);
  EXPECT_EQ(harness.Sent<wire::StateReset>(1)[0].iteration, 2);
  // One that has begun a step has heard.
  harness.EndStep(1);
  harness.Detach(1);
  ASSERT_TRUE(harness.Attach(1).ok());
  EXPECT_EQ(harness.Sent<wire::StateReset>(1).size(), 1U);
}

// Its announcement may be on the way while another member resumes: a Restart that named the bucket
// would have it encode without the factors.
TEST(SessionState, ARestartNamesOnlyWhatTheMemberWasGranted) {
  SessionOptions options = SmallOptions();
  options.spec = *HookSpec::Parse("power_sgd,start_powerSGD_iter=0,min_compression_rate=0.5");
  SessionHarness harness(options);
  harness.Start();
  wire::Announce announce = harness.AnnounceOf({1});
  announce.rounds =
      *(*MakeCoordinatorHook(options.spec, options.manifest))->Plan(announce.parameters);
  harness.Receive(0, announce);
  ASSERT_EQ(harness.Sent<wire::Grant>(0).size(), 1U);
  harness.Detach(0);
  ASSERT_TRUE(harness.Attach(0).ok());
  ASSERT_EQ(harness.Sent<wire::Restart>(0).size(), 1U);
  EXPECT_EQ(harness.Sent<wire::Restart>(0)[0].open.size(), 1U);
  ASSERT_EQ(harness.Sent<wire::Restart>(1).size(), 1U);
  EXPECT_EQ(harness.Sent<wire::Restart>(1)[0].open.size(), 0U);
  harness.Receive(1, announce);
  EXPECT_GT(harness.Sent<wire::SharedState>(1).size(), 0U);
  ASSERT_EQ(harness.Sent<wire::Grant>(1).size(), 1U);
  EXPECT_EQ(harness.Sent<wire::Grant>(1)[0].id.attempt, 1U);
}

// Its first chunk alone is not being reduced: whose others it waits for is named.
TEST(SessionState, AMatrixOfSeveralChunksWaitsForAllOfThem) {
  SessionOptions options = SmallOptions();
  options.spec = *HookSpec::Parse(
      "power_sgd,start_powerSGD_iter=0,min_compression_rate=0.5,matrix_approximation_rank=2");
  options.manifest = {{"m", {20, 10}, DType::kFloat32}};
  SessionHarness harness(options);
  harness.Start();
  wire::Announce announce = harness.AnnounceOf({0});
  announce.rounds =
      *(*MakeCoordinatorHook(options.spec, options.manifest))->Plan(announce.parameters);
  const auto send = [&](int rank, std::uint32_t chunk, std::size_t floats) {
    wire::Contribution contribution = harness.Chunk(rank, 0, chunk);
    contribution.received = 0;
    harness.Receive(rank, contribution, Floats(floats, 1));
  };
  for (int rank : {0, 1}) harness.Receive(rank, announce);
  for (int rank : {0, 1}) send(rank, 0, 16);
  EXPECT_THAT(harness.Waiting(),
              AllOf(HasSubstr("waits for ranks 0, 1"), HasSubstr("chunk 1 of 3")));
  send(0, 1, 16);
  send(0, 2, 8);
  send(1, 1, 16);
  EXPECT_THAT(harness.Waiting(), AllOf(HasSubstr("waits for rank 1 "), HasSubstr("chunk 2 of 3")));
  EXPECT_THAT(harness.reductions, IsEmpty());
  send(1, 2, 8);
  EXPECT_THAT(harness.reductions, SizeIs(1));
  EXPECT_THAT(harness.Waiting(), HasSubstr("step 0 reduces bucket [m]"));
}

// Whoever waits in the pause has begun its next step with the state that it has.
TEST(SessionState, APauseTakesOneUntilAMemberBeginsTheNextStep) {
  SessionHarness harness(Compressed());
  harness.Start();
  ASSERT_TRUE(harness.Pause(absl::Minutes(10)).ok());
  ASSERT_TRUE(Import(harness, StateAfter(2)).ok());
  EXPECT_THAT(harness.Sent<wire::StateReset>(1), SizeIs(1));
  harness.EndStep(0);
  EXPECT_EQ(Import(harness, StateAfter(1)).message(),
            "session \"s\" is paused, but members have begun step 0 with the present state; import "
            "between two steps, while the training script keeps all members in a barrier [GW504]");
  EXPECT_EQ(harness.session.hook_state().iteration(), 2);
}

TEST(SessionState, AStepThatIsOpenTakesNoneAndShowsTheOneBeforeIt) {
  SessionHarness harness(Compressed());
  harness.Start();
  const HookState state = StateAfter(1);
  const auto before = Export(harness);
  harness.EndStep(0);
  const auto exported = Export(harness);
  ASSERT_TRUE(exported.ok()) << exported.status();
  EXPECT_EQ(exported->metadata, before->metadata);
  const absl::Status status = Import(harness, state);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("middle of step 0"));
  EXPECT_EQ(harness.session.hook_state().iteration(), 0);
}

SessionOptions CompressedFromTheStart() {
  SessionOptions options = SmallOptions();
  options.spec = *HookSpec::Parse("power_sgd,start_powerSGD_iter=0,min_compression_rate=0.5");
  return options;
}

wire::Announce CompressedAnnounce(const SessionHarness& harness,
                                  const std::vector<std::uint32_t>& parameters) {
  const SessionOptions& options = harness.session.options();
  wire::Announce announce = harness.AnnounceOf(parameters);
  announce.rounds = *(*MakeCoordinatorHook(options.spec, options.manifest))->Plan(parameters);
  return announce;
}

TEST(SessionState, MembersWaitWhileWhatTheyNeedIsComputedOnce) {
  SessionHarness harness(CompressedFromTheStart());
  harness.answers_at_once = false;
  harness.Start();
  const wire::Announce announce = CompressedAnnounce(harness, {1});
  for (int rank : {0, 1}) harness.Receive(rank, announce);
  ASSERT_THAT(harness.computations, SizeIs(1));
  EXPECT_EQ(harness.Waiting(), "step 0 computes the factors that members need for bucket [b]");
  for (int rank : {0, 1}) {
    EXPECT_THAT(harness.Sent<wire::SharedState>(rank), IsEmpty());
    EXPECT_THAT(harness.Sent<wire::Grant>(rank), IsEmpty());
  }
  harness.Compute();
  EXPECT_THAT(harness.computations, IsEmpty());
  for (int rank : {0, 1}) {
    EXPECT_GT(harness.Sent<wire::SharedState>(rank).size(), 0U);
    EXPECT_THAT(harness.Sent<wire::Grant>(rank), SizeIs(1));
    EXPECT_TRUE(std::holds_alternative<wire::Grant>(harness.frames[rank].back().header));
  }
}

TEST(SessionState, WhoResumesMeanwhileIsGrantedTheBucketAfterwards) {
  SessionHarness harness(CompressedFromTheStart());
  harness.answers_at_once = false;
  harness.Start();
  const wire::Announce announce = CompressedAnnounce(harness, {1});
  for (int rank : {0, 1}) harness.Receive(rank, announce);
  harness.Detach(0);
  ASSERT_TRUE(harness.Attach(0).ok());
  ASSERT_THAT(harness.Sent<wire::Restart>(0), SizeIs(1));
  EXPECT_THAT(harness.Sent<wire::Restart>(0)[0].open, IsEmpty());
  harness.Compute();
  for (int rank : {0, 1}) {
    ASSERT_THAT(harness.Sent<wire::Grant>(rank), SizeIs(1));
    EXPECT_EQ(harness.Sent<wire::Grant>(rank)[0].id.attempt, 1U);
  }
}

TEST(SessionState, WhoWasAwayWhenItBecameKnownHearsOfItByItsRestart) {
  SessionHarness harness(CompressedFromTheStart());
  harness.answers_at_once = false;
  harness.Start();
  const wire::Announce announce = CompressedAnnounce(harness, {1});
  for (int rank : {0, 1}) harness.Receive(rank, announce);
  harness.Detach(0);
  harness.Compute();
  EXPECT_THAT(harness.Sent<wire::Grant>(0), IsEmpty());
  ASSERT_TRUE(harness.Attach(0).ok());
  EXPECT_GT(harness.Sent<wire::SharedState>(0).size(), 0U);
  ASSERT_THAT(harness.Sent<wire::Restart>(0), SizeIs(1));
  EXPECT_THAT(harness.Sent<wire::Restart>(0)[0].open, SizeIs(1));
}

TEST(SessionState, ASessionThatHasFailedDropsTheAnswer) {
  SessionHarness harness(CompressedFromTheStart());
  harness.answers_at_once = false;
  harness.Start();
  harness.Receive(0, CompressedAnnounce(harness, {1}));
  harness.Receive(1, wire::EndStep{.step = 5, .generation = 7});
  ASSERT_EQ(harness.session.state(), SessionCore::State::kFailed);
  harness.Compute();
  EXPECT_THAT(harness.Sent<wire::Grant>(0), IsEmpty());
  EXPECT_THAT(harness.Sent<wire::SharedState>(0), IsEmpty());
}

TEST(SessionState, OnlyARunningSessionTakesOne) {
  SessionHarness harness(Compressed());
  ASSERT_TRUE(harness.Join(harness.Ask(0)).ok());
  const HookState state = StateAfter(1);
  EXPECT_THAT(std::string(Import(harness, state).message()), HasSubstr("is joining"));
  ASSERT_TRUE(harness.Join(harness.Ask(1)).ok());
  for (int rank : {0, 1}) ASSERT_TRUE(harness.Attach(rank).ok());
  EXPECT_TRUE(Import(harness, state).ok());
  for (int rank : {0, 1}) ASSERT_TRUE(harness.Leave(rank).ok());
  EXPECT_THAT(std::string(Import(harness, state).message()), HasSubstr("is closed"));
}

TEST(SessionState, WhatIsMissingOrWrongIsNamedAndNothingChanges) {
  SessionHarness harness(Compressed());
  harness.Start();
  const HookState good = StateAfter(2);
  const auto expect_refused = [&](const HookState& state, const std::string& why) {
    const absl::Status status = Import(harness, state);
    EXPECT_FALSE(status.ok()) << why;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_EQ(harness.session.hook_state().iteration(), 0);
    EXPECT_EQ(harness.Sent<wire::StateReset>(0).size(), 0U);
  };
  for (const char* key : {"format", "options", "layout", "iteration", "generator", "seed"}) {
    HookState state = good;
    state.metadata.erase(key);
    expect_refused(state, key);
  }
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, std::string>>{{"iteration", "-1"},
                                                        {"generator", "junk"},
                                                        {"version/x", "1"},
                                                        {"version/b", "1"},
                                                        {"version/b", "one"},
                                                        {"bucket/b", "0"},
                                                        {"bucket/b", "9"},
                                                        {"bucket/b", ""}}) {
    HookState state = good;
    state.metadata[key] = value;
    expect_refused(state, "state: ");
  }
  HookState state = good;
  state.tensors.push_back({.name = "q/w", .dtype = DType::kFloat32, .shape = {1}, .data = {}});
  expect_refused(state, "q/w");
  EXPECT_TRUE(Import(harness, good).ok());
}

// A step of all parameters in buckets that begin with the given ones, all values equal.
void RunStep(SessionHarness& harness, const std::vector<std::vector<std::uint32_t>>& buckets) {
  for (const auto& parameters : buckets) {
    wire::Announce announce = harness.AnnounceOf(parameters);
    const SessionOptions& options = harness.session.options();
    const auto hook = MakeCoordinatorHook(options.spec, options.manifest);
    while ((*hook)->iteration() < harness.session.hook_state().iteration())
      (*hook)->EndStep(Verdict::kApply);
    announce.rounds = *(*hook)->Plan(parameters);
    for (int rank : {0, 1}) harness.Receive(rank, announce);
    const wire::ChunkLayout layout(announce.rounds.front(), 64);
    const wire::RoundId id = harness.Chunk(0, parameters.front()).id;
    for (std::uint32_t chunk = 0; chunk < layout.chunk_count(); ++chunk) {
      for (int rank : {0, 1}) {
        harness.Receive(rank, harness.Chunk(rank, parameters.front(), chunk),
                        Floats(layout.ChunkBytes(chunk) / 4, 1));
      }
      harness.Reduce();
    }
    for (int rank : {0, 1}) {
      harness.Receive(rank, wire::Ack{.id = id, .received = layout.chunk_count()});
    }
  }
}

wire::BucketReport ReportOf(std::uint32_t bucket) {
  return {.bucket = bucket, .parameters = 1, .gradient_norm = 4, .residual_norm = 3};
}

TEST(SessionReports, RankZeroSpeaksForAll) {
  SessionHarness harness;
  harness.Start();
  harness.Receive(1, ReportOf(0));
  EXPECT_TRUE(harness.session.progress().reports().all().empty());
  harness.Receive(0, ReportOf(1));
  wire::BucketReport later = ReportOf(1);
  later.reductions = 9;
  harness.Receive(0, later);
  ASSERT_EQ(harness.session.progress().reports().all().size(), 1U);
  EXPECT_EQ(harness.session.progress().reports().all().at(1), later);
}

TEST(SessionReports, ABucketThatTheManifestDoesNotHaveIsRefused) {
  for (const wire::BucketReport& report : {wire::BucketReport{.bucket = 3, .parameters = 1},
                                           wire::BucketReport{.bucket = 0, .parameters = 4}}) {
    SessionHarness harness;
    harness.Start();
    harness.Receive(0, report);
    EXPECT_EQ(harness.session.state(), SessionCore::State::kFailed);
    EXPECT_THAT(harness.Message(), HasSubstr("the manifest has 3"));
  }
}

TEST(SessionReports, OnlyBucketsOfTheLastStepStay) {
  SessionHarness harness;
  harness.Start();
  RunStep(harness, {{0, 1, 2}});
  harness.Receive(0, ReportOf(0));
  harness.Receive(0, ReportOf(2));
  RunStep(harness, {{1, 2}, {0}});
  ASSERT_EQ(harness.session.step(), 2);
  ASSERT_EQ(harness.session.progress().reports().all().size(), 1U);
  EXPECT_EQ(harness.session.progress().reports().all().begin()->first, 0U);
  RunStep(harness, {{2, 1, 0}});
  EXPECT_TRUE(harness.session.progress().reports().all().empty());
}

TEST(SessionReports, CompressionIsLoggedAsOftenAsTheOptionSays) {
  SessionOptions options = SmallOptions();
  options.manifest = {{"w", {16}, DType::kFloat32}, {"b", {4, 64}, DType::kFloat32}};
  options.spec = *HookSpec::Parse(
      "power_sgd,start_powerSGD_iter=0,matrix_approximation_rank=1,rounds=1,"
      "compression_stats_logging_frequency=2");
  SessionHarness harness(options);
  harness.Start();
  harness.Receive(0, ReportOf(0));
  for (int step = 0; step < 4; ++step) {
    harness.logged.clear();
    RunStep(harness, {{0, 1}});
    ASSERT_EQ(harness.session.step(), step + 1) << harness.Message();
    if (step % 2 == 0) {
      EXPECT_THAT(harness.logged, IsEmpty());
      continue;
    }
    // 16 elements of w and Q's 64 in place of 272: the second and fourth steps send Q.
    EXPECT_THAT(harness.logged,
                ElementsAre(AllOf(HasSubstr(absl::StrCat("after ", step + 1, " applied steps")),
                                  HasSubstr("1088 bytes of gradients went as 320 bytes, 1/3.4"),
                                  HasSubstr("residual has 0.750 of its gradient's norm"))));
  }
}

}  // namespace
}  // namespace gradwire::server
