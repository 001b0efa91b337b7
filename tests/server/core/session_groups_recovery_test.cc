// A session with node groups whose daemon, or a member, was lost: what the next one does. Ranks 0
// and 1 are a group, and so are 2 and 3.
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/safetensors.h"
#include "proto/wire/digest.h"
#include "proto/wire/owned_payload.h"
#include "tests/server/core/session_harness.h"

namespace gradwire::server {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const std::string kKey(wire::kSessionKeyBytes, 'k');

SessionOptions Options(int world_size = 4) {
  SessionOptions options = SmallOptions(world_size);
  options.lineage = 5;
  options.coordinator_grace = absl::Seconds(60);
  options.member_grace = absl::Seconds(60);
  options.session_key = kKey;
  options.gathers = true;
  options.join_timeout = absl::Seconds(60);
  return options;
}

wire::MemberReport Report(std::int64_t step, bool contributed = false) {
  return {.session_key = kKey,
          .lineage = 5,
          .step = step,
          .last = Verdict::kApply,
          .has_contributed = contributed};
}

class Groups : public SessionHarness {
 public:
  explicit Groups(const SessionOptions& options = Options()) : SessionHarness(options) {}
  absl::Status Come(int rank, const std::string& group,
                    const std::optional<wire::MemberReport>& report) {
    JoinAsk ask = Ask(rank);
    ask.group = {.name = group, .communicator = "c 1"};
    ask.report = report;
    absl::Status status = Join(ask).status();
    if (status.ok()) status = Attach(rank, report ? report->step : 0);
    return status;
  }
  void ComeAll(const wire::MemberReport& report) {
    for (const int rank : {0, 1, 2, 3}) {
      ASSERT_TRUE(Come(rank, rank < 2 ? "a" : "b", report).ok());
    }
  }
};

TEST(SessionGroupsRecovery, OutlivesItsDaemon) {
  SessionOptions options = Options();
  options.gathers = false;
  Groups harness(options);
  for (const int rank : {0, 1, 2, 3}) {
    ASSERT_TRUE(harness.Come(rank, rank < 2 ? "a" : "b", std::nullopt).ok());
  }
  EXPECT_TRUE(harness.Sent<wire::Welcome>(3)[0].recovery.has_value());
  EXPECT_THAT(harness.session.node_groups(), ElementsAre(0, 0, 2, 2));
  // Those who are left would have the shares of those who are gone.
  options.shrinks_to = 1;
  Groups shrinks(options);
  for (const int rank : {0, 1, 2, 3}) {
    ASSERT_TRUE(shrinks.Come(rank, rank < 2 ? "a" : "b", std::nullopt).ok());
  }
  EXPECT_FALSE(shrinks.Sent<wire::Welcome>(3)[0].recovery.has_value());
}

TEST(SessionGroupsRecovery, GoesOnInTheSameGroupsWithTheNextStep) {
  Groups harness;
  harness.ComeAll(Report(4, true));
  const auto done = harness.Sent<wire::StepDone>(2);
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_TRUE(done[0].dropped);
  const auto welcome = harness.Sent<wire::Welcome>(2);
  ASSERT_THAT(welcome, SizeIs(1));
  EXPECT_EQ(welcome[0].step, 5);
  EXPECT_EQ(welcome[0].group->ranks, (std::vector<int>{2, 3}));
  // The communicator has no name here.
  harness.Receive(2, wire::GroupId{7, "anew"});
  EXPECT_THAT(harness.Sent<wire::GroupId>(3), ElementsAre(wire::GroupId{7, "anew"}));
}

TEST(SessionGroupsRecovery, ADaemonThatShrinksRefusesThem) {
  SessionOptions options = Options();
  options.shrinks_to = 1;
  Groups harness(options);
  harness.ComeAll(Report(4));
  EXPECT_THAT(harness.Message(), HasSubstr("the next daemon has on_member_loss=shrink"));
}

TEST(SessionGroupsRecovery, ANewcomerOnAnotherNodeIsSentAway) {
  SessionOptions options = Options();
  options.node_groups = {0, 0, 2, 2};
  Groups harness(options);
  ASSERT_TRUE(harness.Come(1, "b", std::nullopt).ok());
  for (const int rank : {0, 2, 3}) {
    ASSERT_TRUE(harness.Come(rank, rank < 2 ? "a" : "b", Report(4)).ok());
  }
  EXPECT_EQ(harness.session.state(), SessionCore::State::kJoining);
  const auto failure = harness.Sent<wire::Failure>(1);
  ASSERT_THAT(failure, SizeIs(1));
  EXPECT_THAT(failure[0].message,
              HasSubstr("rank 1, which was in the node group of ranks 0, 1; this process is in "
                        "that of ranks 1, 2, 3"));
  EXPECT_THAT(harness.closed, SizeIs(1));
  EXPECT_THAT(harness.Sent<wire::Welcome>(0), IsEmpty());
  ASSERT_TRUE(harness.Come(1, "a", std::nullopt).ok());
  EXPECT_EQ(harness.session.state(), SessionCore::State::kRunning) << harness.Message();
  EXPECT_TRUE(harness.Sent<wire::Welcome>(1).back().change.has_value());
}

// Both processes of a node may come on another one.
TEST(SessionGroupsRecovery, AWholeGroupMayMove) {
  SessionOptions options = Options();
  options.node_groups = {0, 0, 2, 2};
  Groups harness(options);
  for (const int rank : {0, 1}) ASSERT_TRUE(harness.Come(rank, "a", Report(4)).ok());
  for (const int rank : {2, 3}) ASSERT_TRUE(harness.Come(rank, "c", std::nullopt).ok());
  EXPECT_EQ(harness.session.state(), SessionCore::State::kRunning) << harness.Message();
}

// ---- The hook's state, in parts

wire::PayloadRef Copy(const std::vector<std::string>& parameters, float value = 1,
                      std::int64_t iteration = 1) {
  HookState state{.metadata = {{"iteration", absl::StrCat(iteration)}, {"seed", "3"}}};
  for (const std::string& name : parameters) {
    StateTensor tensor{.name = "q/" + name, .shape = {8}, .data = std::vector<std::byte>(32)};
    std::vector<float> values(8, value);
    std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
    state.tensors.push_back(std::move(tensor));
  }
  const std::string file = WriteSafetensors(state);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(file));
  return wire::OwnedPayload::Make({bytes.begin(), bytes.end()});
}

