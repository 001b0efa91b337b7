// Who is named when members' parameters differ, and since when.
#include "server/core/parameter_drift.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/server/core/session_harness.h"

namespace gradwire::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::uint64_t kGeneration = 7;

class Drift : public SessionHarness {
 public:
  explicit Drift(int members) : SessionHarness(SmallOptions(members)) { Start(); }

  void Tell(int rank, std::uint64_t digest) {
    Receive(rank, wire::ParameterDigest{
                      .step = session.step(), .generation = kGeneration, .digest = digest});
  }
  // A step in whose beginning members say these digests; 0: nothing. What each is told at its end.
  std::string Step(const std::vector<std::uint64_t>& digests) {
    const int members = session.options().world_size;
    for (std::size_t i = 0; i < digests.size(); ++i) {
      if (digests[i] != 0) Tell(static_cast<int>(i), digests[i]);
    }
    for (int rank = 0; rank < members; ++rank) EndStep(rank);
    const std::string said = Sent<wire::StepDone>(0).back().drift;
    for (int rank = 1; rank < members; ++rank) {
      EXPECT_EQ(Sent<wire::StepDone>(rank).back().drift, said);
    }
    return said;
  }
  void Steps(int count) {
    for (int i = 0; i < count; ++i) Step({});
  }
};

TEST(ParameterDrift, NamesTheMinoritySinceTheLastStepWithTheSame) {
  Drift members(4);
  EXPECT_EQ(members.Step({5, 5, 5, 5}), "");
  members.Steps(9);
  EXPECT_EQ(members.Step({6, 6, 6, 6}), "");
  members.Steps(9);
  EXPECT_EQ(
      members.Step({7, 7, 7, 8}),
      "the parameters of rank 3 have differed from the others' since a step between 10 and 20");
  EXPECT_EQ(members.Step({}), "") << "no digest was sent";
  const std::string torn =
      "no majority of members has had the same parameters since a step between 10 and 20: rank 0 "
      "and rank 2; rank 1; rank 3";
  EXPECT_EQ(members.Step({7, 9, 7, 8}), torn) << "it began there";
  EXPECT_EQ(members.session.progress().last_drift(), "step 22: " + torn);
  EXPECT_EQ(members.Step({7, 7, 7, 7}), "") << "it was mended";
  EXPECT_EQ(
      members.Step({7, 8, 7, 7}),
      "the parameters of rank 1 have differed from the others' since a step between 23 and 24");
}

TEST(ParameterDrift, OfTwoMembersNobodyIsRight) {
  Drift members(2);
  EXPECT_EQ(
      members.Step({1, 2}),
      "no majority of members has had the same parameters since before step 0: rank 0; rank 1");
}

TEST(ParameterDrift, NamesAFewOfMany) {
  Drift members(40);
  std::vector<std::uint64_t> digests(40, 1);
  for (std::size_t rank = 0; rank < 12; ++rank) digests[rank] = 100 + rank;
  EXPECT_EQ(
      members.Step(digests),
      "the parameters of rank 0, rank 1, rank 2, rank 3, rank 4, rank 5, rank 6, rank 7 and 4 "
      "more have differed from the others' since before step 0");
}

TEST(ParameterDrift, ComparesThoseWhoSaySomething) {
  Drift members(3);
  EXPECT_EQ(members.Step({0, 4, 4}), "");
  EXPECT_THAT(members.logged,
              testing::Contains(HasSubstr("step 0: rank 1 and rank 2 sent a digest of their "
                                          "parameters, and other members did not")));
  const std::size_t logs = members.logged.size();
  EXPECT_EQ(members.Step({0, 4, 4}), "");
  EXPECT_THAT(members.logged, SizeIs(logs)) << "it is said once";
  EXPECT_EQ(members.Step({0, 0, 4}), "") << "there is none to compare it with";
}

TEST(ParameterDrift, TakesWhatAResumeRepeatsAndRefusesWhatIsToCome) {
  Drift members(2);
  members.Tell(0, 4);
  members.Detach(0);
  ASSERT_TRUE(members.Attach(0).ok());
  EXPECT_EQ(members.Step({4, 4}), "");
  members.Receive(0, wire::ParameterDigest{.step = 0, .generation = kGeneration, .digest = 9});
  EXPECT_EQ(members.Step({}), "") << "it is of a step that is over";
  members.Receive(1, wire::ParameterDigest{.step = 9, .generation = kGeneration, .digest = 9});
  EXPECT_THAT(
      members.Message(),
      HasSubstr("rank 1: sent a digest of its parameters in step 9; the session is at step"));
}

TEST(ParameterDrift, OfAnotherGenerationIsRefused) {
  Drift members(2);
  members.Receive(1, wire::ParameterDigest{.step = 0, .generation = 3, .digest = 9});
  EXPECT_THAT(members.Message(), HasSubstr("sent a digest of its parameters of generation 3"));
}

}  // namespace
}  // namespace gradwire::server
