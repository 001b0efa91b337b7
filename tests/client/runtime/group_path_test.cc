// What a member does with its node group, over a communicator that is played by hand.
#include "client/runtime/group_path.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/core/grouped_member.h"
#include "gmock/gmock.h"
#include "hooks/cpu/host_device.h"
#include "tests/client/core/member_fixture.h"

namespace gradwire::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Clock = GroupPath::Clock;

// What the test decides, and what the member has called.
struct Script {
  bool ready = true;
  absl::Status error;
  float received = 0;  // every element that the others send
  std::vector<PeerBytes> sends;
  std::vector<PeerBytes> receives;
  std::vector<PeerBytes> pieces;
  int aborts = 0;
};

class ScriptedCommunicator final : public NodeCommunicator {
 public:
  explicit ScriptedCommunicator(Script& script) : script_(script) {}
  void Exchange(std::span<const PeerBytes> sends, std::span<const PeerBytes> receives) override {
    script_.sends.assign(sends.begin(), sends.end());
    script_.receives.assign(receives.begin(), receives.end());
    for (const PeerBytes& one : receives) {
      auto* values = reinterpret_cast<float*>(one.memory);
      std::fill(values, values + one.bytes / sizeof(float), script_.received);
    }
  }
  void Gather(std::span<const PeerBytes> pieces) override {
    script_.pieces.assign(pieces.begin(), pieces.end());
  }
  absl::StatusOr<bool> Poll() override {
    if (!script_.error.ok()) return script_.error;
    return script_.ready;
  }
  void Abort() override { ++script_.aborts; }

 private:
  Script& script_;
};

class ScriptedCommunicators final : public NodeCommunicators {
 public:
  explicit ScriptedCommunicators(Script& script) : script_(script) {}
  std::string name() const override { return "script 1"; }
  absl::StatusOr<std::string> NewId() override { return std::string("id"); }
  absl::StatusOr<std::unique_ptr<NodeCommunicator>> Connect(const std::string&, int, int) override {
    return std::make_unique<ScriptedCommunicator>(script_);
  }

 private:
  Script& script_;
};

// Member 1 of the three of its group; with another member, four are two groups. Of three shares it
// has the second: w. b is the first member's.
class GroupPathTest : public EffectsTest {
 protected:
  GroupPathTest()
      : member_(Of(options_, 4), &hook_, false),
        path_(MakeHostDevice(), std::make_shared<ScriptedCommunicators>(script_),
              {.connect_timeout = std::chrono::seconds(60),
               .task_timeout = std::chrono::seconds(30)}) {
    Receive(wire::Welcome{
        .group = wire::NodeGroup{.ranks = {0, 1, 3}, .shares = 3, .groups = 2, .group = 0}});
    path_.Begin(member_);
  }
  static MemberOptions Of(MemberOptions options, int world_size) {
    options.world_size = world_size;
    return options;
  }
  void Receive(wire::Header header) {
    Effects effects;
    member_.Receive({.header = std::move(header)}, effects);
    Take(std::move(effects));
  }
  // The bucket of all parameters is to be exchanged.
  void BeginExchange() {
    Effects effects;
    EXPECT_TRUE(member_.StartBucket(1, Bucket({0, 1, 2}), effects).ok());
    Receive(wire::GroupOrder{});
    path_.Exchange(1);
  }
  std::string Error(Clock::time_point now) {
    return std::string(path_.Poll(now).status().message());
  }

  Script script_;
  GroupedMember member_;
  GroupPath path_;
  const Clock::time_point now_ = Clock::now();
};

TEST_F(GroupPathTest, AddsItsShareUpAndDivides) {
  ASSERT_TRUE(path_.Connect("id").ok());
  BeginExchange();
  script_.received = 2.5F;
  const auto done = path_.Poll(now_);
  ASSERT_TRUE(done.ok() && done->has_value()) << done.status();
  EXPECT_FALSE((*done)->gather);
  ASSERT_EQ((*done)->own.size(), 1);
  const TensorView share = (*done)->own[0]->buffer();
  ASSERT_EQ(share.numel, 16);
  // 2.5 + 1 + 2.5, over 4 members / 2 groups.
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(static_cast<float*>(share.data)[i], 3.0F);
  ASSERT_EQ(script_.sends.size(), 1);
  EXPECT_EQ(script_.sends[0].peer, 0) << "b is the first member's";
  EXPECT_EQ(script_.sends[0].bytes, 160);
  ASSERT_EQ(script_.receives.size(), 2);
  EXPECT_EQ(script_.receives[0].peer, 0);
  EXPECT_EQ(script_.receives[1].peer, 2);
  EXPECT_TRUE(path_.idle());
}

// Of a group that has been one before, a newcomer is the reason, which says so and ends.
TEST_F(GroupPathTest, WhatIsWrongWithAGroupIsSaidAtOnceTheFirstTimeOnly) {
  script_.error = absl::FailedPreconditionError("one GPU for each member");
  Receive(wire::Welcome{.group = member_.group(), .recovery = wire::Recovery{}});
  for (const bool again : {false, true}) {
    path_.Abort();
    if (again) path_.Begin(member_);
    ASSERT_TRUE(path_.Connect("id").ok());
    EXPECT_EQ(path_.Poll(now_).ok(), again);
    EXPECT_EQ(path_.failed(), again);
  }
  EXPECT_TRUE(path_.Poll(now_ + std::chrono::seconds(19)).ok());
  EXPECT_THAT(Error(now_ + std::chrono::seconds(21)), HasSubstr("one GPU for each member"));
}

