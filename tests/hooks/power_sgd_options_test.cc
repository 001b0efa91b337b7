#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gradwire/hooks/registry.h"
#include "gtest/gtest.h"
#include "hooks/power_sgd/layout.h"
#include "hooks/power_sgd/options.h"

namespace gradwire {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(PowerSgdOptions, HaveTorchsDefaults) {
  const auto options = PowerSgdOptions::FromSpec(*HookSpec::Parse("power_sgd"));
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->matrix_approximation_rank, 1);
  EXPECT_EQ(options->start_powerSGD_iter, 1000);
  EXPECT_EQ(options->min_compression_rate, 2);
  EXPECT_EQ(options->error_feedback, ErrorFeedback::kAggregate);
  EXPECT_TRUE(options->warm_start);
  EXPECT_EQ(options->orthogonalization_epsilon, 0);
  EXPECT_EQ(options->random_seed, 0U);
  EXPECT_EQ(options->compression_stats_logging_frequency, 10000);
  EXPECT_FALSE(options->batch_tensors_with_same_shape);
  EXPECT_EQ(options->rounds, 2);
  EXPECT_FALSE(options->batched);
}

TEST(PowerSgdOptions, TakeEveryOption) {
  const auto spec = HookSpec::Parse(
      "batched_power_sgd,comm_wrapper=bf16,matrix_approximation_rank=4,start_powerSGD_iter=7,"
      "min_compression_rate=0.5,use_error_feedback=false,warm_start=true,"
      "orthogonalization_epsilon=1e-8,random_seed=4294967295,"
      "compression_stats_logging_frequency=1,batch_tensors_with_same_shape=true,rounds=1");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto options = PowerSgdOptions::FromSpec(*spec);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->matrix_approximation_rank, 4);
  EXPECT_EQ(options->start_powerSGD_iter, 7);
  EXPECT_EQ(options->min_compression_rate, 0.5);
  EXPECT_EQ(options->error_feedback, ErrorFeedback::kNone);
  EXPECT_EQ(options->orthogonalization_epsilon, 1e-8);
  EXPECT_EQ(options->random_seed, 4294967295U);
  EXPECT_TRUE(options->batch_tensors_with_same_shape);
  EXPECT_EQ(options->rounds, 1);
  EXPECT_TRUE(options->batched);
  EXPECT_EQ(options->wire, DType::kBFloat16);
}

struct BadOption {
  std::string text;
  std::string value;
  std::string allowed;
};

TEST(PowerSgdOptions, RefuseByNameValueAndRange) {
  const std::vector<BadOption> bad = {
      {"matrix_approximation_rank=0", "0", "integers from 1 to 1024"},
      {"matrix_approximation_rank=-1", "-1", "integers from 1 to 1024"},
      {"matrix_approximation_rank=1025", "1025", "integers from 1 to 1024"},
      {"matrix_approximation_rank=1.5", "1.5", "integers from 1 to 1024"},
      {"matrix_approximation_rank=true", "true", "integers from 1 to 1024"},
      {"start_powerSGD_iter=-1", "-1", "integers from 0"},
      {"start_powerSGD_iter=ten", "\"ten\"", "integers from 0"},
      {"min_compression_rate=0", "0", "finite numbers above 0"},
      {"min_compression_rate=-2.0", "-2", "finite numbers above 0"},
      {"min_compression_rate=inf", "inf", "finite numbers above 0"},
      {"use_error_feedback=1", "1", "true, false"},
      {"warm_start=yes", "\"yes\"", "true, false"},
      {"orthogonalization_epsilon=-1e-9", "-1e-09", "finite numbers from 0"},
      {"random_seed=4294967296", "4294967296", "integers from 0 to 4294967295"},
      {"random_seed=-1", "-1", "integers from 0 to 4294967295"},
      {"compression_stats_logging_frequency=0", "0", "integers from 1"},
      {"batch_tensors_with_same_shape=2", "2", "true, false"},
      {"error_feedback=global", "\"global\"", "\"aggregate\", \"local\""},
      {"rounds=3", "3", "integers from 1 to 2"},
  };
  for (const char* hook : {"power_sgd", "batched_power_sgd"}) {
    for (const BadOption& option : bad) {
      const auto spec = HookSpec::Parse(std::string(hook) + "," + option.text);
      const std::string name = option.text.substr(0, option.text.find('='));
      ASSERT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument) << option.text;
      EXPECT_THAT(std::string(spec.status().message()),
                  AllOf(HasSubstr("\"" + name + "\""), HasSubstr(option.value + " is not allowed"),
                        HasSubstr("allowed: " + option.allowed)));
    }
  }
  const auto unknown = HookSpec::Parse("power_sgd,rank=2");
  EXPECT_THAT(std::string(unknown.status().message()),
              AllOf(HasSubstr("\"rank\" (2) is not an option of comm_hook \"power_sgd\""),
                    HasSubstr("allowed: matrix_approximation_rank, start_powerSGD_iter")));
  const auto cold = HookSpec::Parse("power_sgd,rounds=1,warm_start=false");
  EXPECT_THAT(std::string(cold.status().message()), HasSubstr("warm_start"));
}

