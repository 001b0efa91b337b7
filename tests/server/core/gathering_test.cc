// What follows from members' reports: each rule of gathering.h, and reports that contradict each
// other.
#include "server/core/gathering.h"

#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/wire/step_chain.h"
#include "tests/server/core/gathering_reports.h"

namespace gradwire::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// None: of a newcomer.
using Reports = std::vector<std::optional<Report>>;

absl::StatusOr<Gathering::Outcome> Decide(const Reports& reports, bool grouped = false) {
  Gathering gathering(kKey, 5, static_cast<int>(reports.size()));
  gathering.SetGrouped(grouped);
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    EXPECT_TRUE(!reports[rank] || gathering.Check(*reports[rank]).ok());
    gathering.Take(static_cast<int>(rank), reports[rank]);
  }
  return gathering.Decide();
}

std::string Refusal(const Reports& reports) {
  const auto outcome = Decide(reports);
  EXPECT_EQ(outcome.status().code(), absl::StatusCode::kFailedPrecondition);
  return std::string(outcome.status().message());
}

TEST(Gathering, AStepThatNobodyCanHaveAResultOfGoesOn) {
  for (const Reports& reports :
       {Reports{At(4), At(4)},
        {Contributed(4, false), Contributed(4, false)},
        // It fears results in its memory, but rank 1 has contributed nothing.
        {Contributed(4, true), At(4)}}) {
    const auto outcome = Decide(reports);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(outcome->step, 4);
    EXPECT_THAT(outcome->ended, IsEmpty());
    EXPECT_FALSE(outcome->again);
    EXPECT_FALSE(outcome->change.has_value());
  }
}

TEST(Gathering, AStepThatAllAreReadyForEndsWithWhatTheySay) {
  const auto applied = Decide({Ready(4), Ready(4), Ready(4)});
  ExpectEnded(applied, 4, Verdict::kApply);
  EXPECT_EQ(applied->ended[0].digest, 9U);
  ExpectEnded(Decide({Ready(4, Verdict::kSkip), Ready(4, Verdict::kSkip)}), 4, Verdict::kSkip);
}

TEST(Gathering, AStepOfWhichSomeMayHaveResultsIsDropped) {
  ExpectEnded(Decide({Ready(4), Contributed(4, false)}), 4, Verdict::kSkip);
  ExpectEnded(Decide({Contributed(4, true), Contributed(4, false)}), 4, Verdict::kSkip);
  ExpectEnded(Decide({Ready(4), Ready(4), Contributed(4, true)}), 4, Verdict::kSkip);
}

// Its group may have gathered some of it, and connects anew.
TEST(Gathering, InNodeGroupsAStepOfWhichAnythingWasSentIsDropped) {
  const auto decide = [](const Reports& reports) { return Decide(reports, /*grouped=*/true); };
  ExpectEnded(decide({Contributed(4, false), At(4), At(4)}), 4, Verdict::kSkip);
  Report keeping = Contributed(4, true);
  keeping.keeps_gradients = true;
  ExpectEnded(decide({keeping, keeping}), 4, Verdict::kSkip);
  EXPECT_THAT(decide({At(4), At(4)})->ended, IsEmpty());
  ExpectEnded(decide({Ready(4), Ready(4)}), 4, Verdict::kApply);
  // Others have begun the next one.
  const auto both = decide({Contributed(5, false), Ready(4)});
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->step, 6);
  ASSERT_THAT(both->ended, SizeIs(2));
  EXPECT_EQ(both->ended[0].verdict, Verdict::kApply);
  EXPECT_TRUE(both->ended[1].dropped);
  // Newcomers drop one step, and not two.
  const auto healed = decide({Contributed(4, false), std::nullopt});
  ASSERT_TRUE(healed.ok()) << healed.status();
  ASSERT_THAT(healed->ended, SizeIs(1));
  EXPECT_TRUE(healed->ended[0].change.has_value());
}

TEST(Gathering, ALeafReportsForAllRanksThatItStandsFor) {
  Gathering gathering(kKey, 5, 4);
  gathering.SetPlace(0, 2);
  gathering.Take(0, Ready(4));
  gathering.SetPlace(2, 2);
  gathering.Take(2, At(5));
  EXPECT_FALSE(gathering.AllNew());
  const auto outcome = gathering.Decide();
  ExpectEnded(outcome, 4, Verdict::kApply);
  EXPECT_THAT(outcome->here, ElementsAre(0, 2));
  EXPECT_FALSE(outcome->change.has_value());
  EXPECT_THAT(outcome->fresh, IsEmpty());
}

