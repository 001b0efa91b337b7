// The ledger of sessions behind one daemon, several, and leaves. Members are threads.
#include "server/ctl/ledger.h"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "server/ctl/calls.h"
#include "server/ctl/shards.h"
#include "tests/testing/gradients.h"
#include "tests/testing/ranks.h"
#include "tests/testing/test_daemon.h"

namespace gradwire {
namespace {

using ::gradwire::testing::ExpectAllOk;
using ::gradwire::testing::Gradients;
using ::gradwire::testing::GradientValue;
using ::gradwire::testing::MakeParameter;
using ::gradwire::testing::RunRanks;
using ::gradwire::testing::TestDaemon;

constexpr int kMembers = 4;
constexpr int kSteps = 6;
constexpr int kPoisonedStep = 3;
constexpr int kPoisonedRank = 1;
constexpr std::size_t kWeights = 300'000;
constexpr std::size_t kBiases = 7;

struct Case {
  const char* name;
  int daemons;
  bool leaves;
  const char* loss;  // on_coordinator_loss
  const char* hook;
};

class LedgerTest : public ::testing::TestWithParam<Case> {
 protected:
  LedgerTest() {
    for (int i = 0; i < GetParam().daemons; ++i) {
      server::ServerOptions options;
      options.ledger = true;
      options.on_coordinator_loss = GetParam().loss;
      roots_.push_back(std::make_unique<TestDaemon>(options));
      absl::StrAppend(&address_, i == 0 ? "" : ",", roots_.back()->address());
    }
    for (int i = 0; GetParam().leaves && i < kMembers / 2; ++i) {
      server::ServerOptions options;
      options.ledger = true;
      options.upstream = address_;
      leaves_.push_back(std::make_unique<TestDaemon>(options));
    }
  }

  std::vector<absl::Status> Train() const {
    const auto train = [](Client& client, int rank) -> absl::Status {
      for (int step = 0; step < kSteps; ++step) {
        Gradients gradients({MakeParameter("w", kWeights), MakeParameter("b", kBiases)});
        gradients.Fill(rank, step);
        const bool poisons = step == kPoisonedStep && rank == kPoisonedRank;
        if (poisons) gradients.Poison(0);
        GradBucket bucket = gradients.Bucket();
        if (absl::Status reduced = client.AllReduce(bucket).Wait(); !reduced.ok()) return reduced;
        const auto verdict = client.EndStep();
        if (!verdict.ok()) return verdict.status();
        EXPECT_EQ(*verdict, step == kPoisonedStep ? Verdict::kSkip : Verdict::kApply);
      }
      return client.Leave();
    };
    ClientOptions options{.session = "ledger",
                          .world_size = kMembers,
                          .parameters = {MakeParameter("w", kWeights), MakeParameter("b", kBiases)},
                          .join_timeout = absl::Seconds(20),
                          .step_timeout = absl::Seconds(20)};
    options.hook = *HookSpec::Parse(GetParam().hook);
    return RunRanks(options, train, [this](ClientOptions& own, int rank) {
      own.address = address_;
      if (leaves_.empty()) return;
      own.address = leaves_[static_cast<std::size_t>(rank) / 2]->address();
      own.local_rank = rank % 2;
      own.local_world_size = 2;
    });
  }

  absl::StatusOr<v1::LedgerStatus> Ask() const {
    std::vector<v1::SessionStatus> parts;
    for (const auto& root : roots_) {
      auto part =
          ctl::GetSession({.address = root->address(), .timeout = absl::Seconds(10)}, "ledger");
      if (!part.ok()) return part.status();
      parts.push_back(*std::move(part));
    }
    return ctl::LedgerOf(ctl::MergeShards(std::move(parts)));
  }

  std::string address_;
  std::vector<std::unique_ptr<TestDaemon>> roots_;
  std::vector<std::unique_ptr<TestDaemon>> leaves_;
};

// Over all members and steps: of these biases every element is read.
double SquaresOfBiases(bool of_poisoned_step) {
  double sum = 0;
  for (int rank = 0; rank < kMembers; ++rank) {
    for (int step = 0; step < kSteps; ++step) {
      if (of_poisoned_step && step != kPoisonedStep) continue;
      for (std::size_t i = 0; i < kBiases; ++i) {
        sum += std::pow(GradientValue(rank, step, kWeights + i), 2);
      }
    }
  }
  return sum;
}

TEST_P(LedgerTest, HasAllGradientsAndCloses) {
  ExpectAllOk(Train());
  const auto ledger = Ask();
  ASSERT_TRUE(ledger.ok()) << ledger.status();
  ASSERT_EQ(ledger->rows_size(), 2);
  EXPECT_TRUE(ctl::Closes(*ledger)) << ledger->DebugString();
  EXPECT_EQ(ledger->incomplete(), "");
  EXPECT_EQ(ledger->silent_size(), 0);
  EXPECT_EQ(ledger->rows(0).name(), "w");
  const v1::LedgerRow& biases = ledger->rows(1).row();
  EXPECT_GT(biases.skipped_squares(), 0);
  EXPECT_EQ(biases.dropped_squares(), 0);
  EXPECT_EQ(biases.lost_squares(), 0);
  EXPECT_EQ(ledger->rows(0).row().residual_squares() > 0,
            HookSpec::Parse(GetParam().hook)->comm_hook == "power_sgd");
  // Where members say READY, the daemon has the last step's accounts before its end.
  if (GetParam().leaves || std::string(GetParam().loss) == "fail") return;
  EXPECT_EQ(ledger->settled(), kSteps - 1);
  EXPECT_NEAR(biases.contributed_squares(), SquaresOfBiases(false), 1e-5);
  EXPECT_NEAR(biases.skipped_squares(), SquaresOfBiases(true), 1e-6);
}

constexpr char kPowerSgd[] = "power_sgd,start_powerSGD_iter=1";

INSTANTIATE_TEST_SUITE_P(All, LedgerTest,
                         ::testing::Values(Case{"OneDaemon", 1, false, "fail", "no"},
                                           Case{"OneDaemonThatMayBeLost", 1, false, "resume", "no"},
                                           Case{"OneDaemonPowerSgd", 1, false, "resume", kPowerSgd},
                                           Case{"OneDaemonFp16", 1, false, "resume", "fp16"},
                                           Case{"Shards", 2, false, "resume", "no"},
                                           Case{"ShardsThatEndTogether", 2, false, "fail", "no"},
                                           Case{"ShardsPowerSgd", 2, false, "resume", kPowerSgd},
                                           Case{"Leaves", 1, true, "fail", kPowerSgd},
                                           Case{"LeavesOfShards", 2, true, "fail", "no"}),
                         [](const ::testing::TestParamInfo<Case>& tested) {
                           return std::string(tested.param.name);
                         });

}  // namespace
}  // namespace gradwire
