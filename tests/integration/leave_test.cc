// Members that leave before the others, and what becomes of their residuals. Members are threads.
#include <array>
#include <barrier>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "hooks/safetensors.h"
#include "server/ctl/calls.h"
#include "server/ctl/ledger.h"
#include "server/ctl/shards.h"
#include "tests/testing/fault_relay.h"
#include "tests/testing/gradients.h"
#include "tests/testing/ranks.h"
#include "tests/testing/test_daemon.h"

namespace gradwire {
namespace {

using ::gradwire::testing::Eventually;
using ::gradwire::testing::ExpectAllOk;
using ::gradwire::testing::FaultRelay;
using ::gradwire::testing::Gradients;
using ::gradwire::testing::MakeParameter;
using ::gradwire::testing::RunRanks;
using ::gradwire::testing::TestDaemon;
using ::testing::HasSubstr;

constexpr int kMembers = 3;
constexpr int kLeaver = 2;
constexpr int kStepsBefore = 4;
constexpr int kStepsAfter = 3;

std::vector<ParameterSpec> Model() {
  return {{.name = "u", .shape = {300, 200}, .dtype = DType::kFloat32},
          {.name = "v", .shape = {90, 400}, .dtype = DType::kFloat32},
          MakeParameter("b", 7)};
}

std::map<std::string, std::vector<float>> ResidualsOf(Client& client) {
  std::map<std::string, std::vector<float>> residuals;
  const auto file = client.StateDict();
  EXPECT_TRUE(file.ok()) << file.status();
  const auto state = ReadSafetensors(*file);
  EXPECT_TRUE(state.ok()) << state.status();
  for (const StateTensor& tensor : state->tensors) {
    std::vector<float>& values = residuals[tensor.name];
    values.resize(tensor.data.size() / sizeof(float));
    std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  }
  return residuals;
}

absl::Status Step(Client& client, int rank, int step) {
  Gradients gradients(Model());
  gradients.Fill(rank, step);
  GradBucket bucket = gradients.Bucket();
  if (absl::Status reduced = client.AllReduce(bucket).Wait(); !reduced.ok()) return reduced;
  return client.EndStep().status();
}

struct Case {
  const char* name;
  int daemons;
  const char* on_member_loss;
  const char* hook;
};

class LeaveTest : public ::testing::TestWithParam<Case> {
 protected:
  LeaveTest() {
    for (int i = 0; i < GetParam().daemons; ++i) {
      server::ServerOptions options;
      options.ledger = true;
      options.on_coordinator_loss = "resume";
      options.on_member_loss = GetParam().on_member_loss;
      options.shrink_after = absl::Seconds(1);
      daemons_.push_back(std::make_unique<TestDaemon>(options));
      absl::StrAppend(&options_.address, i == 0 ? "" : ",", daemons_.back()->address());
    }
    options_.session = "leave";
    options_.world_size = kMembers;
    options_.parameters = Model();
    options_.hook = *HookSpec::Parse(GetParam().hook);
    options_.join_timeout = options_.step_timeout = absl::Seconds(20);
  }

  bool shrinks() const { return std::string(GetParam().on_member_loss) == "shrink"; }

  absl::StatusOr<v1::LedgerStatus> Ledger() const {
    std::vector<v1::SessionStatus> parts;
    for (const auto& daemon : daemons_) {
      auto part =
          ctl::GetSession({.address = daemon->address(), .timeout = absl::Seconds(10)}, "leave");
      if (!part.ok()) return part.status();
      parts.push_back(*std::move(part));
    }
    return ctl::LedgerOf(ctl::MergeShards(std::move(parts)));
  }