// The others' gradients are whole anyway.
TEST(Gathering, AStepWhoseGradientsAreKeptWhereResultsMayBeGoesOn) {
  const auto keeping = [](Report report) {
    report.keeps_gradients = true;
    return report;
  };
  for (const Reports& reports :
       {Reports{keeping(Ready(4)), Contributed(4, false)},
        {keeping(Contributed(4, true)), keeping(Ready(4)), Contributed(4, false)}}) {
    const auto outcome = Decide(reports);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(outcome->step, 4);
    EXPECT_THAT(outcome->ended, IsEmpty());
    EXPECT_TRUE(outcome->again);
  }
  ExpectEnded(Decide({keeping(Ready(4)), Contributed(4, true)}), 4, Verdict::kSkip);
  ExpectEnded(Decide({keeping(Ready(4)), keeping(Ready(4))}), 4, Verdict::kApply);
  ExpectEnded(Decide({At(5), keeping(Ready(4))}), 4, Verdict::kApply);
}

TEST(Gathering, WhatAMemberHasSeenEndHasEndedForAll) {
  const auto applied = Decide({At(5), Ready(4, Verdict::kApply, 77)});
  ExpectEnded(applied, 4, Verdict::kApply);
  EXPECT_EQ(applied->ended[0].digest, 77U);
  Report skipped = At(5);
  skipped.last = Verdict::kSkip;
  // Dropped by a daemon between: rank 1 may have said READY, and rank 2 nothing.
  ExpectEnded(Decide({skipped, Ready(4), At(4)}), 4, Verdict::kSkip);
  // It may be on its way in the next step already.
  Report ahead = Contributed(5, true);
  ahead.last = Verdict::kApply;
  ExpectEnded(Decide({ahead, Ready(4)}), 4, Verdict::kApply);
}

TEST(Gathering, ALaterReportOfARankReplacesTheEarlierOne) {
  Gathering gathering(kKey, 5, 2);
  gathering.Take(0, At(4));
  gathering.Take(1, Ready(4));
  gathering.Take(0, Ready(4));
  ExpectEnded(gathering.Decide(), 4, Verdict::kApply);
}

TEST(Gathering, ReportsOfAnotherSessionAreRefused) {
  const Gathering gathering(kKey, 5, 2);
  Report other = At(4);
  other.session_key[3] = 'x';
  EXPECT_EQ(gathering.Check(other).code(), absl::StatusCode::kPermissionDenied);
  other = At(4);
  other.lineage = 6;
  EXPECT_EQ(gathering.Check(other).code(), absl::StatusCode::kPermissionDenied);
}

TEST(Gathering, NamesRanksThatContradictEachOther) {
  EXPECT_THAT(Refusal({At(4), At(7), At(4)}), HasSubstr("step 5 is unknown to rank 1, in step 7"));
  EXPECT_THAT(Refusal({Ready(4), Ready(4, Verdict::kApply, 8)}),
              AllOf(HasSubstr("rank 0 is READY with APPLY and digest 9"), HasSubstr("rank 1")));
  EXPECT_THAT(Refusal({At(5), At(4)}),
              AllOf(HasSubstr("step 4 was applied by rank 0"), HasSubstr("rank 1 lacks")));
  EXPECT_THAT(Refusal({At(5), Ready(4, Verdict::kSkip)}),
              AllOf(HasSubstr("applied by rank 0"), HasSubstr("rank 1 has results that skip it")));
  Report skipped = At(5);
  skipped.last = Verdict::kSkip;
  EXPECT_THAT(Refusal({At(5), skipped, Ready(4)}), HasSubstr("not for rank 1"));
  Report silent = At(5);
  silent.last = std::nullopt;
  EXPECT_THAT(Refusal({silent, Ready(4)}), HasSubstr("rank 0 cannot say"));
}

