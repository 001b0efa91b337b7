// What a member says of its account, to one daemon and to the next.
#include "client/core/ledger_sending.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/client/core/member_fixture.h"

namespace gradwire::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// ---- By itself, with a model of one parameter of 16 elements

class LedgerSendingTest : public ::testing::Test {
 protected:
  // The open step's only bucket, of elements that are all the same.
  void Reduce(float gradient) {
    values_.assign(16, gradient);
    run_ = *hook_.Start(bucket_, step_);
    ASSERT_TRUE((*run_->Next({})).has_value());
    ASSERT_FALSE((*run_->Next({})).has_value());
  }
  std::vector<wire::LedgerAccount> Tell() {
    Effects effects;
    sending_.Tell(step_, generation_, effects);
    return Sent(effects);
  }
  std::vector<wire::LedgerAccount> Resumed() {
    Effects effects;
    sending_.Resumed(effects);
    return Sent(effects);
  }
  void Apply() {
    run_->Commit();
    hook_.EndStep(Verdict::kApply);
    sending_.Concluded(step_++, /*dropped=*/false);
  }
  void Skip(bool dropped) {
    run_->Abort();
    if (dropped) sending_.Drop();
    hook_.EndStep(Verdict::kSkip);
    sending_.Concluded(step_++, dropped);
  }
  void Total(std::int64_t step) {
    sending_.On({.step = step, .rows = {{.lost = static_cast<double>(step)}}});
  }
  // What the next account says of the daemon before.
  std::vector<wire::LedgerSnapshot> TellAnew() {
    sending_.BeginAnew();
    Reduce(1);
    const auto told = Tell();
    return told.empty() ? std::vector<wire::LedgerSnapshot>() : told[0].earlier;
  }
  static std::vector<wire::LedgerAccount> Sent(const Effects& effects) {
    std::vector<wire::LedgerAccount> sent;
    for (const Effect& effect : effects) {
      sent.push_back(std::get<wire::LedgerAccount>(std::get<SendFrameEffect>(effect).header));
    }
    return sent;
  }

  const std::vector<ParameterSpec> manifest_ = {{"w", {16}, DType::kFloat32}};
  std::vector<float> values_ = std::vector<float>(16);
  GradBucket bucket_ = *GradBucket::Make(0, {DType::kFloat32, values_.data(), 16}, manifest_);
  LedgerHook hook_{std::make_unique<RecordingHook>(), manifest_};
  LedgerSending sending_{&hook_};
  std::unique_ptr<HookRun> run_;
  std::int64_t step_ = 0;
  std::uint64_t generation_ = 7;
};

// The step of each, or -1 - step where it has no total.
std::vector<std::int64_t> Steps(const std::vector<wire::LedgerSnapshot>& snapshots) {
  std::vector<std::int64_t> steps;
  for (const wire::LedgerSnapshot& snapshot : snapshots) {
    steps.push_back(snapshot.total.empty() ? -1 - snapshot.step : snapshot.step);
    if (snapshot.total.empty()) continue;
    EXPECT_EQ(snapshot.total[0].lost, static_cast<double>(snapshot.step)) << "of another step";
  }
  return steps;
}

TEST_F(LedgerSendingTest, TellsOnceForEachStep) {
  Reduce(3);
  const auto first = Tell();
  ASSERT_THAT(first, SizeIs(1));
  EXPECT_EQ(first[0].step, 0);
  EXPECT_EQ(first[0].generation, 7U);
  EXPECT_THAT(first[0].before, ElementsAre(LedgerRow()));
  ASSERT_THAT(first[0].change, SizeIs(1));
  EXPECT_EQ(first[0].change[0].contributed_squares, 16 * 9);
  EXPECT_EQ(first[0].change[0].rounded_squares, 2 * 16 * 9) << "the mean is the same";
  EXPECT_THAT(first[0].earlier, IsEmpty());
  EXPECT_THAT(Tell(), IsEmpty());
  Apply();
  Reduce(2);
  const auto second = Tell();
  ASSERT_THAT(second, SizeIs(1));
  EXPECT_EQ(second[0].step, 1);
  ASSERT_THAT(second[0].before, SizeIs(1));
  EXPECT_EQ(second[0].before[0].contributed_squares, 16 * 9);
  EXPECT_EQ(second[0].before[0].applied, second[0].before[0].contributed);
  EXPECT_EQ(second[0].change[0].contributed_squares, 16 * 4);
}

