// Residuals that go from one member to another: against sums of whole vectors, against members that
// were left alone, and in the ledger.
#include "hooks/residuals.h"

#include <cmath>
#include <cstddef>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/ledger_balance.h"
#include "tests/hooks/ledger_world.h"

namespace gradwire {
namespace {

using namespace ::gradwire::testing;  // NOLINT(google-build-using-namespace)
using ::testing::HasSubstr;

const Buckets kAll = {{0, 1, 2, 3, 4, 5}};
constexpr std::size_t kFrom = 2;
constexpr std::size_t kTo = 0;

// By name, without the loss scale.
std::map<std::string, Vector> ResidualsOf(const HookState& state) {
  const double scale = *LossScaleOf(state);
  std::map<std::string, Vector> residuals;
  for (const StateTensor& tensor : state.tensors) {
    residuals[tensor.name] = Unpacked(tensor.dtype, tensor.data, scale);
  }
  return residuals;
}

// Of all accounts, before and after residuals have gone from one member to another. Until they are
// given away they are held by two, one of which makes a loss good.
void ExpectSame(const std::vector<LedgerRow>& now, const std::vector<LedgerRow>& before,
                bool is_given) {
  for (std::size_t i = 0; i < before.size(); ++i) {
    const double norm = std::sqrt(before[i].residual_squares);
    EXPECT_NEAR(now[i].residual + now[i].lost, before[i].residual, 1e-6 * norm);
    EXPECT_EQ(now[i].contributed, before[i].contributed);
    EXPECT_EQ(LostSquares(now[i]), 0);
    if (!is_given) continue;
    EXPECT_NEAR(now[i].lost, 0, 1e-12 * norm);
    EXPECT_NEAR(now[i].lost_squares, 0, 1e-12 * norm * norm);
  }
}

class Residuals : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Forms, Residuals,
                         ::testing::Values("power_sgd", "power_sgd,error_feedback=local",
                                           "power_sgd,rounds=1", "batched_power_sgd"));

TEST_P(Residuals, NothingIsLostOnTheWay) {
  const auto model = LedgerModel(DType::kFloat32);
  LedgerWorld moved(3, Form(GetParam()), model);
  LedgerWorld alone(3, Form(GetParam()), model);
  const auto step = [&](std::uint32_t number) {
    const Values values = RandomGradients(model, 3, number);
    ASSERT_EQ(moved.Step(values, kAll), Verdict::kApply);
    ASSERT_EQ(alone.Step(values, kAll), Verdict::kApply);
  };
  for (std::uint32_t number = 0; number < 7; ++number) step(number);
  auto from = ResidualsOf(moved.ledger(kFrom).State());
  const auto to = ResidualsOf(moved.ledger(kTo).State());
  ASSERT_GE(from.size(), 3U);

  const std::vector<LedgerRow> before = moved.Sum();
  const HookState given = moved.ledger(kFrom).State();
  moved.ledger(kTo).Expect(given);
  ExpectSame(moved.Sum(), before, /*is_given=*/false);
  ASSERT_TRUE(moved.ledger(kTo).TakeOver(given, model).ok());
  ASSERT_TRUE(moved.ledger(kFrom).GiveAway(model).ok());
  EXPECT_THAT(ResidualsOf(moved.ledger(kFrom).State()), ::testing::IsEmpty());
  const auto sum = ResidualsOf(moved.ledger(kTo).State());
  EXPECT_EQ(sum.size(), from.size());
  for (const auto& [name, values] : sum) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float want = static_cast<float>(from[name][i]) + static_cast<float>(to.at(name)[i]);
      ASSERT_EQ(values[i], static_cast<double>(want)) << name << ", " << i;
    }
  }

  // In the ledger it is as if nothing had happened, but for the rounding of one sum.
  ExpectSame(moved.Sum(), before, /*is_given=*/true);
  for (const LedgerRow& row : moved.Sum()) {
    EXPECT_LE(std::abs(row.balance()), moved.Tolerance(std::ldexp(1.0, -24), row));
  }

  // A mean is of the sum of all members' gradients and residuals.
  for (std::uint32_t number = 7; number < 10; ++number) {
    step(number);
    for (std::size_t p = 0; p < model.size(); ++p) {
      for (std::size_t i = 0; i < model[p].numel(); ++i) {
        ASSERT_NEAR(moved.results()[1][p][i], alone.results()[1][p][i], 2e-4)
            << model[p].name << ", " << i << ", step " << number;
      }
    }
  }
}

