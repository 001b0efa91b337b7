// A member with its node group, without a coordinator and without the others. Of two shares it has
// the second one: parameters w and e.
#include "client/core/grouped_member.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/client/core/grouped_member_fixture.h"

namespace gradwire::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// The Welcome of a session with leaves: everybody is alone, and the hook divides by their number.
TEST_F(GroupedMemberTest, InASessionWithLeavesItIsInNoGroup) {
  Receive(wire::Welcome{
      .group = wire::NodeGroup{.ranks = {options_.rank}, .shares = 1, .groups = 3, .group = 1}});
  EXPECT_FALSE(member_->grouped());
  EXPECT_EQ(member_->leaf_groups(), 3);
  EXPECT_THAT(Drain<WelcomeEffect>(), SizeIs(1));
  EXPECT_TRUE(Start({0, 1, 2}).ok());
  EXPECT_THAT(DrainSent<wire::Announce>(), SizeIs(1)) << "without an exchange before";
}

TEST_F(GroupedMemberTest, GoesThroughExchangeShareAndGather) {
  Welcome();
  EXPECT_EQ(Drain<GroupEffect>().front().names, false) << "the first member of the group does";
  EXPECT_EQ(member_->index(), 1);
  EXPECT_TRUE(Start({0, 1, 2}).ok());
  EXPECT_THAT(DrainSent<wire::GroupBucket>(), ElementsAre(wire::GroupBucket{0, 7, {0, 1, 2}}));
  Order(0, 0, false);
  ASSERT_THAT(Drain<ExchangeEffect>(), SizeIs(1));
  const std::vector<BucketShare>& shares = member_->SharesOf(1);
  ASSERT_THAT(shares, SizeIs(2));
  EXPECT_EQ(shares[0].parameters, std::vector<ParameterSpec>{options_.manifest[1]});
  EXPECT_EQ(shares[1].bytes, 64);
  EXPECT_EQ(member_->OwnerOf(shares[1].share), 1);
  Exchanged(1, {{0, 2}});
  const auto announced = DrainSent<wire::Announce>();
  ASSERT_THAT(announced, SizeIs(1));
  EXPECT_EQ(announced[0].share, 1);
  EXPECT_EQ(announced[0].parameters, (std::vector<std::uint32_t>{0, 2}));
  Order(1, 0, true);
  EXPECT_THAT(Drain<GatherEffect>(), IsEmpty()) << "its results are not here";
  Result(0);
  EXPECT_THAT(Drain<GatherEffect>(), SizeIs(1));
  Receive(wire::StepDone{});
  EXPECT_EQ(hook_.commits, 1);
  EXPECT_THAT(Drain<StepDoneEffect>(), IsEmpty()) << "the others' results are not here";
  Gathered(1);
  EXPECT_THAT(effects_, SizeIs(2));
  EXPECT_EQ(std::get<BucketDoneEffect>(effects_[0]).ticket, 1);
  EXPECT_EQ(std::get<StepDoneEffect>(effects_[1]).step, 0);
}

TEST_F(GroupedMemberTest, OneThingIsDoneAtATimeAndInOrder) {
  Welcome();
  EXPECT_TRUE(Start({0}).ok());
  EXPECT_TRUE(Start({1}).ok());
  Order(0, 1, false);
  Order(1, 0, false);
  EXPECT_EQ(Drain<ExchangeEffect>().front().ticket, 2);
  Order(1, 0, false);  // repeated after a resume
  Exchanged(2, {});
  EXPECT_EQ(Drain<ExchangeEffect>().front().ticket, 1);
  Order(2, 1, true);
  EXPECT_THAT(Drain<GatherEffect>(), IsEmpty());
  Exchanged(1, {{0}});
  EXPECT_EQ(Drain<GatherEffect>().front().ticket, 2) << "it has no share of that bucket";
  EXPECT_EQ(Message(), "");
}

// Others may have added up their shares before it hears that the exchange is over.
TEST_F(GroupedMemberTest, WithoutAShareItMayHearOfTheStepsEndFirst) {
  Welcome();
  EXPECT_TRUE(Start({1}).ok());
  Order(0, 1, false);
  Order(1, 1, true);
  Receive(wire::StepDone{});
  EXPECT_EQ(Message(), "");
  Exchanged(1, {});
  EXPECT_THAT(Drain<GatherEffect>(), SizeIs(1));
  Gathered(1);
  EXPECT_THAT(Drain<StepDoneEffect>(), SizeIs(1));
}