TEST_F(LedgerSendingTest, AResumeRepeatsTheLastAccount) {
  EXPECT_THAT(Resumed(), IsEmpty());
  Reduce(3);
  EXPECT_THAT(Resumed(), IsEmpty()) << "the results may not be all here";
  const auto told = Tell();
  EXPECT_EQ(Resumed(), told);
  Apply();
  EXPECT_EQ(Resumed(), told) << "it may have been lost, although the step is over";
  Reduce(2);
  EXPECT_EQ(Resumed(), told);
  const auto next = Tell();
  EXPECT_EQ(Resumed(), next);
}

TEST_F(LedgerSendingTest, TellsAFurtherDaemonAgainAndWhatItKnowsFromTheLast) {
  Reduce(3);
  Tell();
  Apply();
  Total(0);
  Reduce(2);
  const auto to_first = Tell();
  generation_ = 8;
  sending_.BeginAnew();
  EXPECT_THAT(Resumed(), IsEmpty());
  const auto to_next = Tell();
  ASSERT_THAT(to_next, SizeIs(1));
  EXPECT_EQ(to_next[0].generation, 8U);
  EXPECT_EQ(to_next[0].before, to_first[0].before);
  EXPECT_EQ(to_next[0].change, to_first[0].change);
  EXPECT_THAT(to_first[0].earlier, IsEmpty());
  EXPECT_THAT(to_next[0].earlier,
              ElementsAre(wire::LedgerSnapshot{
                  .step = 0, .own = to_first[0].before, .total = {{.lost = 0}}}));
  EXPECT_EQ(Resumed(), to_next);
  Apply();
  Reduce(1);
  EXPECT_THAT(Tell().at(0).earlier, IsEmpty()) << "it knows them";
}

TEST_F(LedgerSendingTest, KeepsThreeSnapshotsOneOfThemWithATotal) {
  const auto apply = [this](bool with_total) {
    Reduce(1);
    Apply();
    if (with_total) Total(step_ - 1);
  };
  apply(false);
  apply(true);
  EXPECT_THAT(Steps(TellAnew()), ElementsAre(-1, 1));
  apply(false);
  EXPECT_THAT(Steps(TellAnew()), ElementsAre(-1, 1, -3));
  apply(false);
  EXPECT_THAT(Steps(TellAnew()), ElementsAre(1, -3, -4));
  for (int i = 0; i < 9; ++i) apply(false);
  EXPECT_THAT(Steps(TellAnew()), ElementsAre(1, -12, -13)) << "nobody has a later total";
  apply(true);
  apply(false);
  apply(false);
  EXPECT_THAT(Steps(TellAnew()), ElementsAre(13, -15, -16));
  for (int i = 0; i < 3; ++i) apply(true);
  EXPECT_THAT(Steps(TellAnew()), ElementsAre(16, 17, 18));
}

// The total of a step comes after its end, but a member may hear of that from another shard.
TEST_F(LedgerSendingTest, ATotalMayComeBeforeTheEndOfItsStepOrAfterTheNext) {
  Reduce(1);
  Tell();
  Total(0);
  Apply();
  EXPECT_THAT(Steps(TellAnew()), ElementsAre(0));
  Apply();
  Reduce(1);
  Apply();
  Total(1);
  EXPECT_THAT(Steps(TellAnew()), ElementsAre(0, 1, -3));
  Total(2);
  EXPECT_THAT(Steps(TellAnew()), ElementsAre(0, 1, 2));
}

TEST_F(LedgerSendingTest, IgnoresTotalsOfStepsThatItDoesNotKnowOrOfOtherRows) {
  Reduce(1);
  Apply();
  Total(5);
  sending_.On({.step = 0, .rows = {{}, {}}});
  EXPECT_THAT(Steps(TellAnew()), ElementsAre(-1));
  Apply();
  EXPECT_THAT(Steps(TellAnew()), ElementsAre(-1, -2)) << "the total was of none of them";
}