TEST(Gathering, CollectivesBeginAnewForThoseWhoAreInThem) {
  Report through = At(4);
  through.collectives = 3;
  Report in = At(4);
  in.collectives = 2;
  const auto outcome = Decide({through, in, in});
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->collectives, 2U);
  EXPECT_THAT(outcome->through, ElementsAre(true, false, false));
  in.collectives = 1;
  EXPECT_THAT(Refusal({through, in, through}),
              AllOf(HasSubstr("rank 1 1 broadcasts"), HasSubstr("rank 2 3")));
}

// ---- Newcomers

TEST(Gathering, WithANewcomerTheOpenStepIsDroppedAndTellsOfIt) {
  const Report contributed = Contributed(4, true);
  for (const Report& other : {At(4), Contributed(4, false), Ready(4)}) {
    const auto outcome = Decide({contributed, std::nullopt, other});
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(outcome->step, 5);
    EXPECT_EQ(outcome->change,
              (wire::MembershipChange{.newcomers = {1}, .root = 0, .collectives = 1}));
    EXPECT_THAT(outcome->ended,
                ElementsAre(wire::StepDone{.step = 4,
                                           .verdict = Verdict::kSkip,
                                           .dropped = true,
                                           .change = outcome->change,
                                           .reason = "rank 1 is new, without the model"}));
    EXPECT_THAT(outcome->fresh, ElementsAre(1));
  }
}

// All that are left are READY: the lost one may have been, and the step may have ended.
TEST(Gathering, WithANewcomerAStepThatAllOthersAreReadyForEnds) {
  const auto outcome = Decide({std::nullopt, Ready(4), Ready(4)});
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->step, 6);
  ASSERT_THAT(outcome->ended, SizeIs(2));
  EXPECT_EQ(outcome->ended[0],
            (wire::StepDone{.step = 4, .verdict = Verdict::kApply, .digest = 9}));
  EXPECT_TRUE(outcome->ended[1].dropped);
  EXPECT_EQ(outcome->ended[1].step, 5);
  EXPECT_FALSE(outcome->ended[0].change.has_value());
  EXPECT_EQ(outcome->ended[1].change->root, 1);
}

TEST(Gathering, WhoHasNotHeardOfNewcomersMayBeTwoStepsBehind) {
  Report ahead = At(6);
  ahead.last = Verdict::kSkip;
  ahead.before_last = Verdict::kApply;
  const wire::StepDone dropped{
      .step = 5, .verdict = Verdict::kSkip, .dropped = true, .reason = "a member was lost in it"};
  const auto applied = Decide({ahead, Ready(4), At(5)});
  ASSERT_TRUE(applied.ok()) << applied.status();
  EXPECT_EQ(applied->step, 6);
  EXPECT_THAT(
      applied->ended,
      ElementsAre(wire::StepDone{.step = 4, .verdict = Verdict::kApply, .digest = 9}, dropped));
  EXPECT_THAT(Refusal({ahead, At(4)}), HasSubstr("rank 1 lacks its results"));
  EXPECT_THAT(Refusal({At(6), Ready(4)}), HasSubstr("step 5 was applied by rank 0"));
  // Both were dropped while rank 1, READY for the first, heard nothing.
  ahead.before_last = Verdict::kSkip;
  for (const Report& behind : {Ready(4), At(4)}) {
    const auto skipped = Decide({ahead, behind});
    ASSERT_TRUE(skipped.ok()) << skipped.status();
    ASSERT_THAT(skipped->ended, SizeIs(2));
    EXPECT_EQ(skipped->ended[0].verdict, Verdict::kSkip);
    EXPECT_EQ(skipped->ended[1], dropped);
  }
  EXPECT_THAT(Refusal({ahead, Ready(4), At(5)}), HasSubstr("says otherwise than rank"));
  ahead.before_last = std::nullopt;
  EXPECT_THAT(Refusal({ahead, Ready(4)}), HasSubstr("rank 0 cannot say how step 4 ended"));
}

