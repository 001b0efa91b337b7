// What a step's end tells members beside its verdict, behind one daemon, several, and leaves: whose
// parameters differ, and why the step was skipped. Members are threads.
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "tests/testing/gradients.h"
#include "tests/testing/ranks.h"
#include "tests/testing/test_daemon.h"

namespace gradwire {
namespace {

using ::gradwire::testing::ExpectAllOk;
using ::gradwire::testing::Gradients;
using ::gradwire::testing::MakeParameter;
using ::gradwire::testing::RunRanks;
using ::gradwire::testing::TestDaemon;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kMembers = 4;
enum class Topology { kOneDaemon, kShards, kLeaves, kLeavesOfShards };

std::string NameOf(const ::testing::TestParamInfo<Topology>& info) {
  switch (info.param) {
    case Topology::kOneDaemon:
      return "OneDaemon";
    case Topology::kShards:
      return "Shards";
    case Topology::kLeaves:
      return "Leaves";
    case Topology::kLeavesOfShards:
      break;
  }
  return "LeavesOfShards";
}

const std::vector<ParameterSpec> kModel = {MakeParameter("w", 300'000), MakeParameter("b", 7)};

class DriftTest : public ::testing::TestWithParam<Topology> {
 protected:
  DriftTest() {
    const bool shards = GetParam() == Topology::kShards || GetParam() == Topology::kLeavesOfShards;
    for (int i = 0; i < (shards ? 2 : 1); ++i) {
      roots_.push_back(std::make_unique<TestDaemon>());
      absl::StrAppend(&root_address_, i == 0 ? "" : ",", roots_.back()->address());
    }
    if (!has_leaves()) return;
    for (int i = 0; i < kMembers / 2; ++i) {
      server::ServerOptions options;
      options.upstream = root_address_;
      leaves_.push_back(std::make_unique<TestDaemon>(options));
    }
  }

  bool has_leaves() const {
    return GetParam() == Topology::kLeaves || GetParam() == Topology::kLeavesOfShards;
  }

  std::vector<absl::Status> Run(const std::function<absl::Status(Client&, int)>& member) const {
    const ClientOptions options = {.session = "drift",
                                   .world_size = kMembers,
                                   .parameters = kModel,
                                   .join_timeout = absl::Seconds(20),
                                   .step_timeout = absl::Seconds(20)};
    return RunRanks(options, member, [this](ClientOptions& own, int rank) {
      own.address = root_address_;
      if (leaves_.empty()) return;
      own.address = leaves_[static_cast<std::size_t>(rank) / 2]->address();
      own.local_rank = rank % 2;
      own.local_world_size = 2;
    });
  }

  std::string root_address_;
  std::vector<std::unique_ptr<TestDaemon>> roots_;
  std::vector<std::unique_ptr<TestDaemon>> leaves_;
};

absl::StatusOr<Verdict> Step(Client& client, Gradients& gradients) {
  GradBucket bucket = gradients.Bucket();
  if (absl::Status status = client.AllReduce(bucket).Wait(); !status.ok()) return status;
  return client.EndStep();
}

class DriftOfOneTest : public DriftTest {
 protected:
  void Expect(int drifting);
};

void DriftOfOneTest::Expect(int drifting) {
  ExpectAllOk(Run([drifting](Client& client, int rank) -> absl::Status {
    std::vector<float> parameters(1000, 0.5F);
    for (int step = 0; step < 5; ++step) {
      if (step == 3 && rank == drifting) parameters[999] += 1e-7F;
      if (step % 2 == 0) {
        absl::Status asked =
            client.CheckParameters(ParameterDigest({std::as_bytes(std::span(parameters))}));
        if (!asked.ok()) return asked;
      }
      Gradients gradients(kModel);
      gradients.Fill(rank, step);
      const absl::StatusOr<Verdict> verdict = Step(client, gradients);
      if (!verdict.ok()) return verdict.status();
      EXPECT_EQ(*verdict, Verdict::kApply);
      const std::string drift = client.parameter_drift();
      if (step < 4) {
        EXPECT_EQ(drift, "") << "step " << step;
      } else {
        // A leaf of two members has no majority, and its members learn of no other leaf's.
        EXPECT_THAT(drift, HasSubstr("since a step between 2 and 4"));
        if (client.metrics().leaf) {
          EXPECT_THAT(drift, rank < 2 ? HasSubstr("leaf") : HasSubstr(": rank 2; rank 3"));
        } else {
          EXPECT_THAT(drift, HasSubstr(absl::StrCat("the parameters of rank ", drifting,
                                                    " have differed from the others'")));
        }
      }
    }
    return client.Leave();
  }));
}

TEST_P(DriftOfOneTest, IsNamedToAll) { Expect(2); }

// Behind leaves the lowest rank of its node has the others' parameters.
TEST_P(DriftOfOneTest, IsNamedToAllIfItIsTheLast) { Expect(3); }

TEST_P(DriftTest, InTheMiddleOfAStepItIsTooLate) {
  ExpectAllOk(Run([](Client& client, int rank) -> absl::Status {
    Gradients gradients(kModel);
    gradients.Fill(rank, 0);
    GradBucket bucket = gradients.Bucket();
    const Completion reduced = client.AllReduce(bucket);
    const absl::Status late = client.CheckParameters(1);
    if (!reduced.Wait().ok()) return reduced.Wait();
    // If the step has ended meanwhile, there was nobody to ask.
    if (!late.ok()) {
      EXPECT_THAT(std::string(late.message()), HasSubstr("in the middle of step 0"));
    }
    if (const auto verdict = client.EndStep(); !verdict.ok()) return verdict.status();
    EXPECT_EQ(client.parameter_drift(), "");
    EXPECT_TRUE(client.CheckParameters(1).ok());
    return client.Leave();
  }));
}

// The first half of w is on another daemon than the rest, where there are two.
TEST_P(DriftTest, ASkipNamesItsSourceWhicheverDaemonSawIt) {
  for (const std::size_t place : {std::size_t{3}, std::size_t{299'990}}) {
    ExpectAllOk(Run([this, place](Client& client, int rank) -> absl::Status {
      Gradients gradients(kModel);
      gradients.Fill(rank, 0);
      if (rank == 3) gradients.Poison(place);
      const absl::StatusOr<Verdict> verdict = Step(client, gradients);
      if (!verdict.ok()) return verdict.status();
      EXPECT_EQ(*verdict, Verdict::kSkip);
      EXPECT_THAT(client.skip_reason(),
                  AllOf(HasSubstr("contributed"), HasSubstr("NaN, first in \"w\""),
                        HasSubstr(has_leaves() ? "ranks 2 to 3" : "rank 3")));
      return client.Leave();
    }));
  }
}

constexpr Topology kTopologies[] = {Topology::kOneDaemon, Topology::kShards, Topology::kLeaves,
                                    Topology::kLeavesOfShards};
INSTANTIATE_TEST_SUITE_P(All, DriftTest, ::testing::ValuesIn(kTopologies), NameOf);
INSTANTIATE_TEST_SUITE_P(All, DriftOfOneTest, ::testing::ValuesIn(kTopologies), NameOf);

}  // namespace
}  // namespace gradwire
