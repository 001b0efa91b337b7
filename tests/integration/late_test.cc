// A member that is late with its gradients: the others' step ends without it, and they are part of
// its next one. A real daemon; members are threads.
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "hooks/safetensors.h"
#include "tests/testing/ranks.h"
#include "tests/testing/test_daemon.h"

namespace gradwire {
namespace {

using testing::ExpectAllOk;
using testing::RunRanks;
using testing::TestDaemon;

using Clock = std::chrono::steady_clock;

constexpr int kMembers = 3;
constexpr int kLateRank = 2;
constexpr std::int64_t kLateStep = 11;
constexpr std::int64_t kSteps = 14;
constexpr std::chrono::milliseconds kCompute(20);
constexpr std::chrono::seconds kSleep(6);
constexpr std::chrono::seconds kSooner(4);

// `multiple`: so that the deadline is some tenths of a second, which no other step comes near, also
// on a machine under load.
server::ServerOptions Options(double multiple) {
  return {.on_coordinator_loss = "resume",
          .on_member_loss = "shrink",
          .shrink_after = absl::Seconds(1),
          .straggler_multiple = multiple};
}

// Integers that three members can share without rounding.
float Value(int rank, std::int64_t step, std::size_t i) {
  const auto drawn = static_cast<int>(
      (static_cast<std::size_t>(rank) * 7 + static_cast<std::size_t>(step) * 5 + i * 3) % 23);
  return static_cast<float>(3 * (drawn - 11));
}

// What all members have after a step in which one was late.
float Mean(std::int64_t step, std::size_t i) {
  float sum = 0;
  for (int rank = 0; rank < kMembers; ++rank) {
    const bool missed = rank == kLateRank && step == kLateStep;
    if (!missed) sum += Value(rank, step, i);
  }
  if (step == kLateStep + 1) sum += Value(kLateRank, kLateStep, i);
  return sum / kMembers;
}

// One bucket of a member, which the daemon may read where it lies.
struct Bucket {
  Bucket(Client& client, const ParameterSpec& parameter, bool shared)
      : numel(parameter.numel()), own(shared ? 0 : numel) {
    if (shared) memory = client.AllocateGradients(numel * sizeof(float));
    data = shared ? reinterpret_cast<float*>(memory.get()) : own.data();
    view = std::make_unique<GradBucket>(
        *GradBucket::Make(0, {DType::kFloat32, data, numel}, {parameter}));
  }
  std::size_t numel;
  std::vector<float> own;
  std::shared_ptr<std::byte> memory;
  float* data = nullptr;
  std::unique_ptr<GradBucket> view;
};

struct Seen {
  Clock::duration late_step{};
  std::int64_t missed_steps = 0;
};

absl::Status Train(Client& client, int rank, const std::vector<ParameterSpec>& parameters,
                   bool shared, Seen& seen) {
  std::vector<Bucket> buckets;
  buckets.reserve(parameters.size());
  for (const ParameterSpec& parameter : parameters) buckets.emplace_back(client, parameter, shared);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    std::this_thread::sleep_for(kCompute);
    const Clock::time_point began = Clock::now();
    const bool late = rank == kLateRank && step == kLateStep;
    std::vector<Completion> reduced;
    for (Bucket& bucket : buckets) {
      // Of the first bucket all have a part: it comes before the member is late.
      if (late && reduced.size() == 1) std::this_thread::sleep_for(kSleep);
      for (std::size_t i = 0; i < bucket.numel; ++i) bucket.data[i] = Value(rank, step, i);
      reduced.push_back(client.AllReduce(*bucket.view));
    }
    for (Completion& one : reduced) {
      if (absl::Status status = one.Wait(); !status.ok()) return status;
    }
    const auto verdict = client.EndStep();
    if (!verdict.ok()) return verdict.status();
    if (*verdict != Verdict::kApply) return absl::InternalError("a step is skipped");
    if (step == kLateStep) seen.late_step = Clock::now() - began;
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      for (std::size_t i = 0; i < buckets[b].numel; ++i) {
        float sum = 0;
        for (int r = 0; r < kMembers; ++r) sum += Value(r, step, i);
        const float expected = b == 0 ? sum / kMembers : Mean(step, i);
        if (buckets[b].data[i] == expected) continue;
        return absl::InternalError(absl::StrCat("rank ", rank, " step ", step, " bucket ", b, ": ",
                                                buckets[b].data[i], ", not ", expected));
      }
    }
  }
  seen.missed_steps = client.metrics().missed_steps;
  return client.Barrier();
}

class LateTest : public ::testing::TestWithParam<bool> {};