TEST(Residuals, AreTakenInTheTakersLossScale) {
  const auto model = LedgerModel(DType::kFloat64);
  LedgerWorld four(2, Form("power_sgd"), model);
  LedgerWorld half(2, Form("power_sgd"), model);
  four.SetLossScale(4);
  half.SetLossScale(0.5);
  for (std::uint32_t number = 0; number < 5; ++number) {
    four.Step(RandomGradients(model, 2, number), kAll);
    half.Step(RandomGradients(model, 2, 100 + number), kAll);
  }
  auto from = ResidualsOf(four.ledger(1).State());
  const auto to = ResidualsOf(half.ledger(0).State());
  half.ledger(0).Expect(four.ledger(1).State());
  ASSERT_TRUE(half.ledger(0).TakeOver(four.ledger(1).State(), model).ok());
  for (const auto& [name, values] : ResidualsOf(half.ledger(0).State())) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(values[i], from[name][i] + to.at(name)[i], 1e-12) << name << ", " << i;
    }
  }
}

TEST(Residuals, ANewcomerTakesThem) {
  const auto model = LedgerModel(DType::kFloat32);
  LedgerWorld world(2, Form("power_sgd"), model);
  for (std::uint32_t number = 0; number < 5; ++number) {
    world.Step(RandomGradients(model, 2, number), kAll);
  }
  const auto from = ResidualsOf(world.ledger(0).State());
  LedgerWorld fresh(2, Form("power_sgd"), model);
  fresh.ledger(0).Expect(world.ledger(0).State());
  ASSERT_TRUE(fresh.ledger(0).TakeOver(world.ledger(0).State(), model).ok());
  EXPECT_EQ(ResidualsOf(fresh.ledger(0).State()), from);
}

struct Hostile {
  std::string error;
  void (*change)(HookState&);
};

TEST(Residuals, WhatDoesNotFitChangesNothing) {
  const auto model = LedgerModel(DType::kFloat32);
  LedgerWorld world(2, Form("batched_power_sgd"), model);
  for (std::uint32_t number = 0; number < 5; ++number) {
    world.Step(RandomGradients(model, 2, number), kAll);
  }
  const std::vector<Hostile> all = {
      {"format \"none\"", [](HookState& state) { state.metadata["format"] = "none"; }},
      {"loss_scale \"-1\"", [](HookState& state) { state.metadata["loss_scale"] = "-1"; }},
      {"loss_scale \"nan\"", [](HookState& state) { state.metadata["loss_scale"] = "nan"; }},
      {"has 8 bytes of float32",
       [](HookState& state) {
         for (StateTensor& t : state.tensors) {
           if (t.name == "residual/tall") t.data.resize(8);
         }
       }},
      {"is of float16", [](HookState& state) { state.tensors.front().dtype = DType::kFloat16; }},
      {"belongs to no parameter",
       [](HookState& state) {
         state.tensors.push_back(state.tensors.front());
         state.tensors.back().name = "residual/other";
       }},
      {"values that are not finite",
       [](HookState& state) {
         const float nan = NAN;
         for (StateTensor& t : state.tensors) {
           if (t.name == "residual/tall") std::memcpy(t.data.data(), &nan, sizeof(nan));
         }
       }},
      {"has other parameters here",
       [](HookState& state) {
         for (auto& [key, value] : state.metadata) {
           if (key.starts_with("bucket/")) value = "conv";
         }
       }},
  };
  const std::vector<LedgerRow> account = world.ledger(0).account();
  const auto held = ResidualsOf(world.ledger(0).State());
  for (const Hostile& hostile : all) {
    HookState state = world.ledger(1).State();
    hostile.change(state);
    const absl::Status status = TakeOver(state, model, world.ledger(0));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << hostile.error;
    EXPECT_THAT(std::string(status.message()), HasSubstr(hostile.error));
    EXPECT_EQ(world.ledger(0).account(), account) << hostile.error;
    EXPECT_EQ(ResidualsOf(world.ledger(0).State()), held) << hostile.error;
  }
  LedgerWorld plain(1, "no", model);
  EXPECT_EQ(TakeOver(world.ledger(1).State(), model, plain.ledger(0)).code(),
            absl::StatusCode::kFailedPrecondition);
}

// What is expected and then not taken is lost, as if nobody had taken it.
TEST(Residuals, WhatIsNotTakenIsLost) {
  const auto model = LedgerModel(DType::kFloat32);
  LedgerWorld world(2, Form("power_sgd"), model);
  for (std::uint32_t number = 0; number < 5; ++number) {
    world.Step(RandomGradients(model, 2, number), kAll);
  }
  HookState state = world.ledger(1).State();
  state.tensors.push_back(state.tensors.front());
  state.tensors.back().name = "residual/other";
  const std::vector<LedgerRow> before = world.ledger(0).account();
  world.ledger(0).Expect(state);
  EXPECT_FALSE(world.ledger(0).TakeOver(state, model).ok());
  for (std::size_t i = 0; i < before.size(); ++i) {
    const double norm = std::sqrt(before[i].residual_squares);
    EXPECT_NEAR(world.ledger(0).account()[i].lost, 0, 1e-12 * norm);
    EXPECT_NEAR(world.ledger(0).account()[i].residual, before[i].residual, 1e-12 * norm);
  }
}

}  // namespace
}  // namespace gradwire