  std::vector<std::unique_ptr<TestDaemon>> daemons_;
  ClientOptions options_;
};

// Another process in the leaver's place, if the others wait for it.
absl::Status Succeed(ClientOptions options, int rank = kLeaver) {
  options.rank = rank;
  auto client = Client::Join(options);
  if (!client.ok()) return client.status();
  const auto change = (*client)->membership_change();
  if (!change) return absl::InternalError("the newcomer was not told that it is one");
  char model = 0;
  if (auto healed = (*client)->Broadcast(change->root, &model, 1); !healed.ok()) return healed;
  for (int step = 0; step < kStepsAfter; ++step) {
    if (absl::Status done = Step(**client, rank, 100 + step); !done.ok()) return done;
  }
  return (*client)->Leave();
}

// After the leave the others are in a step that is dropped at most once.
absl::Status GoOn(Client& client, int rank) {
  for (int step = 0; step < kStepsAfter; ++step) {
    if (absl::Status done = Step(client, rank, 100 + step); !done.ok()) return done;
    const auto change = client.membership_change();
    if (!change || change->newcomers.empty()) continue;
    char model = 'm';
    if (auto healed = client.Broadcast(change->root, &model, 1); !healed.ok()) return healed;
    step = -1;  // as the newcomer
  }
  return client.Leave();
}

TEST_P(LeaveTest, ResidualsGoToAnotherMember) {
  std::map<std::string, std::vector<float>> given;
  std::map<std::string, std::vector<float>> before;
  std::map<std::string, std::vector<float>> after;
  std::barrier<> all(kMembers);
  std::jthread successor;
  ExpectAllOk(RunRanks(options_, [&](Client& client, int rank) -> absl::Status {
    for (int step = 0; step < kStepsBefore; ++step) {
      if (absl::Status done = Step(client, rank, step); !done.ok()) return done;
    }
    if (rank == kLeaver) given = ResidualsOf(client);
    if (rank == 0) before = ResidualsOf(client);
    all.arrive_and_wait();
    if (rank == kLeaver) {
      const auto left = client.HandOverAndLeave(absl::Seconds(10));
      if (!left.ok()) return left.status();
      EXPECT_EQ(left->reason, "");
      EXPECT_EQ(left->rank, GetParam().hook == std::string("no") ? std::nullopt : std::optional(0));
    }
    all.arrive_and_wait();
    if (rank == 0) after = ResidualsOf(client);
    all.arrive_and_wait();
    if (rank != kLeaver) return GoOn(client, rank);
    if (shrinks()) return absl::OkStatus();
    successor = std::jthread([this] { EXPECT_EQ(Succeed(options_), absl::OkStatus()); });
    return absl::OkStatus();
  }));
  if (successor.joinable()) successor.join();

  // In float32, each element added once.
  EXPECT_EQ(given.empty(), GetParam().hook == std::string("no"));
  for (const auto& [name, values] : given) {
    ASSERT_EQ(after[name].size(), values.size()) << name;
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(after[name][i], before[name][i] + values[i]) << name << ", " << i;
    }
  }
  const auto ledger = Ledger();
  ASSERT_TRUE(ledger.ok()) << ledger.status();
  EXPECT_TRUE(ctl::Closes(*ledger)) << ledger->DebugString();
  EXPECT_EQ(ledger->incomplete(), "");
  for (const auto& row : ledger->rows()) {
    EXPECT_NEAR(row.row().lost(), 0, 1e-9 * std::sqrt(row.row().contributed_squares()))
        << row.name();
  }
}

constexpr char kPowerSgd[] = "power_sgd,start_powerSGD_iter=1,matrix_approximation_rank=2";
INSTANTIATE_TEST_SUITE_P(All, LeaveTest,
                         ::testing::Values(Case{"Shrink", 1, "shrink", kPowerSgd},
                                           Case{"ShrinkShards", 2, "shrink", kPowerSgd},
                                           Case{"Wait", 1, "wait", kPowerSgd},
                                           Case{"WaitShards", 2, "wait", kPowerSgd},
                                           Case{"NothingToHandOver", 1, "shrink", "no"}),
                         [](const ::testing::TestParamInfo<Case>& tested) {
                           return std::string(tested.param.name);
                         });

double SumOf(const std::map<std::string, std::vector<float>>& residuals) {
  double sum = 0;
  for (const auto& [name, values] : residuals)
    sum += std::accumulate(values.begin(), values.end(), 0.0);
  return sum;
}

// While one makes a file of its residuals, the other's may come, which would not be in the file.
TEST(Leave, WhoLeavesJustWhenAnotherDoesLosesNothing) {
  constexpr int kTries = 6;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    server::ServerOptions shrinks;
    shrinks.on_coordinator_loss = "resume";
    shrinks.on_member_loss = "shrink";
    shrinks.shrink_after = absl::Seconds(1);
    TestDaemon daemon(shrinks);
    ClientOptions options{.address = daemon.address(),
                          .session = "leave",
                          .world_size = 5,
                          .parameters = {{.name = "u", .shape = {2000, 1000}}},
                          .join_timeout = absl::Seconds(20),
                          .step_timeout = absl::Seconds(20)};
    options.hook = *HookSpec::Parse(kPowerSgd);
    std::barrier<> all(options.world_size);
    std::array<double, 5> before{};
    std::array<double, 5> after{};
    ExpectAllOk(RunRanks(options, [&](Client& client, int rank) -> absl::Status {
      for (int step = 0; step < kStepsBefore; ++step) {
        Gradients gradients(options.parameters);
        gradients.Fill(rank, step);
        GradBucket bucket = gradients.Bucket();
        absl::Status done = client.AllReduce(bucket).Wait();
        if (done.ok()) done = client.EndStep().status();
        if (!done.ok()) return done;
      }
      before.at(static_cast<std::size_t>(rank)) = SumOf(ResidualsOf(client));
      all.arrive_and_wait();
      absl::Status left;
      if (rank < 2) {
        // Rank 1 asks rank 0 first, which begins a little later.
        if (rank == 0) absl::SleepFor(absl::Milliseconds(4 * attempt));
        const auto given = client.HandOverAndLeave(absl::InfiniteDuration());
        left = given.status();
        EXPECT_EQ(given.ok() ? given->reason : "", "");
      }
      all.arrive_and_wait();
      if (rank >= 2) after.at(static_cast<std::size_t>(rank)) = SumOf(ResidualsOf(client));
      all.arrive_and_wait();
      return rank < 2 ? left : client.Leave();
    }));
    const double sum = std::accumulate(before.begin(), before.end(), 0.0);
    EXPECT_NEAR(std::accumulate(after.begin(), after.end(), 0.0), sum, 1e-3 * (1 + std::abs(sum)))
        << "attempt " << attempt;
  }
}