TEST_F(GroupedMemberTest, TellsTheEndOnceNoShareIsToCome) {
  Welcome();
  EXPECT_TRUE(Start({0}).ok());
  End();
  EXPECT_THAT(DrainSent<wire::EndStep>(), IsEmpty());
  EXPECT_THAT(std::string(Start({1}).message()), HasSubstr("step 0 was ended by this member"));
  Order(0, 0, false);
  Exchanged(1, {{0}});
  EXPECT_THAT(DrainSent<wire::EndStep>(), SizeIs(1));
}

TEST_F(GroupedMemberTest, AloneItNeedsNoOrders) {
  Welcome({1});
  EXPECT_TRUE(Start({0, 1}).ok());
  EXPECT_TRUE(Start({2}).ok());
  EXPECT_EQ(Drain<ExchangeEffect>().front().ticket, 1);
  Exchanged(1, {{1}, {0}});
  EXPECT_EQ(Drain<ExchangeEffect>().front().ticket, 2) << "it does not wait for results";
  Exchanged(2, {{2}});
  EXPECT_EQ(Drain<GatherEffect>().front().ticket, 2) << "it has no elements";
}

TEST_F(GroupedMemberTest, SaysAgainAfterAResumeWhichBucketsItHas) {
  Welcome();
  EXPECT_TRUE(Start({0}).ok());
  EXPECT_TRUE(Start({1}).ok());
  Order(0, 0, false);
  Exchanged(1, {{0}});
  effects_.clear();
  Effects effects;
  member_->Resumed(effects);
  Take(std::move(effects));
  ASSERT_THAT(effects_, SizeIs(3));
  const auto header = [&](std::size_t i) { return std::get<SendFrameEffect>(effects_[i]).header; };
  EXPECT_EQ(std::get<wire::GroupBucket>(header(0)).parameters.front(), 0);
  EXPECT_EQ(std::get<wire::GroupBucket>(header(1)).parameters.front(), 1);
  EXPECT_EQ(std::get<wire::Announce>(header(2)).parameters.front(), 0);
}

TEST_F(GroupedMemberTest, AFailureEndsEachBucketOnce) {
  Welcome();
  EXPECT_TRUE(Start({0}).ok());
  EXPECT_TRUE(Start({1}).ok());
  Order(0, 0, false);
  Exchanged(1, {{0}});
  effects_.clear();
  Receive(wire::Failure{.code = 10, .message = "rank 0 was lost", .blamed_rank = 0});
  std::vector<Ticket> ended;
  for (const Effect& effect : effects_) {
    if (const auto* done = std::get_if<BucketDoneEffect>(&effect)) ended.push_back(done->ticket);
  }
  EXPECT_THAT(ended, ElementsAre(1, 2));
  EXPECT_TRUE(std::holds_alternative<FailedEffect>(effects_.back()));
  effects_.clear();
  Exchanged(2, {});  // an answer that was on its way
  EXPECT_THAT(effects_, IsEmpty());
}

TEST_F(GroupedMemberTest, AWrongBucketLeavesTheSessionAsItWas) {
  Welcome();
  EXPECT_TRUE(Start({0}).ok());
  EXPECT_THAT(std::string(Start({0}).message()), HasSubstr("is in step 0 already"));
  EXPECT_THAT(DrainSent<wire::GroupBucket>(), SizeIs(1));
  EXPECT_TRUE(Start({1}).ok());
}

