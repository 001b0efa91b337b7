// PowerSGD over members in one loop: what it promises whatever torch does. Numbers against torch
// are in tests/parity.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/hooks/power_sgd_world.h"

namespace gradwire {
namespace {

using namespace ::gradwire::testing;  // NOLINT(google-build-using-namespace)

// What went in is what was applied and what is kept: N * applied + residuals = gradients.
template <class T>
void ExpectConservation(const std::string& spec, DType dtype, const Buckets& buckets,
                        double tolerance) {
  constexpr int kWorld = 3;
  constexpr std::uint32_t kSteps = 200;
  const auto world = World(kWorld, spec, dtype);
  const std::vector<ParameterSpec> model = Model(dtype);
  std::vector<std::vector<double>> in;
  for (const ParameterSpec& parameter : model) in.emplace_back(parameter.numel());
  std::vector<std::vector<double>> out = in;
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    Values values = RandomGradients(model, kWorld, step);
    const bool poisoned = step % 17 == 5;
    const bool fails = step % 23 == 11;
    if (poisoned) values[1][step % model.size()][0] = std::numeric_limits<double>::quiet_NaN();
    auto gradients = Pack<T>(values);
    const auto verdict = world->RunStep(gradients, buckets, fails);
    ASSERT_TRUE(verdict.ok()) << verdict.status();
    ASSERT_EQ(*verdict, poisoned || fails ? Verdict::kSkip : Verdict::kApply) << step;
    if (*verdict == Verdict::kSkip) continue;
    for (std::size_t p = 0; p < model.size(); ++p) {
      for (std::size_t i = 0; i < in[p].size(); ++i) {
        for (int r = 0; r < kWorld; ++r) in[p][i] += values[static_cast<std::size_t>(r)][p][i];
        out[p][i] += kWorld * At<T>(gradients[0][p], i);
      }
      for (int r = 1; r < kWorld; ++r) {
        ASSERT_EQ(gradients[static_cast<std::size_t>(r)][p], gradients[0][p]);
      }
    }
  }
  double error = 0;
  double norm = 0;
  for (std::size_t r = 0; r < kWorld; ++r) {
    const HookState state = world->hook(r).State();
    for (std::size_t p = 0; p < model.size(); ++p) {
      const std::vector<double> residual = Residual<T>(state, model[p]);
      for (std::size_t i = 0; i < residual.size(); ++i) out[p][i] += residual[i];
    }
  }
  for (std::size_t p = 0; p < model.size(); ++p) {
    for (std::size_t i = 0; i < in[p].size(); ++i) {
      error += (in[p][i] - out[p][i]) * (in[p][i] - out[p][i]);
      norm += in[p][i] * in[p][i];
    }
  }
  EXPECT_LE(std::sqrt(error / norm), tolerance) << spec;
}

TEST(PowerSgd, ConservesWhatMembersContribute) {
  for (const char* options :
       {"", ",error_feedback=local", ",warm_start=false", ",rounds=1",
        ",rounds=1,error_feedback=local", ",matrix_approximation_rank=3", ",comm_wrapper=fp16",
        ",comm_wrapper=bf16,matrix_approximation_rank=2"}) {
    // The plain steps before keep no residual, so a half wire loses what it rounds.
    const bool is_half = std::string(options).find("wrapper") != std::string::npos;
    const std::string spec =
        std::string("power_sgd,start_powerSGD_iter=") + (is_half ? "0" : "3") + options;
    ExpectConservation<float>(spec, DType::kFloat32, kTwo, 1e-5);
    if (!is_half) ExpectConservation<double>(spec, DType::kFloat64, kTwo, 1e-12);
  }
}

TEST(PowerSgd, BucketsAndTheirOrderDoNotMatter) {
  const auto model = Model(DType::kFloat32);
  for (const char* options : {"", ",warm_start=false", ",rounds=1"}) {
    const std::string spec = std::string("power_sgd,start_powerSGD_iter=1") + options;
    const auto steady = World(2, spec);
    const auto rebuilt = World(2, spec);
    const Buckets* const layouts[] = {&kOne, &kTwo, &kShuffled};
    for (std::uint32_t step = 0; step < 9; ++step) {
      auto expected = Pack<float>(RandomGradients(model, 2, step));
      auto gradients = expected;
      ASSERT_TRUE(steady->RunStep(expected, kOne).ok());
      ASSERT_TRUE(rebuilt->RunStep(gradients, *layouts[step / 2 % 3]).ok());
      ASSERT_EQ(gradients, expected) << spec << " step " << step;
    }
  }
}

TEST(PowerSgd, ParametersMayMissSteps) {
  const auto model = Model(DType::kFloat32);
  const auto world = World(2, "power_sgd,start_powerSGD_iter=1,rounds=1");
  for (std::uint32_t step = 0; step < 9; ++step) {
    auto gradients = Pack<float>(RandomGradients(model, 2, step));
    const Buckets buckets = step % 3 == 1 ? Buckets{{0, 2}} : kTwo;
    const auto verdict = world->RunStep(gradients, buckets);
    ASSERT_TRUE(verdict.ok()) << verdict.status();
    EXPECT_EQ(*verdict, Verdict::kApply);
  }
}

TEST(PowerSgd, ZeroGradientsStayZeroAndHarmNothing) {
  const auto model = Model(DType::kFloat32);
  for (const char* hook : {"power_sgd", "batched_power_sgd"}) {
    const auto world =
        World(2, std::string(hook) + ",start_powerSGD_iter=0,matrix_approximation_rank=2");
    Values zeros = RandomGradients(model, 2, 1);
    for (auto& member : zeros) {
      for (auto& parameter : member) std::fill(parameter.begin(), parameter.end(), 0.0);
    }
    for (int step = 0; step < 3; ++step) {
      auto gradients = Pack<float>(zeros);
      const auto expected = gradients;
      ASSERT_EQ(*world->RunStep(gradients, kTwo), Verdict::kApply);
      EXPECT_EQ(gradients, expected);
    }
    auto gradients = Pack<float>(RandomGradients(model, 2, 2));
    ASSERT_EQ(*world->RunStep(gradients, kTwo), Verdict::kApply);
    for (std::size_t p = 0; p < model.size(); ++p) {
      for (std::size_t i = 0; i < model[p].numel(); ++i) {
        ASSERT_TRUE(std::isfinite(At<float>(gradients[0][p], i)));
      }
    }
  }
}

// A matrix of rank 1 is its own approximation, also when more columns are asked for.
TEST(PowerSgd, LowRankGradientsArriveWhole) {
  const std::vector<ParameterSpec> model = {
      {.name = "w", .shape = {20, 30}, .dtype = DType::kFloat32}};
  for (const char* rank : {"1", "2", "4"}) {
    const auto spec = HookSpec::Parse(
        std::string("power_sgd,start_powerSGD_iter=0,matrix_approximation_rank=") + rank);
    auto world = HookWorld::Make(2, *spec, model);
    ASSERT_TRUE(world.ok()) << world.status();
    for (int step = 0; step < 3; ++step) {
      Values values(2, {std::vector<double>(600)});
      for (std::size_t i = 0; i < 600; ++i) {
        const double outer =
            static_cast<double>(i / 30 + 1) * std::cos(static_cast<double>(i % 30));
        values[0][0][i] = outer;
        values[1][0][i] = 3 * outer;
      }
      auto gradients = Pack<float>(values);
      ASSERT_EQ(*(*world)->RunStep(gradients, {{0}}), Verdict::kApply);
      for (std::size_t i = 0; i < 600; ++i) {
        ASSERT_NEAR(At<float>(gradients[1][0], i), 2 * values[0][0][i], 1e-4) << rank;
      }
    }
  }
}

TEST(PowerSgd, HalfGradientsAndHalfWires) {
  const auto model = Model(DType::kFloat32);
  const auto wide = World(2, "power_sgd,start_powerSGD_iter=0,matrix_approximation_rank=2");
  const auto half =
      World(2, "power_sgd,start_powerSGD_iter=0,matrix_approximation_rank=2,comm_wrapper=fp16");
  auto expected = Pack<float>(RandomGradients(model, 2, 5));
  auto gradients = expected;
  ASSERT_TRUE(wide->RunStep(expected, kOne).ok());
  ASSERT_TRUE(half->RunStep(gradients, kOne).ok());
  EXPECT_EQ(half->contributed() * 2, wide->contributed());
  double error = 0;
  double norm = 0;
  for (std::size_t p = 0; p < model.size(); ++p) {
    for (std::size_t i = 0; i < model[p].numel(); ++i) {
      const double difference = At<float>(gradients[0][p], i) - At<float>(expected[0][p], i);
      error += difference * difference;
      norm += At<float>(expected[0][p], i) * At<float>(expected[0][p], i);
    }
  }
  EXPECT_LT(std::sqrt(error / norm), 2e-3);

  const auto native = World(2, "power_sgd,start_powerSGD_iter=0", DType::kBFloat16);
  std::vector<MemberGradients> bytes(2);
  for (auto& member : bytes) {
    for (const ParameterSpec& parameter : Model(DType::kBFloat16)) {
      std::vector<std::byte>& values = member.emplace_back(2 * parameter.numel());
      for (std::size_t i = 0; i < parameter.numel(); ++i) {  // bfloat16 1.0 and 0.5
        values[2 * i + 1] = std::byte{0x3F};
        values[2 * i] = i % 3 == 0 ? std::byte{0x80} : std::byte{0x00};
      }
    }
  }
  ASSERT_EQ(*native->RunStep(bytes, kOne), Verdict::kApply);
  EXPECT_EQ(bytes[0], bytes[1]);
}

// One large element: from the second step on the sum of P is 120000, more than fp16 holds, while
// each member's is 30000. The sum is not rounded before it is orthonormal.
TEST(PowerSgd, FactorsWhoseSumOverflowsHalfStayFinite) {
  const std::vector<ParameterSpec> model = {
      {.name = "w", .shape = {40, 40}, .dtype = DType::kFloat32}};
  auto world = HookWorld::Make(
      4, *HookSpec::Parse("power_sgd,start_powerSGD_iter=0,comm_wrapper=fp16"), model);
  ASSERT_TRUE(world.ok()) << world.status();
  Values values(4, {std::vector<double>(1600)});
  for (auto& member : values) {
    member[0][0] = 30000.0;
  }
  for (int step = 0; step < 3; ++step) {
    auto gradients = Pack<float>(values);
    ASSERT_EQ(*(*world)->RunStep(gradients, {{0}}), Verdict::kApply);
    EXPECT_NEAR(At<float>(gradients[0][0], 0), 30000.0, 30.0);
  }
}

TEST(PowerSgd, ResidualsFollowTheLossScale) {
  const auto model = Model(DType::kFloat32);
  const auto plain = World(2, "power_sgd,start_powerSGD_iter=0");
  const auto scaled = World(2, "power_sgd,start_powerSGD_iter=0");
  for (std::uint32_t step = 0; step < 6; ++step) {
    const double scale = step < 3 ? 1 : 1024;
    for (std::size_t r = 0; r < 2; ++r) scaled->hook(r).SetLossScale(scale);
    Values values = RandomGradients(model, 2, step);
    auto expected = Pack<float>(values);
    for (auto& member : values) {
      for (auto& parameter : member) {
        for (double& value : parameter) value *= scale;
      }
    }
    auto gradients = Pack<float>(values);
    ASSERT_TRUE(plain->RunStep(expected, kOne).ok());
    ASSERT_TRUE(scaled->RunStep(gradients, kOne).ok());
    for (std::size_t p = 0; p < model.size(); ++p) {
      for (std::size_t i = 0; i < model[p].numel(); ++i) {
        const double want = At<float>(expected[0][p], i);
        ASSERT_NEAR(At<float>(gradients[0][p], i) / scale, want, 1e-4 * (1 + std::abs(want)));
      }
    }
  }
}

double Norm(const std::vector<std::vector<double>>& parts) {
  double squares = 0;
  for (const std::vector<double>& part : parts) {
    for (const double value : part) squares += value * value;
  }
  return std::sqrt(squares);
}

class PowerSgdForms : public ::testing::TestWithParam<const char*> {};

TEST_P(PowerSgdForms, MeasuresGradientsAndWhatIsLeftOfThem) {
  const std::string spec = Form(GetParam());
  const auto world = World(2, spec);
  const std::vector<ParameterSpec> model = Model(DType::kFloat32);
  for (std::uint32_t step = 0; step < 5; ++step) {
    const Values values = RandomGradients(model, 2, step);
    auto gradients = Pack<float>(values);
    ASSERT_TRUE(world->RunStep(gradients, kTwo).ok());
    if (step < 2) continue;  // not compressed yet
    const HookState state = world->hook(0).State();
    for (std::size_t b = 0; b < kTwo.size(); ++b) {
      std::vector<std::vector<double>> gradient;
      std::vector<std::vector<double>> residual;
      for (const std::size_t p : kTwo[b]) {
        gradient.push_back(values[0][p]);
        residual.push_back(Residual<float>(state, model[p]));
      }
      const bool has_residual = spec.find("use_error_feedback=false") == std::string::npos;
      ASSERT_EQ(world->norms()[b].has_value(), has_residual);
      if (!has_residual) continue;
      EXPECT_NEAR(world->norms()[b]->gradient, Norm(gradient), 1e-9 * Norm(gradient));
      EXPECT_NEAR(world->norms()[b]->residual, Norm(residual), 1e-9 * Norm(gradient));
    }
  }
}

// float32 cut off to bfloat16.
std::vector<MemberGradients> UpperHalves(const std::vector<MemberGradients>& floats) {
  std::vector<MemberGradients> halves = floats;
  for (MemberGradients& member : halves) {
    for (std::vector<std::byte>& values : member) {
      for (std::size_t i = 0; i < values.size() / 2; ++i) values[i] = values[i / 2 * 4 + 2 + i % 2];
      values.resize(values.size() / 2);
    }
  }
  return halves;
}

// Plain steps too. Both members' results are compared, and all states.
TEST_P(PowerSgdForms, GradientsMayLieApart) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const auto flat = World(2, Form(GetParam()), dtype);
    const auto scattered = World(2, Form(GetParam()), dtype);
    scattered->Scatter(1);
    for (std::uint32_t step = 0; step < 6; ++step) {
      auto expected = Pack<float>(RandomGradients(Model(dtype), 2, step));
      if (dtype == DType::kBFloat16) expected = UpperHalves(expected);
      auto gradients = expected;
      ASSERT_EQ(*flat->RunStep(expected, kShuffled), Verdict::kApply);
      const auto verdict = scattered->RunStep(gradients, kShuffled);
      ASSERT_TRUE(verdict.ok()) << verdict.status();
      ASSERT_EQ(gradients, expected) << Name(dtype) << " step " << step;
      ASSERT_TRUE(Snapshot(*scattered) == Snapshot(*flat)) << Name(dtype) << " step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, PowerSgdForms, kForms);

TEST(PowerSgd, MeasuresNothingWithoutResiduals) {
  for (const char* spec : {"power_sgd,start_powerSGD_iter=0,use_error_feedback=false",
                           "power_sgd,start_powerSGD_iter=5", "fp16"}) {
    const auto world = World(2, spec);
    auto gradients = Pack<float>(RandomGradients(Model(DType::kFloat32), 2, 0));
    ASSERT_TRUE(world->RunStep(gradients, kOne).ok());
    EXPECT_FALSE(world->norms()[0].has_value()) << spec;
  }
}

}  // namespace
}  // namespace gradwire