// Nobody has begun another step, so that the daemon cannot tell whether the training is over.
TEST(Leave, AMemberThatIsLostAfterwardsHasASuccessorToo) {
  server::ServerOptions waits;
  waits.on_coordinator_loss = "resume";
  waits.on_member_loss = "wait";
  TestDaemon daemon(waits);
  const auto relay = FaultRelay::Start(daemon.Path("relay"), daemon.socket());
  ASSERT_TRUE(relay.ok()) << relay.status();
  const ClientOptions options{.address = daemon.address(),
                              .session = "leave",
                              .world_size = kMembers,
                              .parameters = Model(),
                              .join_timeout = absl::Seconds(20),
                              .step_timeout = absl::Seconds(20)};
  constexpr int kLost = 1;
  std::barrier<> all(kMembers);
  std::vector<std::jthread> successors;
  const auto ended = RunRanks(
      options,
      [&](Client& client, int rank) -> absl::Status {
        if (absl::Status done = Step(client, rank, 0); !done.ok()) return done;
        all.arrive_and_wait();
        absl::Status left = rank == kLeaver ? client.Leave() : absl::OkStatus();
        all.arrive_and_wait();
        if (rank == kLost) {
          (*relay)->Refuse(true);
          (*relay)->CutNow();
        }
        if (rank != 0) return left;
        EXPECT_TRUE(Eventually([&] { return client.metrics().rejoins > 0; }));
        for (const int lost : {kLost, kLeaver}) {
          successors.emplace_back(
              [&options, lost] { EXPECT_EQ(Succeed(options, lost), absl::OkStatus()); });
        }
        return GoOn(client, rank);
      },
      [&](ClientOptions& own, int rank) {
        if (rank == kLost) own.address = (*relay)->address();
      });
  ExpectAllOk(ended);
}

// A session that ends with a member has nobody who would contribute in its place.
TEST(Leave, WithoutAPolicyNobodyTakesThem) {
  TestDaemon daemon(server::ServerOptions{});
  ClientOptions options{.address = daemon.address(),
                        .session = "leave",
                        .world_size = 2,
                        .parameters = Model(),
                        .join_timeout = absl::Seconds(20),
                        .step_timeout = absl::Seconds(20)};
  options.hook = *HookSpec::Parse(kPowerSgd);
  std::barrier<> all(2);
  ExpectAllOk(RunRanks(options, [&](Client& client, int rank) -> absl::Status {
    for (int step = 0; step < kStepsBefore; ++step) {
      if (absl::Status done = Step(client, rank, step); !done.ok()) return done;
    }
    all.arrive_and_wait();
    if (rank == 0) return client.Leave();
    const auto left = client.HandOverAndLeave(absl::Seconds(10));
    if (!left.ok()) return left.status();
    EXPECT_EQ(left->rank, std::nullopt);
    EXPECT_THAT(left->reason, HasSubstr("the session ends with a member that leaves"));
    EXPECT_EQ(Step(client, rank, kStepsBefore).code(), absl::StatusCode::kFailedPrecondition);
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace gradwire