TEST_F(GroupedMemberTest, WhatTheCoordinatorMayNotSendEndsTheSession) {
  struct Wrong {
    std::string message;
    std::function<void()> act;
  };
  const std::vector<Wrong> wrongs = {
      {"order 0 for bucket 0 in step 0", [&] { Order(0, 0, false); }},
      {"order 1 for bucket 1 in step 0; expected order 0",
       [&] {
         EXPECT_TRUE(Start({1}).ok());
         Order(1, 1, false);
       }},
      {"the order to gather bucket 1 in step 0 after 0 other orders for it",
       [&] {
         EXPECT_TRUE(Start({1}).ok());
         Order(0, 1, true);
       }},
      {"the order to exchange bucket 1 in step 0 after 1 other orders for it",
       [&] {
         EXPECT_TRUE(Start({1}).ok());
         Order(0, 1, false);
         Order(1, 1, false);
       }},
      {"the end of step 0 before all buckets were exchanged",
       [&] {
         EXPECT_TRUE(Start({0}).ok());
         Receive(wire::StepDone{});
       }},
  };
  for (const Wrong& wrong : wrongs) {
    member_.emplace(options_, &hook_, false);
    Welcome();
    wrong.act();
    EXPECT_THAT(Message(), HasSubstr(wrong.message));
  }
  member_.emplace(options_, &hook_, false);
  Welcome({0, 2});
  EXPECT_THAT(Message(), HasSubstr("a node group without this member"));
}

TEST_F(GroupedMemberTest, WithoutNodeGroupsItOnlyPassesOn) {
  Receive(wire::Welcome{});
  EXPECT_FALSE(member_->grouped());
  EXPECT_TRUE(Start({0}).ok());
  EXPECT_THAT(DrainSent<wire::Announce>(), SizeIs(1));
  Receive(wire::GroupId{7, "id"});
  EXPECT_THAT(Message(), HasSubstr("the name of a node group's communicator"));
}

// ---- Shares

std::vector<ParameterSpec> RandomModel(std::mt19937& random, std::size_t size) {
  std::vector<ParameterSpec> model;
  for (std::size_t p = 0; p < size; ++p) {
    model.push_back(
        {"p" + std::to_string(p), {static_cast<std::int64_t>(random() % 1000)}, DType::kFloat32});
  }
  return model;
}

TEST(ShareMapTest, BalancesBytes) {
  std::mt19937 random(1);
  for (const std::uint32_t shares : {1U, 2U, 3U, 8U}) {
    const auto model = RandomModel(random, 100);
    const ShareMap map(model, shares, false);
    std::vector<std::size_t> load(shares);
    std::size_t largest = 0;
    std::size_t total = 0;
    for (std::uint32_t p = 0; p < model.size(); ++p) {
      ASSERT_LT(map.ShareOf(p), shares);
      load[map.ShareOf(p)] += model[p].numel();
      largest = std::max(largest, model[p].numel());
      total += model[p].numel();
    }
    EXPECT_LE(*std::max_element(load.begin(), load.end()), total / shares + largest);
  }
}

TEST(ShareMapTest, DividesABucketIntoPiecesThatCoverItOnce) {
  std::mt19937 random(2);
  const auto model = RandomModel(random, 30);
  const ShareMap map(model, 3, false);
  std::vector<std::uint32_t> positions(30);
  for (std::uint32_t p = 0; p < 30; ++p) positions[p] = p;
  std::shuffle(positions.begin(), positions.end(), random);
  std::vector<ParameterSpec> parameters;
  std::size_t numel = 0;
  for (const std::uint32_t p : positions) {
    parameters.push_back(model[p]);
    numel += model[p].numel();
  }
  std::vector<float> memory(numel);
  const auto bucket = *GradBucket::Make(0, {DType::kFloat32, memory.data(), numel}, parameters);
  std::vector<int> covered(numel * sizeof(float));
  std::size_t of_shares = 0;
  for (const BucketShare& share : map.Divide(bucket, positions)) {
    of_shares += share.parameters.size();
    std::size_t bytes = 0;
    std::size_t end = SIZE_MAX;
    for (const BucketShare::Piece& piece : share.pieces) {
      EXPECT_NE(piece.offset, end) << "adjacent pieces are one";
      end = piece.offset + piece.bytes;
      bytes += piece.bytes;
      for (std::size_t at = piece.offset; at < end; ++at) ++covered[at];
    }
    EXPECT_EQ(bytes, share.bytes);
  }
  EXPECT_EQ(of_shares, 30);
  EXPECT_THAT(covered, ::testing::Each(1));
}

TEST(ShareMapTest, AHookOfWholeBucketsHasOneShare) {
  std::mt19937 random(3);
  const auto model = RandomModel(random, 5);
  const ShareMap map(model, 4, /*whole=*/true);
  for (std::uint32_t p = 0; p < 5; ++p) EXPECT_EQ(map.ShareOf(p), 0);
}

}  // namespace
}  // namespace gradwire::client
