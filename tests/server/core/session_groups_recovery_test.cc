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
          .has_contributed = contributed,
          .shares = 2};
}

// Where members are not waited for.
SessionOptions Shrinking() {
  SessionOptions options = Options();
  options.shrinks_to = 1;
  options.shrink_after = absl::Seconds(10);
  return options;
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
  // To a session that shrinks, in which all ranks have been.
  absl::Status ComeBack(int rank, int world_size = 4) {
    wire::MemberReport report = Report(4, true);
    report.roster = wire::Roster{.number = 1};
    for (int r = 0; r < world_size; ++r) report.roster->ranks.push_back(r);
    report.concluded = report.roster->ranks;
    return Come(rank, rank < 2 ? "a" : rank < 4 ? "b" : "c", report);
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

// Without rank 1, whose share rank 0 has then.
TEST(SessionGroupsRecovery, GoesOnInSmallerGroups) {
  Groups harness(Shrinking());
  for (const int rank : {0, 2, 3}) ASSERT_TRUE(harness.ComeBack(rank).ok());
  harness.Pass(absl::Seconds(12));
  const auto done = harness.Sent<wire::StepDone>(2);
  ASSERT_THAT(done, SizeIs(1)) << harness.Message();
  EXPECT_TRUE(done[0].dropped);
  EXPECT_THAT(done[0].change->ranks, ElementsAre(0, 2, 3));
  const auto welcome = harness.Sent<wire::Welcome>(0);
  ASSERT_THAT(welcome, SizeIs(1));
  EXPECT_EQ(*welcome[0].group,
            (wire::NodeGroup{.ranks = {0}, .shares = 2, .groups = 2, .group = 0}));
  EXPECT_THAT(welcome[0].recovery->roster->ranks, ElementsAre(0, 2, 3));
}

// All of one node are gone: those who are left are a group of two still.
TEST(SessionGroupsRecovery, GoesOnWithoutANode) {
  SessionOptions options = Shrinking();
  options.world_size = 6;
  Groups harness(options);
  for (const int rank : {0, 1, 2, 3}) ASSERT_TRUE(harness.ComeBack(rank, 6).ok());
  harness.Pass(absl::Seconds(12));
  const auto welcome = harness.Sent<wire::Welcome>(3);
  ASSERT_THAT(welcome, SizeIs(1)) << harness.Message();
  EXPECT_EQ(*welcome[0].group,
            (wire::NodeGroup{.ranks = {2, 3}, .shares = 2, .groups = 2, .group = 1}));
}

TEST(SessionGroupsRecovery, ANewcomerMayBeOnAnyNode) {
  Groups harness(Shrinking());
  for (const int rank : {0, 2, 3}) ASSERT_TRUE(harness.ComeBack(rank).ok());
  ASSERT_TRUE(harness.Come(1, "b", std::nullopt).ok());
  EXPECT_EQ(harness.session.state(), SessionCore::State::kRunning) << harness.Message();
  EXPECT_EQ(*harness.Sent<wire::Welcome>(1)[0].group,
            (wire::NodeGroup{.ranks = {1, 2, 3}, .shares = 2, .groups = 2, .group = 1}));
}

// Whoever comes first, a member or the leaf.
TEST(SessionGroupsRecovery, ALeafIsRefused) {
  for (const bool comes_first : {false, true}) {
    Groups harness(Shrinking());
    ASSERT_TRUE(comes_first || harness.ComeBack(0).ok());
    JoinAsk leaf = harness.Ask(1);
    leaf.leaf = "n1";
    leaf.leaf_ranks = 1;
    const absl::Status joined = harness.Join(leaf).status();
    EXPECT_EQ(joined.ok(), comes_first) << joined;
    if (comes_first) {
      ASSERT_TRUE(harness.Attach(1, 0).ok());
    } else {
      EXPECT_THAT(std::string(joined.message()),
                  HasSubstr("has node groups, and a leaf daemon has come; allowed: trainers"));
    }
    EXPECT_EQ(harness.session.state(), SessionCore::State::kJoining) << harness.Message();
    for (const int rank : {0, 2, 3}) {
      ASSERT_TRUE((rank == 0 && !comes_first) || harness.ComeBack(rank).ok());
    }
    harness.Pass(absl::Seconds(12));
    EXPECT_THAT(harness.Sent<wire::Failure>(1), SizeIs(comes_first ? 1 : 0));
    EXPECT_EQ(harness.session.state(), SessionCore::State::kRunning) << harness.Message();
    EXPECT_THAT(harness.Sent<wire::Welcome>(0)[0].recovery->roster->ranks, ElementsAre(0, 2, 3));
  }
}

// It could not connect with the others of its group, and would end them.
TEST(SessionGroupsRecovery, ANewcomerWithAnotherVersionIsRefused) {
  for (const bool comes_first : {false, true}) {
    Groups harness(Shrinking());
    ASSERT_TRUE(comes_first || harness.ComeBack(0).ok());
    JoinAsk ask = harness.Ask(1);
    ask.group = {.name = "a", .communicator = "c 2"};
    const absl::Status joined = harness.Join(ask).status();
    EXPECT_EQ(joined.ok(), comes_first) << joined;
    ASSERT_TRUE(!comes_first || harness.Attach(1, 0).ok());
    for (const int rank : {0, 2, 3}) {
      ASSERT_TRUE((rank == 0 && !comes_first) || harness.ComeBack(rank).ok());
    }
    const std::string why =
        comes_first ? harness.Sent<wire::Failure>(1)[0].message : std::string(joined.message());
    EXPECT_THAT(why, HasSubstr("rank 0 has c 1, the process for rank 1 of the same group has c 2; "
                               "install the same version"));
    harness.Pass(absl::Seconds(12));
    EXPECT_EQ(harness.session.state(), SessionCore::State::kRunning) << harness.Message();
    EXPECT_THAT(harness.Sent<wire::Welcome>(0)[0].recovery->roster->ranks, ElementsAre(0, 2, 3));
    // And later, when they run.
    EXPECT_THAT(std::string(harness.Join(ask).status().message()), HasSubstr("has c 2"));
    EXPECT_EQ(harness.session.state(), SessionCore::State::kRunning);
  }
}

TEST(SessionGroupsRecovery, NobodyWaitsForALostMember) {
  Groups harness(Shrinking());
  for (const int rank : {0, 1, 3}) ASSERT_TRUE(harness.ComeBack(rank).ok());
  harness.Pass(absl::Seconds(12));
  harness.Receive(
      0, wire::GroupBucket{.step = harness.session.step(), .generation = 7, .parameters = {0}});
  EXPECT_EQ(harness.Waiting(),
            "step 5 waits for rank 1 (connected, last heard 12s ago) to have bucket [w]; goes on "
            "without rank 2");
}

TEST(SessionGroupsRecovery, ReportsOfOtherSharesContradictEachOther) {
  Groups harness;
  for (const int rank : {0, 1, 2, 3}) {
    wire::MemberReport report = Report(4);
    report.shares = rank == 2 ? 3 : 2;
    ASSERT_TRUE(harness.Come(rank, rank < 2 ? "a" : "b", report).ok());
  }
  EXPECT_THAT(harness.Message(),
              HasSubstr("node groups have 2 shares for rank 0, and 3 for rank 2"));
}

// It is no size that memory is taken for.
TEST(SessionGroupsRecovery, AReportOfMoreSharesThanRanksIsRefused) {
  Groups harness(Shrinking());
  wire::MemberReport report = Report(4);
  report.shares = 5;
  EXPECT_THAT(std::string(harness.Come(0, "a", report).message()),
              HasSubstr("report.shares: is 5; allowed: 0 to 4"));
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
                ElementsAre(wire::StateRequest{.donor = rank == 0}));
  }
  const wire::PayloadRef first = Copy({"v"});
  const wire::PayloadRef second = Copy({"w"});
  Answer(harness, 0, first, true);
  Answer(harness, 2, first, false);
  Answer(harness, 1, second, false);
  Answer(harness, 3, second, false);
  EXPECT_EQ(harness.session.state(), SessionCore::State::kJoining);
  EXPECT_THAT(harness.Sent<wire::StateRequest>(1),
              ElementsAre(wire::StateRequest{}, wire::StateRequest{.donor = true}));
  EXPECT_THAT(harness.Sent<wire::StateRequest>(3), SizeIs(1)) << "it holds the same";
  Answer(harness, 1, second, true);
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
  Answer(harness, 1, Copy({"w"}), false);
  Answer(harness, 2, Copy({"v"}), false);
  Answer(harness, 3, Copy({"w"}, 2), false);
  Answer(harness, 1, Copy({"w"}), true);
  EXPECT_EQ(harness.session.state(), SessionCore::State::kJoining);
  Answer(harness, 3, Copy({"w"}, 2), true);
  EXPECT_THAT(harness.Message(), HasSubstr("ranks 1 and 3 hold different copies of \"q/w\""));
}