ParameterSpec Parameter(const std::string& name, std::vector<std::int64_t> shape) {
  return {.name = name, .shape = std::move(shape), .dtype = DType::kFloat32};
}

PowerSgdOptions Rank(std::int64_t rank, double rate = 2) {
  PowerSgdOptions options;
  options.matrix_approximation_rank = rank;
  options.min_compression_rate = rate;
  return options;
}

TEST(PowerSgdLayout, CompressesByTorchsStrictRule) {
  const auto compressed = [](const PowerSgdOptions& options, std::vector<std::int64_t> shape) {
    const ParameterSpec parameter = Parameter("p", std::move(shape));
    return MakeLayout(options, std::span(&parameter, 1)).matrices.size() == 1;
  };
  EXPECT_FALSE(compressed(Rank(1), {4, 4}));        // 16 < 16
  EXPECT_TRUE(compressed(Rank(1), {4, 5}));         // 18 < 20
  EXPECT_FALSE(compressed(Rank(1), {100}));         // a vector is 100 x 1
  EXPECT_TRUE(compressed(Rank(1, 0.5), {100}));     // 50.5 < 100
  EXPECT_FALSE(compressed(Rank(1, 1e-9), {}));      // no dimensions
  EXPECT_TRUE(compressed(Rank(8, 0.5), {2, 100}));  // with the clamped rank 2: 102 < 200
  EXPECT_FALSE(compressed(Rank(8), {8, 0}));
}

TEST(PowerSgdLayout, GroupsByShapeInOrderOfAppearance) {
  const std::vector<ParameterSpec> parameters = {
      Parameter("a", {20, 30}), Parameter("bias", {20}), Parameter("b", {8, 4, 3, 3}),
      Parameter("c", {20, 30}), Parameter("scalar", {}), Parameter("d", {8, 36}),
      Parameter("e", {30, 20}),
  };
  const BucketLayout layout = MakeLayout(Rank(1), parameters);
  std::vector<std::size_t> order;
  for (const LowRankMatrix& matrix : layout.matrices) order.push_back(matrix.parameter);
  EXPECT_THAT(order, ::testing::ElementsAre(0, 3, 2, 5, 6));
  EXPECT_EQ(layout.matrices[2].shape, (MatrixShape{8, 36}));
  EXPECT_EQ(layout.matrices[2].p_offset, 40U);
  EXPECT_EQ(layout.matrices[2].q_offset, 60U);
  EXPECT_EQ(layout.p_numel, 20U + 20 + 8 + 8 + 30);
  EXPECT_EQ(layout.q_numel, 30U + 30 + 36 + 36 + 20);
  EXPECT_EQ(layout.dense_numel, 21U);
  const auto plans = PlanRounds(Rank(1), layout, DType::kFloat32, Side::kP);
  ASSERT_EQ(plans.size(), 2U);
  ASSERT_EQ(plans[0].segments.size(), 2U);
  EXPECT_EQ(plans[0].segments[0].op, ReduceOp::kMean);
  EXPECT_EQ(plans[0].segments[1].op, ReduceOp::kOrthonormalizedSum);
  EXPECT_EQ(plans[0].segments[1].numel, layout.p_numel);
  EXPECT_EQ(plans[1].segments[0].numel, layout.q_numel);
}

TEST(PowerSgdLayout, BatchedIsOneSquare) {
  PowerSgdOptions options = Rank(3);
  options.batched = true;
  const std::vector<ParameterSpec> parameters = {Parameter("a", {20, 30}), Parameter("b", {7})};
  const BucketLayout layout = MakeLayout(options, parameters);
  ASSERT_EQ(layout.matrices.size(), 1U);
  EXPECT_EQ(layout.matrices[0].shape, (MatrixShape{25, 25}));
  EXPECT_EQ(layout.padded_numel, 625U);
  EXPECT_EQ(layout.p_numel, 75U);
}

}  // namespace
}  // namespace gradwire