TEST_F(GroupPathTest, GivesItsShareAndTakesTheOthers) {
  ASSERT_TRUE(path_.Connect("id").ok());
  BeginExchange();
  auto exchanged = path_.Poll(now_);
  ASSERT_TRUE(exchanged.ok() && exchanged->has_value());
  auto* result = static_cast<float*>((*exchanged)->own[0]->buffer().data);
  std::fill(result, result + 16, 7.0F);
  path_.Gather(1);
  const auto done = path_.Poll(now_);
  ASSERT_TRUE(done.ok() && done->has_value());
  EXPECT_TRUE((*done)->gather);
  const auto* bucket = static_cast<const float*>(member_.BucketOf(1).buffer().data);
  EXPECT_EQ(bucket[0], 7.0F);
  ASSERT_EQ(script_.pieces.size(), 2);
  for (const PeerBytes& piece : script_.pieces) {
    EXPECT_EQ(piece.bytes, piece.peer == 1 ? 64 : 160);
    EXPECT_EQ(piece.memory,
              reinterpret_cast<const std::byte*>(bucket) + (piece.peer == 1 ? 0 : 64));
  }
}

TEST_F(GroupPathTest, WaitsForTheNameOfTheCommunicator) {
  BeginExchange();
  const auto waiting = path_.Poll(now_ + std::chrono::seconds(29));
  ASSERT_TRUE(waiting.ok());
  EXPECT_FALSE(waiting->has_value());
  EXPECT_THAT(Error(now_ + std::chrono::seconds(32)),
              HasSubstr("within 30s: its first member did not name the communicator"));
}

TEST_F(GroupPathTest, AGroupThatDoesNotConnectIsNamed) {
  script_.ready = false;
  ASSERT_TRUE(path_.Connect("id").ok());
  EXPECT_FALSE(path_.idle());
  EXPECT_EQ(Error(now_ + std::chrono::seconds(59)), "");
  EXPECT_THAT(
      Error(now_ + std::chrono::seconds(62)),
      AllOf(HasSubstr("the node group of ranks 0, 1, 3 did not connect with script 1 within "
                      "1m"),
            HasSubstr("are all of them on one machine?")));
}

TEST_F(GroupPathTest, AnExchangeThatTakesTooLongIsNamed) {
  ASSERT_TRUE(path_.Connect("id").ok());
  ASSERT_TRUE(path_.Poll(now_).ok());
  BeginExchange();
  script_.ready = false;
  EXPECT_EQ(Error(now_ + std::chrono::seconds(29)), "");
  EXPECT_THAT(Error(now_ + std::chrono::seconds(32)),
              HasSubstr("the node group of ranks 0, 1, 3 did not exchange the shares of a bucket "
                        "within 30s with script 1"));
}

TEST_F(GroupPathTest, AnErrorNamesTheGroup) {
  ASSERT_TRUE(path_.Connect("id").ok());
  script_.error = absl::InternalError("a cable is out");
  EXPECT_EQ(Error(now_), "the node group of ranks 0, 1, 3: a cable is out [GW905]");
  path_.Abort();
  EXPECT_EQ(script_.aborts, 1);
  EXPECT_TRUE(path_.idle());
}

// A member was lost, as the daemon will know.
TEST_F(GroupPathTest, InASessionThatOutlivesItsDaemonAnErrorWaits) {
  Receive(wire::Welcome{
      .group = wire::NodeGroup{.ranks = {0, 1, 3}, .shares = 3, .groups = 2, .group = 0},
      .recovery = wire::Recovery{.session_key = "key"}});
  ASSERT_TRUE(path_.Connect("id").ok());
  script_.error = absl::InternalError("a peer is gone");
  EXPECT_TRUE(path_.Poll(now_).ok());
  EXPECT_TRUE(path_.failed());
  EXPECT_TRUE(path_.idle());
  EXPECT_TRUE(path_.Poll(path_.fails_at() - std::chrono::seconds(1)).ok());
  path_.Abort();
  EXPECT_FALSE(path_.failed());
  // The daemon knows of no loss.
  ASSERT_TRUE(path_.Connect("anew").ok());
  EXPECT_TRUE(path_.Poll(now_).ok());
  EXPECT_GT(path_.fails_at(), now_ + std::chrono::seconds(15)) << "of silence";
  EXPECT_EQ(Error(path_.fails_at()), "the node group of ranks 0, 1, 3: a peer is gone [GW905]");
}

TEST_F(GroupPathTest, AMemberThatAskedForNoGroupRefusesToBeInOne) {
  GroupPath path(MakeHostDevice(), nullptr, {});
  path.Begin(member_);
  EXPECT_THAT(std::string(path.NewId().status().message()), HasSubstr("it asked for none"));
  EXPECT_FALSE(path.Connect("id").ok());
}

}  // namespace
}  // namespace gradwire::client