TEST_P(LateTest, TheOthersGoOnAndItsGradientsCountInTheNextStep) {
  const TestDaemon daemon(Options(100));
  const ClientOptions options{.address = daemon.address(),
                              .session = "s",
                              .world_size = kMembers,
                              .parameters = {{"first", {100}, DType::kFloat32},
                                             {"small", {1000}, DType::kFloat32},
                                             {"large", {100'000}, DType::kFloat32}}};
  std::vector<Seen> seen(kMembers);
  ExpectAllOk(RunRanks(options, [&](Client& client, int rank) {
    return Train(client, rank, options.parameters, GetParam(),
                 seen[static_cast<std::size_t>(rank)]);
  }));
  for (int rank = 0; rank < kMembers; ++rank) {
    const Seen& one = seen[static_cast<std::size_t>(rank)];
    EXPECT_EQ(one.missed_steps, rank == kLateRank ? 1 : 0);
    if (rank == kLateRank) continue;
    EXPECT_LT(one.late_step, kSooner) << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Memory, LateTest, ::testing::Bool(),
                         [](const auto& tested) { return tested.param ? "Shared" : "Own"; });

// ---- A late member that leaves

constexpr std::size_t kFew = 100;

// One step with two buckets, before the second of which the late member sleeps. `result`: the
// second one's.
absl::StatusOr<Verdict> Step(Client& client, int rank, std::int64_t step,
                             const std::vector<ParameterSpec>& parameters,
                             std::vector<float>& result) {
  std::this_thread::sleep_for(kCompute);
  Bucket first(client, parameters[0], /*shared=*/false);
  Bucket second(client, parameters[1], /*shared=*/false);
  std::fill_n(first.data, first.numel, 1.0F);
  Completion begun = client.AllReduce(*first.view);
  if (rank == kLateRank && step == kLateStep) std::this_thread::sleep_for(kSleep);
  for (std::size_t i = 0; i < kFew; ++i) second.data[i] = 2 * Value(rank, step, i);
  Completion ended = client.AllReduce(*second.view);
  for (Completion* one : {&begun, &ended}) {
    if (absl::Status status = one->Wait(); !status.ok()) return status;
  }
  result.assign(second.data, second.data + kFew);
  return client.EndStep();
}

TEST(LateLeaverTest, HandsItsLateGradientsOver) {
  const TestDaemon daemon(Options(100));
  const ClientOptions options{
      .address = daemon.address(),
      .session = "s",
      .world_size = kMembers,
      .parameters = {{"b", {4}, DType::kFloat32}, {"w", {kFew}, DType::kFloat32}}};
  std::barrier<> all(kMembers);
  std::vector<float> late(kFew);  // what the means of the others have beside their own gradients
  ExpectAllOk(RunRanks(options, [&](Client& client, int rank) -> absl::Status {
    std::vector<float> result;
    for (std::int64_t step = 0; step <= kLateStep; ++step) {
      const auto verdict = Step(client, rank, step, options.parameters, result);
      if (!verdict.ok()) return verdict.status();
    }
    if (rank == kLateRank) {
      EXPECT_EQ(client.metrics().missed_steps, 1);
      const auto left = client.HandOverAndLeave(absl::Seconds(10));
      if (!left.ok()) return left.status();
      EXPECT_EQ(left->rank, std::optional(0));
      EXPECT_EQ(left->reason, "");
    }
    all.arrive_and_wait();
    if (rank == kLateRank) return absl::OkStatus();
    for (std::int64_t step = kLateStep + 1; step < kSteps; ++step) {
      const auto verdict = Step(client, rank, step, options.parameters, result);
      if (!verdict.ok()) return verdict.status();
      if (*verdict != Verdict::kApply || rank != 0) continue;
      for (std::size_t i = 0; i < kFew; ++i) {
        late[i] += 2 * (result[i] - Value(0, step, i) - Value(1, step, i));
      }
    }
    return client.Leave();
  }));
  for (std::size_t i = 0; i < kFew; ++i) {
    ASSERT_EQ(late[i], 2 * Value(kLateRank, kLateStep, i)) << i;
  }
}

// ---- PowerSGD

constexpr std::size_t kRows = 20;
constexpr std::size_t kColumns = 16;
constexpr std::size_t kMatrix = kRows * kColumns;

std::vector<double> Residual(Client& client) {
  const HookState state = *ReadSafetensors(*client.StateDict());
  std::vector<double> values(kMatrix);
  for (const StateTensor& tensor : state.tensors) {
    if (tensor.name != "residual/w") continue;
    for (std::size_t i = 0; i < kMatrix; ++i) {
      float value = 0;
      std::memcpy(&value, tensor.data.data() + i * sizeof(float), sizeof(float));
      values[i] = static_cast<double>(value);
    }
  }
  return values;
}

// What each member's matrix was in each step: its gradient, what was late, and its residual before;
// the mean of all, and the residual that was left.
struct Matrices {
  std::vector<double> matrix = std::vector<double>(kMatrix);
  std::vector<double> result = std::vector<double>(kMatrix);
  std::vector<double> residual = std::vector<double>(kMatrix);
};

// A member with residuals misses buckets of a step that it has begun only.
absl::Status TrainPowerSgd(Client& client, int rank, const std::vector<ParameterSpec>& parameters,
                           std::vector<Matrices>& steps) {
  Bucket bias(client, parameters[0], /*shared=*/false);
  Bucket bucket(client, parameters[1], /*shared=*/false);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    Matrices& seen = steps.emplace_back();
    const std::vector<double> before = Residual(client);
    std::this_thread::sleep_for(kCompute);
    const bool late = rank == kLateRank && step == kLateStep;
    std::fill_n(bias.data, bias.numel, 1.0F);
    Completion first = client.AllReduce(*bias.view);
    if (late) std::this_thread::sleep_for(kSleep);
    for (std::size_t i = 0; i < kMatrix; ++i) {
      bucket.data[i] = Value(rank, step, i * i);
      seen.matrix[i] = (late ? 0 : static_cast<double>(bucket.data[i])) + before[i];
      if (rank == kLateRank && step == kLateStep + 1) {
        seen.matrix[i] += static_cast<double>(Value(rank, kLateStep, i * i));
      }
    }
    if (absl::Status status = first.Wait(); !status.ok()) return status;
    if (absl::Status status = client.AllReduce(*bucket.view).Wait(); !status.ok()) return status;
    if (const auto verdict = client.EndStep(); !verdict.ok()) return verdict.status();
    for (std::size_t i = 0; i < kMatrix; ++i) {
      seen.result[i] = static_cast<double>(bucket.data[i]);
    }
    seen.residual = Residual(client);
  }
  return client.Barrier();
}

// With rank 1, M' = u (u^T M) for the mean M of what members contribute and a unit vector u, which
// is the direction of every column of M'. What the mean leaves of a member's matrix is its
// residual, also of one that contributed nothing.
TEST(LatePowerSgdTest, ItsResidualIsWhatTheOthersMeanLeaves) {
  const TestDaemon daemon(Options(400));
  const ClientOptions options{
      .address = daemon.address(),
      .session = "s",
      .world_size = kMembers,
      .parameters = {{"b", {4}, DType::kFloat32}, {"w", {kRows, kColumns}, DType::kFloat32}},
      .hook = *HookSpec::Parse("power_sgd,matrix_approximation_rank=1,start_powerSGD_iter=2")};
  std::vector<std::vector<Matrices>> all(kMembers);
  std::int64_t missed = 0;
  ExpectAllOk(RunRanks(options, [&](Client& client, int rank) {
    absl::Status trained =
        TrainPowerSgd(client, rank, options.parameters, all[static_cast<std::size_t>(rank)]);
    if (rank == kLateRank) missed = client.metrics().missed_steps;
    return trained;
  }));
  EXPECT_EQ(missed, 1);
  for (std::size_t step = 2; step < kSteps; ++step) {
    const bool is_late = step == kLateStep;
    std::vector<double> mean(kMatrix);
    for (std::size_t rank = 0; rank < kMembers; ++rank) {
      if (is_late && rank == kLateRank) continue;
      for (std::size_t i = 0; i < kMatrix; ++i) mean[i] += all[rank][step].matrix[i] / kMembers;
    }
    const std::vector<double>& result = all[0][step].result;
    std::vector<double> direction(kRows);
    double norm = 0;
    for (std::size_t r = 0; r < kRows; ++r) {
      for (std::size_t c = 0; c < kColumns; ++c)
        direction[r] += result[r * kColumns + c] * static_cast<double>(c + 1);
      norm += direction[r] * direction[r];
    }
    for (std::size_t c = 0; c < kColumns; ++c) {
      double along = 0;
      for (std::size_t r = 0; r < kRows; ++r) {
        along += direction[r] * mean[r * kColumns + c] / std::sqrt(norm);
      }
      for (std::size_t r = 0; r < kRows; ++r) {
        ASSERT_NEAR(result[r * kColumns + c], direction[r] / std::sqrt(norm) * along, 1e-3)
            << "step " << step;
      }
    }
    for (std::size_t rank = 0; rank < kMembers; ++rank) {
      const Matrices& member = all[rank][step];
      EXPECT_EQ(member.result, result);
      for (std::size_t i = 0; i < kMatrix; ++i) {
        ASSERT_NEAR(member.residual[i], member.matrix[i] - member.result[i], 1e-3)
            << "rank " << rank << ", step " << step;
      }
    }
  }
}

}  // namespace
}  // namespace gradwire