// Rank 1 is lost while it is asked for what it alone has given.
TEST_F(Parts, AreAskedForAgainOnANewStream) {
  Groups harness(WithFactors(4));
  harness.ComeAll(Report(4));
  for (const int rank : {0, 2}) Answer(harness, rank, Copy({"v"}), rank == 0);
  for (const int rank : {1, 3}) Answer(harness, rank, Copy({"w"}), false);
  harness.Detach(1);
  ASSERT_TRUE(harness.Attach(1, 4).ok());
  EXPECT_EQ(harness.Sent<wire::StateRequest>(1).back(), wire::StateRequest{});
  Answer(harness, 1, Copy({"w"}), false);
  EXPECT_EQ(harness.Sent<wire::StateRequest>(1).back(), wire::StateRequest{.donor = true});
  Answer(harness, 1, Copy({"w"}), true);
  EXPECT_EQ(harness.session.state(), SessionCore::State::kRunning) << harness.Message();
}

// Rank 2 is alone, and has all.
TEST_F(Parts, ThatOverlapAreComparedToo) {
  for (const float value : {1.0F, 2.0F}) {
    Groups harness(WithFactors(3));
    for (const int rank : {0, 1, 2}) {
      ASSERT_TRUE(harness.Come(rank, rank < 2 ? "a" : "", Report(4)).ok());
    }
    Answer(harness, 0, Copy({"v"}), true);
    Answer(harness, 1, Copy({"w"}), false);
    Answer(harness, 2, Copy({"v", "w"}, value), false);
    Answer(harness, 1, Copy({"w"}), true);
    Answer(harness, 2, Copy({"v", "w"}, value), true);
    EXPECT_EQ(harness.session.state() == SessionCore::State::kRunning, value == 1.0F)
        << harness.Message();
    if (value == 1.0F) continue;
    EXPECT_THAT(harness.Message(), HasSubstr("ranks 0 and 2 hold different copies of \"q/v\""));
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