TEST_F(LedgerSendingTest, ADroppedStepIsCountedAndHasNoSnapshot) {
  Reduce(3);
  Tell();
  Skip(/*dropped=*/true);
  Reduce(2);
  Skip(/*dropped=*/false);
  const LedgerRow& own = hook_.account()[0];
  EXPECT_EQ(own.contributed_squares, 16 * (9 + 4));
  EXPECT_EQ(own.dropped_squares, 16 * 9);
  EXPECT_EQ(own.skipped_squares, 16 * 4);
  EXPECT_EQ(own.balance(), 0);
  EXPECT_THAT(Steps(TellAnew()), ElementsAre(-2));
}

TEST(LedgerSendingWithoutLedger, SaysNothing) {
  LedgerSending sending(nullptr);
  Effects effects;
  sending.Tell(0, 7, effects);
  sending.Drop();
  sending.Concluded(0, false);
  sending.On({.step = 0});
  sending.BeginAnew();
  sending.Resumed(effects);
  EXPECT_THAT(effects, IsEmpty());
}

// ---- Through a member, whose gradients are ones

class MemberLedgerTest : public MemberTest {
 protected:
  MemberLedgerTest() {
    options_.ledger = &ledger_;
    member_.emplace(options_, &ledger_);
  }
  ~MemberLedgerTest() override { member_.reset(); }

  void Welcome(bool outlives) {
    wire::Welcome welcome{.step = member_->step()};
    if (outlives) {
      welcome.recovery = wire::Recovery{.session_key = std::string(wire::kSessionKeyBytes, 'k'),
                                        .lineage = 5,
                                        .grace_milliseconds = 60'000};
    }
    Receive(welcome);
  }
  // All results of the open step: of w, a mean of zeros.
  void Reduce() {
    const std::int64_t step = member_->step();
    ASSERT_TRUE(Start({0}).ok());
    Receive(wire::Grant{{.step = step}});
    Receive(wire::Result{.id = {.step = step}}, Bytes(64));
    ASSERT_FALSE(member_->failed()) << Message();
  }
  void Prepared() { Receive(wire::Prepared{.step = member_->step(), .digest = 4}); }
  void SayReady() {
    Effects effects;
    member_->SayReady(Verdict::kApply, 4, effects);
    Take(std::move(effects));
  }
  void Resumed() {
    Effects effects;
    member_->Resumed(effects);
    Take(std::move(effects));
  }
  // The positions of frames of these kinds among all effects; -1: there is none.
  template <class T>
  std::ptrdiff_t Place() const {
    const auto found = std::ranges::find_if(effects_, [](const Effect& effect) {
      const auto* frame = std::get_if<SendFrameEffect>(&effect);
      return frame != nullptr && std::holds_alternative<T>(frame->header);
    });
    return found == effects_.end() ? -1 : found - effects_.begin();
  }

  LedgerHook ledger_{std::make_unique<RecordingHook>(), options_.manifest};
};

TEST_F(MemberLedgerTest, TellsWithTheEndOfTheStep) {
  Welcome(/*outlives=*/false);
  Reduce();
  EXPECT_THAT(DrainSent<wire::LedgerAccount>(), IsEmpty());
  Receive(wire::StepDone{.step = 0});
  const auto told = DrainSent<wire::LedgerAccount>();
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].step, 0);
  EXPECT_EQ(told[0].before, std::vector<LedgerRow>(3)) << "the step is not in it";
  ASSERT_THAT(told[0].change, SizeIs(3));
  EXPECT_EQ(told[0].change[0].contributed_squares, 16);
  EXPECT_EQ(told[0].change[0].applied, 0);
  EXPECT_EQ(told[0].change[1], LedgerRow()) << "b is not in the step";
  EXPECT_EQ(member_->step(), 1);
}

// Whatever the others decide then, the daemon knows what became of these gradients.
TEST_F(MemberLedgerTest, TellsBeforeItIsReadyWhereTheSessionOutlivesItsDaemon) {
  Welcome(/*outlives=*/true);
  Reduce();
  EXPECT_EQ(Place<wire::LedgerAccount>(), -1);
  Prepared();
  EXPECT_GE(Place<wire::LedgerAccount>(), 0);
  EXPECT_TRUE(std::holds_alternative<PreparedEffect>(effects_.back())) << "READY follows";
  SayReady();
  EXPECT_LT(Place<wire::LedgerAccount>(), Place<wire::Ready>());
  EXPECT_THAT(DrainSent<wire::LedgerAccount>(), SizeIs(1));
  Prepared();
  Receive(wire::StepDone{.step = 0});
  EXPECT_THAT(DrainSent<wire::LedgerAccount>(), IsEmpty());
  ASSERT_FALSE(member_->failed()) << Message();
}