// Daemons may be lost again and again, and only one member hears of what each has decided.
TEST(Gathering, AMemberMayBeManyStepsAheadThatWereDropped) {
  Report ahead = At(9);
  ahead.last = ahead.before_last = Verdict::kSkip;
  ahead.skipped = 4;
  Report between = At(6);
  between.last = Verdict::kSkip;
  between.skipped = 1;
  const auto applied = Decide({Ready(4), ahead, between});
  ASSERT_TRUE(applied.ok()) << applied.status();
  EXPECT_EQ(applied->step, 9);
  ASSERT_THAT(applied->ended, SizeIs(5));
  EXPECT_EQ(applied->ended[0],
            (wire::StepDone{.step = 4, .verdict = Verdict::kApply, .digest = 9}));
  for (std::size_t i = 1; i < 5; ++i) {
    EXPECT_EQ(applied->ended[i].step, 4 + static_cast<std::int64_t>(i));
    EXPECT_EQ(applied->ended[i].verdict, Verdict::kSkip);
    EXPECT_TRUE(applied->ended[i].dropped);
  }
  EXPECT_THAT(Refusal({At(4), ahead}), HasSubstr("rank 0 lacks its results"));
  EXPECT_THAT(Refusal({At(3), ahead}), HasSubstr("step 4 was applied by rank 1"));
  ahead.skipped = 5;
  EXPECT_TRUE(Decide({At(4), ahead}).ok()) << "that one was dropped, too";
  ahead.skipped = 0;  // of an earlier version
  EXPECT_THAT(Refusal({Ready(4), ahead}), HasSubstr("step 5 is unknown to rank 1, in step 9"));
  ahead = At(1000);
  ahead.last = Verdict::kSkip;
  ahead.skipped = UINT64_MAX;
  EXPECT_THAT(Refusal({At(4), ahead}), HasSubstr("rank 1 in step 1000"));
}

// A daemon that has told members what it has decided stays with it, whoever is lost or comes back.
TEST(Gathering, WhatMembersAreToldHolds) {
  Gathering gathering(kKey, 5, 3);
  gathering.Take(0, At(4));
  gathering.Take(1, std::nullopt);
  gathering.Take(2, At(4));
  const auto first = gathering.Decide();
  ASSERT_TRUE(first.ok()) << first.status();
  gathering.Tell(*first);
  // It has not heard, and reports as before; and the lost one is back.
  gathering.Take(2, At(4));
  gathering.Take(1, At(4));
  const auto again = gathering.Decide();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->step, first->step);
  EXPECT_EQ(again->ended, first->ended);
  EXPECT_EQ(again->change, first->change);
  EXPECT_EQ(again->collectives, first->collectives);
  // Another loss is another change, after the first.
  gathering.Take(2, std::nullopt);
  const auto later = gathering.Decide();
  ASSERT_TRUE(later.ok()) << later.status();
  EXPECT_EQ(later->step, first->step + 1);
  ASSERT_THAT(later->ended, SizeIs(2));
  EXPECT_EQ(later->ended[0], first->ended[0]);
  EXPECT_THAT(later->change->newcomers, ElementsAre(2));
  EXPECT_GT(later->collectives, first->collectives);
}

// Members that come again report as before, or as what they were told makes them.
TEST(Gathering, TheChainIsThatAfterWhatMembersAreTold) {
  const auto with_chain = [](Report report, std::uint64_t chain) {
    report.chain = chain;
    return report;
  };
  Gathering gathering(kKey, 5, 3);
  gathering.Take(0, with_chain(Ready(4), 11));
  gathering.Take(1, with_chain(Ready(4), 11));
  gathering.Take(2, std::nullopt);
  const auto first = gathering.Decide();
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_THAT(first->ended, SizeIs(2));
  wire::StepChain chain(4, 11);
  for (const wire::StepDone& done : first->ended) chain.Advance(done);
  EXPECT_EQ(first->chain, chain.Before(6));
  gathering.Tell(*first);
  gathering.Take(0, with_chain(Ready(4), 11));
  Report told = At(6);
  told.last = Verdict::kSkip;
  told.before_last = Verdict::kApply;
  gathering.Take(1, with_chain(told, first->chain));
  gathering.Take(2, std::nullopt);
  const auto again = gathering.Decide();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->chain, first->chain);
  gathering.Take(1, with_chain(told, first->chain + 1));
  EXPECT_THAT(std::string(gathering.Decide().status().message()),
              HasSubstr("ranks 0 and 1 have different digests of the steps before step 6"));
}