class Parts : public ::testing::Test {
 protected:
  static SessionOptions WithFactors(int world_size) {
    SessionOptions options = Options(world_size);
    options.spec = *HookSpec::Parse(
        "power_sgd,start_powerSGD_iter=0,matrix_approximation_rank=1,min_compression_rate=0.1");
    options.manifest = Manifest({{"v", {8, 8}, DType::kFloat32}, {"w", {8, 8}, DType::kFloat32}});
    return options;
  }
  static void Answer(SessionHarness& harness, int rank, const wire::PayloadRef& copy, bool donor) {
    harness.Receive(rank,
                    wire::StateCopy{.generation = 7,
                                    .digest = wire::Digest(copy.get()),
                                    .bytes = donor ? copy->bytes() : 0},
                    donor ? copy : nullptr);
  }
};

TEST_F(Parts, EachIsComparedAndGivenByThoseWhoHaveIt) {
  Groups harness(WithFactors(4));
  harness.ComeAll(Report(4));
  for (const int rank : {0, 1, 2, 3}) {
    EXPECT_THAT(harness.Sent<wire::StateRequest>(rank),
                ElementsAre(wire::StateRequest{.donor = rank < 2}));
  }
  const wire::PayloadRef first = Copy({"v"});
  const wire::PayloadRef second = Copy({"w"});
  Answer(harness, 0, first, true);
  Answer(harness, 2, first, false);
  Answer(harness, 1, second, true);
  EXPECT_EQ(harness.session.state(), SessionCore::State::kJoining);
  Answer(harness, 3, second, false);
  EXPECT_EQ(harness.session.state(), SessionCore::State::kRunning) << harness.Message();
  const auto exported = harness.session.Export();
  ASSERT_TRUE(exported.ok());
  const auto state = exported->State();
  ASSERT_TRUE(state.ok());
  EXPECT_THAT(state->tensors, SizeIs(2));
}

TEST_F(Parts, ThatDifferAmongThoseWhoHaveThemEndTheSession) {
  Groups harness(WithFactors(4));
  harness.ComeAll(Report(4));
  Answer(harness, 0, Copy({"v"}), true);
  Answer(harness, 1, Copy({"w"}), true);
  Answer(harness, 2, Copy({"v"}), false);
  Answer(harness, 3, Copy({"w"}, 2), false);
  EXPECT_THAT(harness.Message(), HasSubstr("ranks 1 and 3 hold different copies"));
}

// Rank 2 is alone, and has all.
TEST_F(Parts, ThatOverlapAreComparedToo) {
  for (const float value : {1.0F, 2.0F}) {
    Groups harness(WithFactors(3));
    for (const int rank : {0, 1, 2}) {
      ASSERT_TRUE(harness.Come(rank, rank < 2 ? "a" : "", Report(4)).ok());
    }
    Answer(harness, 0, Copy({"v"}), true);
    Answer(harness, 1, Copy({"w"}), true);
    Answer(harness, 2, Copy({"v", "w"}, value), true);
    EXPECT_EQ(harness.session.state() == SessionCore::State::kRunning, value == 1.0F)
        << harness.Message();
    if (value == 1.0F) continue;
    EXPECT_THAT(harness.Message(), HasSubstr("its parts differ in \"q/v\""));
  }
}

// Its factors are drawn again.
TEST_F(Parts, ThatNobodyHasAnyMoreAreDoneWithout) {
  Groups harness(WithFactors(2));
  ASSERT_TRUE(harness.Come(0, "a", Report(4)).ok());
  ASSERT_TRUE(harness.Come(1, "a", std::nullopt).ok());
  EXPECT_THAT(harness.Sent<wire::StateRequest>(1), IsEmpty());
  Answer(harness, 0, Copy({"v"}), true);
  EXPECT_EQ(harness.session.state(), SessionCore::State::kRunning) << harness.Message();
}

}  // namespace
}  // namespace gradwire::server