TEST_F(MemberLedgerTest, AResumeRepeatsTheAccountBeforeReady) {
  Welcome(/*outlives=*/true);
  Reduce();
  Prepared();
  SayReady();
  const auto told = DrainSent<wire::LedgerAccount>();
  Resumed();
  EXPECT_LT(Place<wire::LedgerAccount>(), Place<wire::Ready>());
  EXPECT_EQ(DrainSent<wire::LedgerAccount>(), told);
}

TEST_F(MemberLedgerTest, TellsAFurtherDaemonNothingBeforeItsWelcome) {
  Welcome(/*outlives=*/true);
  Reduce();
  Prepared();
  SayReady();
  Receive(wire::LedgerTotal{.step = 0, .rows = std::vector<LedgerRow>(3, {.lost = 2})});
  EXPECT_THAT(DrainSent<wire::LedgerAccount>(), SizeIs(1));
  member_->Rejoined(8);
  Resumed();
  // It knows from others how the step ended.
  Receive(wire::StepDone{.step = 0});
  ASSERT_EQ(member_->step(), 1) << Message();
  ASSERT_TRUE(Start({0}).ok());
  EXPECT_THAT(DrainSent<wire::LedgerAccount>(), IsEmpty());
  Welcome(/*outlives=*/true);
  Receive(wire::Grant{{.step = 1}});
  Receive(wire::Result{.id = {.step = 1}}, Bytes(64));
  EXPECT_THAT(DrainSent<wire::LedgerAccount>(), IsEmpty());
  Prepared();
  const auto told = DrainSent<wire::LedgerAccount>();
  ASSERT_THAT(told, SizeIs(1)) << Message();
  EXPECT_EQ(told[0].step, 1);
  EXPECT_EQ(told[0].generation, 8U);
  EXPECT_EQ(told[0].before[0].contributed_squares, 16);
  EXPECT_THAT(
      told[0].earlier,
      ElementsAre(wire::LedgerSnapshot{
          .step = 0, .own = told[0].before, .total = std::vector<LedgerRow>(3, {.lost = 2})}));
}

TEST_F(MemberLedgerTest, AStepThatIsDroppedCountsAsDropped) {
  Welcome(/*outlives=*/true);
  Reduce();
  member_->Rejoined(8);
  Receive(wire::StepDone{.step = 0, .verdict = Verdict::kSkip, .dropped = true});
  ASSERT_EQ(member_->step(), 1) << Message();
  Welcome(/*outlives=*/true);
  EXPECT_THAT(DrainSent<wire::LedgerAccount>(), IsEmpty());
  Reduce();
  Prepared();
  const auto told = DrainSent<wire::LedgerAccount>();
  ASSERT_THAT(told, SizeIs(1)) << Message();
  const LedgerRow& before = told[0].before.at(0);
  EXPECT_EQ(before.contributed_squares, 16);
  EXPECT_EQ(before.dropped_squares, 16);
  EXPECT_EQ(before.dropped, before.contributed);
  EXPECT_EQ(before.skipped_squares, 0);
  EXPECT_THAT(told[0].earlier, IsEmpty());
}

TEST_F(MemberLedgerTest, AStepThatIsSkippedCountsAsSkipped) {
  Welcome(/*outlives=*/false);
  for (int step = 0; step < 2; ++step) {
    Reduce();
    Receive(wire::StepDone{.step = step, .verdict = Verdict::kSkip});
  }
  const auto told = DrainSent<wire::LedgerAccount>();
  ASSERT_THAT(told, SizeIs(2)) << Message();
  const LedgerRow& before = told[1].before.at(0);
  EXPECT_EQ(before.contributed_squares, 16);
  EXPECT_EQ(before.skipped_squares, 16);
  EXPECT_EQ(before.dropped_squares, 0);
}

}  // namespace
}  // namespace gradwire::client