// Rank 0 was READY, and has said what it holds of the hook's state without that step.
TEST(Gathering, AStepThatGoesOnIsNotConcludedWithWhatWasSaidBefore) {
  Gathering gathering(kKey, 5, 2);
  Report ready = Ready(4);
  ready.keeps_gradients = true;
  Report other = Contributed(4, false);
  gathering.Take(0, ready);
  gathering.Take(1, other);
  const auto first = gathering.Decide();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_THAT(first->ended, IsEmpty());
  gathering.Tell(*first);
  for (int again = 0; again < 2; ++again) {
    gathering.Take(1, std::nullopt);
    const auto later = gathering.Decide();
    ASSERT_TRUE(later.ok()) << later.status();
    ASSERT_THAT(later->ended, SizeIs(1));
    EXPECT_TRUE(later->ended[0].dropped);
    EXPECT_EQ(later->ended[0].step, 4);
    gathering.Take(0, ready);  // its stream broke, and it has heard nothing
  }
}

TEST(Gathering, ANewcomerWithoutAnAppliedStepGivesNobodyTheModel) {
  Report unhealed = At(4);
  unhealed.newcomer = true;
  const auto outcome = Decide({unhealed, At(4), std::nullopt});
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_THAT(outcome->change->newcomers, ElementsAre(0, 2));
  EXPECT_EQ(outcome->change->root, 1);
  EXPECT_THAT(outcome->fresh, ElementsAre(2));
  // The daemon was lost, and rank 1 may not have heard that rank 0 needs the model.
  const auto again = Decide({unhealed, At(4)});
  EXPECT_THAT(again->change->newcomers, ElementsAre(0));
  EXPECT_THAT(again->fresh, IsEmpty());
  EXPECT_THAT(Refusal({unhealed, std::nullopt}), HasSubstr("all members that had the session's"));
  Gathering all_new(kKey, 5, 2);
  for (const int rank : {0, 1}) all_new.Take(rank, std::nullopt);
  EXPECT_TRUE(all_new.AllNew());
  all_new.Take(1, At(4));
  EXPECT_FALSE(all_new.AllNew());
}

// The others are told to apply a step that it lacks results of.
TEST(Gathering, ANewcomerThatLacksResultsStaysOne) {
  Report unhealed = Contributed(4, true);
  unhealed.newcomer = true;
  Gathering gathering(kKey, 5, 3);
  gathering.Take(0, Ready(4));
  gathering.Take(1, Ready(4));
  gathering.Take(2, unhealed);
  const auto first = gathering.Decide();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->ended[0].verdict, Verdict::kApply);
  gathering.Tell(*first);
  gathering.Take(0, std::nullopt);
  const auto later = gathering.Decide();
  ASSERT_TRUE(later.ok()) << later.status();
  EXPECT_THAT(later->change->newcomers, ElementsAre(0, 2));
  EXPECT_EQ(later->change->root, 1);
}

// It may have heard what others have not, and has applied nothing of it.
TEST(Gathering, ANewcomerThatIsAheadDecidesNothing) {
  Report ahead = At(7);
  ahead.last = Verdict::kSkip;
  ahead.newcomer = true;
  const auto outcome = Decide({ahead, Ready(4), Ready(4)});
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->step, 8);
  ASSERT_THAT(outcome->ended, SizeIs(4));
  EXPECT_EQ(outcome->ended[0].verdict, Verdict::kApply);
  for (const int dropped : {1, 2, 3}) {
    EXPECT_EQ(outcome->ended[static_cast<std::size_t>(dropped)].step, 4 + dropped);
    EXPECT_TRUE(outcome->ended[static_cast<std::size_t>(dropped)].dropped);
  }
  EXPECT_FALSE(outcome->ended[2].change.has_value());
  EXPECT_THAT(outcome->ended[3].change->newcomers, ElementsAre(0));
}

TEST(Gathering, CollectivesAreVoidForNewcomers) {
  Report through = At(4);
  through.collectives = 3;
  Report in = At(4);
  in.collectives = 2;
  const auto outcome = Decide({through, in, std::nullopt});
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->collectives, 4U) << "no member has been in it";
  EXPECT_EQ(outcome->change->collectives, 4U);
  EXPECT_THAT(outcome->through, ElementsAre(false, false, false));
  in.collectives = 1;
  EXPECT_EQ(Decide({through, in, std::nullopt})->collectives, 4U);
}

}  // namespace
}  // namespace gradwire::server
