// Accounts of members against whole vectors, for each hook that is built in and each way in which a
// step ends; and that they do not close once a gradient is lost or counted twice.
#include "hooks/ledger_hook.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gradwire/hooks/registry.h"
#include "gtest/gtest.h"
#include "tests/hooks/ledger_world.h"

namespace gradwire {
namespace {

using namespace ::gradwire::testing;  // NOLINT(google-build-using-namespace)

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

const Buckets kAll = {{0, 1, 2, 3, 4, 5}};
const Buckets kThree = {{5, 3}, {2, 1}, {4, 0}};

// How much is rounded away at most, in the coarsest format on the way. The last is that of fp64,
// with the sums that the tests themselves take.
const double kFp32 = std::ldexp(1.0, -24);
const double kFp16 = std::ldexp(1.0, -11);
const double kBf16 = std::ldexp(1.0, -8);
const double kFp64 = std::ldexp(1.0, -50);

struct Case {
  const char* name;
  std::string spec;
  DType dtype;
  double unit;
  bool closes = true;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.spec << ", " << Name(c.dtype); }
std::string NameOf(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

const std::vector<Case> kCases = {
    {"No", "no", DType::kFloat32, kFp32},
    {"NoOfFp64", "no", DType::kFloat64, kFp64},
    {"NoOfFp16", "no", DType::kFloat16, kFp16},
    {"NoOfBf16", "no", DType::kBFloat16, kBf16},
    {"Fp16", "fp16", DType::kFloat32, kFp16},
    {"Fp16OfFp64", "fp16", DType::kFloat64, kFp16},
    {"Bf16", "bf16", DType::kFloat32, kBf16},
    {"Bf16OfFp16", "bf16", DType::kFloat16, kBf16},
    {"Aggregate", Form("power_sgd"), DType::kFloat32, kFp32},
    {"AggregateOfFp64", Form("power_sgd"), DType::kFloat64, kFp64},
    {"AggregateOfFp16", Form("power_sgd"), DType::kFloat16, kFp16},
    {"Local", Form("power_sgd,error_feedback=local"), DType::kFloat32, kFp32},
    {"LocalOfFp64", Form("power_sgd,error_feedback=local"), DType::kFloat64, kFp64},
    {"OneRound", Form("power_sgd,rounds=1"), DType::kFloat32, kFp32},
    {"LocalOneRound", Form("power_sgd,rounds=1,error_feedback=local"), DType::kFloat32, kFp32},
    {"Batched", Form("batched_power_sgd"), DType::kFloat32, kFp32},
    {"BatchedOneRound", Form("batched_power_sgd,rounds=1"), DType::kFloat32, kFp32},
    {"Wrapped", Form("power_sgd,comm_wrapper=fp16"), DType::kFloat32, kFp16},
    {"WrappedLocal", Form("power_sgd,comm_wrapper=fp16,error_feedback=local"), DType::kFloat32,
     kFp16},
    {"ColdStart", Form("power_sgd,warm_start=false"), DType::kFloat32, kFp32},
    {"NoFeedback", Form("power_sgd,use_error_feedback=false"), DType::kFloat32, kFp32, false},
};

class LedgerHooks : public ::testing::TestWithParam<Case> {};

// Steps with a value that is not finite: which member's, and which element of which parameter.
struct Poison {
  std::uint32_t step;
  std::size_t parameter;
  std::size_t element;
  double value;
};
constexpr Poison kPoisons[] = {{3, 2, 5, kNan},     // read by projections
                               {10, 5, 100, kNan},  // not read
                               {17, 0, 0, INFINITY},
                               {24, 5, 1030, kNan}};

// 30 steps, most of them applied. Four are skipped, and three dropped of which two had buckets
// without results.
void RunSteps(LedgerWorld& world) {
  for (std::uint32_t step = 0; step < 30; ++step) {
    Values values = RandomGradients(world.model(), world.size(), step);
    if (step == 5) {
      world.DroppedStep(values, {{5, 3}, {4, 0}}, {{2, 1}});
      continue;
    }
    if (step == 13 || step == 28) {
      world.DroppedStep(values, kThree, {});
      continue;
    }
    if (step == 20) {
      world.DroppedStep(values, {{1}}, {{5, 3}, {4, 0, 2}});
      continue;
    }
    if (step == 8 || step == 29) {  // the others' residuals stay as they are
      ASSERT_EQ(world.Step(values, {{5, 3}, {0}}), Verdict::kApply);
      continue;
    }
    Verdict want = Verdict::kApply;
    for (const Poison& poison : kPoisons) {
      if (poison.step != step) continue;
      values[step % world.size()][poison.parameter][poison.element] = poison.value;
      want = Verdict::kSkip;
    }
    ASSERT_EQ(world.Step(values, step % 4 < 2 ? kAll : kThree), want) << "step " << step;
  }
}

TEST_P(LedgerHooks, AccountsAreThoseOfTheVectorsAndClose) {
  for (const int size : {2, 3}) {
    LedgerWorld world(size, GetParam().spec, LedgerModel(GetParam().dtype));
    RunSteps(world);
    world.ExpectAccounts();
    const std::vector<LedgerRow> sum = world.Sum();
    for (std::size_t i = 0; i < sum.size(); ++i) {
      if (world.model()[i].numel() == 0) {
        EXPECT_EQ(sum[i], LedgerRow());
        continue;
      }
      EXPECT_GT(sum[i].applied * sum[i].applied, 0);
      EXPECT_GT(sum[i].skipped_squares, 0);
      EXPECT_GT(sum[i].dropped_squares, 0);
      if (i == 2 || i == 4) continue;  // local feedback keeps nothing of what is sent whole
      const bool keeps = GetParam().spec.find("power_sgd") != std::string::npos;
      EXPECT_EQ(sum[i].residual_squares > 0, keeps && GetParam().closes) << i;
    }
    if (GetParam().closes) {
      world.ExpectClosed(GetParam().unit);
      continue;
    }
    for (const std::size_t compressed : {0U, 1U, 5U}) {
      EXPECT_GT(std::abs(sum[compressed].balance()),
                100 * world.Tolerance(GetParam().unit, sum[compressed]))
          << "what was not sent is not missed";
    }
  }
}

// What a hook does to the gradients after the account took them, and to results before.
TEST_P(LedgerHooks, AFaultIsMissedByItsSize) {
  if (!GetParam().closes) return;
  for (const Fault fault : {Fault::kGradientLost, Fault::kGradientTwice, Fault::kMeanTwice}) {
    LedgerWorld world(2, GetParam().spec, LedgerModel(GetParam().dtype));
    Values given;
    Values results;
    for (std::uint32_t step = 0; step < 8; ++step) {
      const Values values = RandomGradients(world.model(), 2, step + 100);
      world.SetFault(step == 5 ? fault : Fault::kNone);
      ASSERT_EQ(world.Step(values, kThree), Verdict::kApply);
      if (step != 5) continue;
      given = values;
      results = world.results();
    }
    const std::vector<LedgerRow> sum = world.Sum();
    std::size_t shown = 0;
    for (std::size_t p = 0; p < sum.size(); ++p) {
      Vector missed = Unpacked(GetParam().dtype, Packed(GetParam().dtype, given[0][p]), 1);
      double factor = fault == Fault::kGradientLost ? 1 : -1;
      if (fault == Fault::kMeanTwice) {
        missed = results[0][p];
        factor = -0.5;
      }
      const double tolerance = world.Tolerance(GetParam().unit, sum[p]);
      EXPECT_NEAR(sum[p].balance(), factor * Project(world.model()[p], missed), tolerance)
          << world.model()[p].name << ", fault " << static_cast<int>(fault);
      shown += std::abs(sum[p].balance()) > tolerance ? 1U : 0U;
    }
    // All that have elements, except that coarse formats hide one that projects to little.
    EXPECT_GE(shown, GetParam().unit < kFp16 ? 5U : 1U) << "fault " << static_cast<int>(fault);
  }
}

TEST_P(LedgerHooks, ARunThatBeginsAgainCountsOnce) {
  LedgerWorld world(2, GetParam().spec, LedgerModel(GetParam().dtype));
  LedgerWorld again(2, GetParam().spec, LedgerModel(GetParam().dtype));
  for (std::uint32_t step = 0; step < 7; ++step) {
    Values values = RandomGradients(world.model(), 2, step);
    // Factors are there from the second compressed step on: until then no round has an end.
    const std::size_t rounds = step < 3 ? 0 : step - 2;
    again.Rehearse(values, kAll, rounds);
    again.Rehearse(values, kAll, 0);
    if (step == 6) {
      world.DroppedStep(values, {{5, 3}}, {{0, 1, 2, 4}});
      again.DroppedStep(values, {{5, 3}}, {{0, 1, 2, 4}});
      continue;
    }
    if (step == 5) values[1][4][0] = kNan;
    const Verdict verdict = world.Step(values, kAll);
    ASSERT_EQ(again.Step(values, kAll), verdict);
  }
  again.ExpectAccounts();
  for (std::size_t r = 0; r < 2; ++r)
    EXPECT_EQ(world.ledger(r).account(), again.ledger(r).account());
}

TEST_P(LedgerHooks, ChangesNothingButTheAccount) {
  const auto plain =
      HookWorld::Make(2, *HookSpec::Parse(GetParam().spec), LedgerModel(GetParam().dtype));
  ASSERT_TRUE(plain.ok());
  LedgerWorld world(2, GetParam().spec, LedgerModel(GetParam().dtype));
  for (std::uint32_t step = 0; step < 5; ++step) {
    const Values values = RandomGradients(world.model(), 2, step);
    std::vector<MemberGradients> expected(2);
    for (std::size_t r = 0; r < 2; ++r) {
      for (const Vector& from : values[r]) expected[r].push_back(Packed(GetParam().dtype, from));
    }
    std::vector<MemberGradients> gradients = expected;
    ASSERT_TRUE((*plain)->RunStep(expected, kThree).ok());
    ASSERT_TRUE(world.world().RunStep(gradients, kThree).ok());
    EXPECT_EQ(gradients, expected);
    ASSERT_EQ((*plain)->norms().size(), world.world().norms().size());
    for (std::size_t b = 0; b < (*plain)->norms().size(); ++b) {
      const auto& want = (*plain)->norms()[b];
      const auto& got = world.world().norms()[b];
      ASSERT_EQ(got.has_value(), want.has_value());
      EXPECT_EQ(got ? got->residual : 0, want ? want->residual : 0);
      EXPECT_EQ(got ? got->gradient : 0, want ? want->gradient : 0);
    }
  }
  for (std::size_t r = 0; r < 2; ++r) {
    EXPECT_TRUE(SameTensors((*plain)->hook(r).State(), world.ledger(r).State()));
    EXPECT_TRUE(SameTensors((*plain)->hook(r).Copy(), world.ledger(r).Copy()));
  }
}

// With powers of two gradients have equal bits without the scale. Other scales round.
TEST_P(LedgerHooks, AccountsAreWithoutTheLossScale) {
  LedgerWorld world(2, GetParam().spec, LedgerModel(GetParam().dtype));
  LedgerWorld plain(2, GetParam().spec, LedgerModel(GetParam().dtype));
  for (std::uint32_t step = 0; step < 12; ++step) {
    world.SetLossScale(step % 3 == 0 ? 2 : step % 3 == 1 ? 0.5 : 1);
    Values values = RandomGradients(world.model(), 2, step);
    if (step == 4) values[0][1][3] = kNan;
    const Verdict verdict = world.Step(values, kThree);
    ASSERT_EQ(plain.Step(values, kThree), verdict);
  }
  world.ExpectAccounts();
  if (GetParam().closes) world.ExpectClosed(GetParam().unit);
  for (std::size_t r = 0; r < 2; ++r) {
    for (std::size_t i = 0; i < world.model().size(); ++i) {
      const LedgerRow& a = plain.ledger(r).account()[i];
      const LedgerRow& b = world.ledger(r).account()[i];
      // float16 has too few exponents for tiny values.
      const double unit = GetParam().dtype == DType::kFloat16 ? kFp16 : kFp64;
      const double squares = a.contributed_squares;
      EXPECT_NEAR(a.contributed, b.contributed, unit * std::sqrt(squares));
      EXPECT_NEAR(a.contributed_squares, b.contributed_squares, unit * squares);
      EXPECT_NEAR(a.skipped_squares, b.skipped_squares, unit * squares);
    }
  }
  for (std::uint32_t step = 12; step < 16; ++step) {
    world.SetLossScale(step % 2 == 0 ? 3 : 0.7);
    ASSERT_EQ(world.Step(RandomGradients(world.model(), 2, step), kThree), Verdict::kApply);
  }
  world.ExpectAccounts();
  if (GetParam().closes) world.ExpectClosed(GetParam().unit);
}

INSTANTIATE_TEST_SUITE_P(All, LedgerHooks, ::testing::ValuesIn(kCases), NameOf);

// ---- Loaded residuals

TEST(LedgerHook, LoadedResidualsCountAsContributed) {
  for (const char* form : {"power_sgd", "power_sgd,error_feedback=local", "batched_power_sgd"}) {
    const std::string spec = Form(form);
    const auto model = LedgerModel(DType::kFloat32);
    LedgerWorld first(2, spec, model);
    first.SetLossScale(4);
    for (std::uint32_t step = 0; step < 7; ++step) {
      ASSERT_EQ(first.Step(RandomGradients(model, 2, step), kAll), Verdict::kApply);
    }
    LedgerWorld second(2, spec, model);
    second.SetLossScale(0.5);
    ASSERT_TRUE(second.world().Import(first.world().Export()).ok());
    second.world().Reset();
    for (std::size_t r = 0; r < 2; ++r) {
      ASSERT_TRUE(second.ledger(r).LoadState(first.ledger(r).State(), model).ok());
      second.ExpectLoaded(r);
      for (std::size_t p = 0; p < model.size(); ++p) {
        const LedgerRow& from = first.ledger(r).account()[p];
        const LedgerRow& row = second.ledger(r).account()[p];
        EXPECT_EQ(row.residual, from.residual) << form << ", " << model[p].name;
        EXPECT_EQ(row.contributed, from.residual);
      }
    }
    second.ExpectAccounts();
    for (std::uint32_t step = 7; step < 12; ++step) {
      ASSERT_EQ(second.Step(RandomGradients(model, 2, step), kAll), Verdict::kApply);
    }
    second.ExpectAccounts();
    second.ExpectClosed(kFp32);
    // Over residuals that a hook has, of which the state has some only.
    HookState state = first.ledger(1).State();
    std::erase_if(state.tensors, [](const StateTensor& t) { return t.name == "residual/tall"; });
    ASSERT_TRUE(second.ledger(0).LoadState(state, model).ok());
    second.ExpectLoaded(0);
    EXPECT_NEAR(second.ledger(0).account()[1].residual, 0, 1e-11);
    const std::vector<LedgerRow> account = second.ledger(0).account();
    state.metadata["format"] = "none";
    EXPECT_FALSE(second.ledger(0).LoadState(state, model).ok());
    EXPECT_EQ(second.ledger(0).account(), account) << "a refused state is in the account";
    for (std::uint32_t step = 12; step < 17; ++step) {
      Values values = RandomGradients(model, 2, step);
      if (step == 14) values[1][0][1] = kNan;
      second.Step(values, kAll);
    }
    second.ExpectAccounts();
    second.ExpectClosed(kFp32);
  }
}

// As HookRun::residuals has it: views without data are of parameters that keep none any more.
TEST(LedgerHook, AResidualThatAHookGaveUpIsNotHeld) {
  const auto model = LedgerModel(DType::kFloat32);
  LedgerWorld world(2, Form("power_sgd"), model);
  for (std::uint32_t step = 0; step < 6; ++step) {
    EXPECT_EQ(world.ledger(0).account()[1].residual_squares > 0, step > 2) << step;
    world.SetFault(step == 5 ? Fault::kResidualsForgotten : Fault::kNone);
    ASSERT_EQ(world.Step(RandomGradients(model, 2, step), kAll), Verdict::kApply);
  }
  for (const LedgerRow& row : world.ledger(0).account()) {
    EXPECT_EQ(row.residual, 0);
    EXPECT_EQ(row.residual_squares, 0);
  }
  EXPECT_GT(world.ledger(1).account()[1].residual_squares, 0);
}

// ---- One step's change

LedgerRow SampleRow(double first) {
  LedgerRow row;
  row.ForEach(row, [&](double& value, double) { value = first++; });
  return row;
}

TEST(LedgerHook, AfterAddsAStepByItsVerdict) {
  const LedgerRow before = SampleRow(1);
  const LedgerRow change = SampleRow(100);  // 100, 101, … in the order of the fields
  LedgerRow want = before;
  want.contributed += 100;
  want.contributed_squares += 106;
  LedgerRow applied = want;
  applied.applied += 101;
  applied.residual = 102;
  applied.residual_squares = 107;
  applied.rounded_squares += 111;
  EXPECT_EQ(After({before}, {change}, Verdict::kApply, false), std::vector{applied});
  LedgerRow skipped = want;
  skipped.skipped += 100;
  skipped.skipped_squares += 106;
  EXPECT_EQ(After({before}, {change}, Verdict::kSkip, false), std::vector{skipped});
  LedgerRow dropped = want;
  dropped.dropped += 100;
  dropped.dropped_squares += 106;
  EXPECT_EQ(After({before}, {change}, Verdict::kSkip, true), std::vector{dropped});
}

TEST(LedgerHook, AfterLeavesRowsThatAreNotFinite) {
  const std::vector<LedgerRow> before = {SampleRow(1), SampleRow(20), SampleRow(40)};
  for (const double bad : {kNan, std::numeric_limits<double>::infinity()}) {
    for (const int field : {0, 1, 2, 6, 11}) {
      std::vector<LedgerRow> change = {SampleRow(100), SampleRow(200), SampleRow(300)};
      int at = 0;
      change[1].ForEach(change[1], [&](double& value, double) {
        if (at++ == field) value = bad;
      });
      for (const bool dropped : {false, true}) {
        const auto after = After(before, change, Verdict::kSkip, dropped);
        EXPECT_EQ(after[1], before[1]) << "field " << field;
        EXPECT_EQ(after[0].contributed, 101);
        EXPECT_EQ(after[2].contributed, 340);
      }
    }
  }
}

// The open step's change leads to the account, whatever the verdict, and is of begun buckets only.
TEST(LedgerHook, ChangeIsWhatTheStepAdds) {
  const auto model = LedgerModel(DType::kFloat32);
  for (const Verdict verdict : {Verdict::kApply, Verdict::kSkip}) {
    for (const bool drops : {false, true}) {
      if (drops && verdict == Verdict::kApply) continue;
      LedgerWorld world(2, Form("power_sgd"), model);
      for (std::uint32_t step = 0; step < 5; ++step) {
        ASSERT_EQ(world.Step(RandomGradients(model, 2, step), kAll), Verdict::kApply);
      }
      LedgerHook& ledger = world.ledger(0);
      const std::vector<LedgerRow> before = ledger.account();
      const Values values = RandomGradients(model, 2, 9);
      world.Rehearse(values, {{1, 2}}, 9);
      world.Rehearse(values, {{0}}, 9);  // began again, so that it has no result
      world.Rehearse(values, {{0}}, 0);
      const std::vector<LedgerRow> change = ledger.change();
      EXPECT_EQ(ledger.account(), before) << "the step has not ended";
      for (const std::size_t p : {0U, 1U, 2U, 4U, 5U}) {
        const double given = p < 3 ? Project(model[p], values[0][p]) : 0;
        EXPECT_NEAR(change[p].contributed, given, 1e-9) << model[p].name;
        EXPECT_EQ(change[p].applied != 0, p == 1 || p == 2) << model[p].name;
        EXPECT_EQ(change[p].residual != before[p].residual, p == 1 || p == 2) << model[p].name;
      }
      if (drops) ledger.Drop();
      ledger.EndStep(verdict);
      EXPECT_EQ(ledger.account(), After(before, change, verdict, drops));
      // Nothing of it is left for the next step, and neither is the drop.
      const std::vector<LedgerRow> ended = ledger.account();
      for (const LedgerRow& row : ledger.change()) EXPECT_EQ(row.contributed, 0);
      world.Rehearse(values, {{2}}, 0);
      ledger.EndStep(Verdict::kSkip);
      EXPECT_EQ(ledger.account()[2].dropped, ended[2].dropped);
      EXPECT_NE(ledger.account()[2].skipped, ended[2].skipped);
    }
  }
}

// The caller may use the bucket once it has the result, and Next may be called again.
TEST(LedgerHook, TakesAResultOnceAndInPlace) {
  const std::vector<ParameterSpec> model = {{.name = "w", .shape = {3}}};
  LedgerHook ledger(*HookRegistry::Global().Make({}), model);
  std::vector<float> values = {1, 2, 4};
  auto bucket = GradBucket::Make(0, {DType::kFloat32, values.data(), 3}, model);
  const auto run = *ledger.Start(*bucket, 0);
  ASSERT_TRUE((*run->Next({.world_size = 2})).has_value());
  const ElementRange all{.segment = 0, .begin = 0, .end = 3};
  ASSERT_EQ(run->Raw(all).data(), std::as_bytes(std::span(values)).data());
  values = {16, 32, 64};
  ASSERT_TRUE(run->DecodeInPlace(all).ok());
  ASSERT_FALSE((*run->Next({.world_size = 2})).has_value());
  values = {0, 0, 1000};
  ASSERT_FALSE((*run->Next({.world_size = 2})).has_value());
  run->Commit();
  ledger.EndStep(Verdict::kApply);
  const LedgerRow& row = ledger.account().front();
  EXPECT_EQ(row.contributed, Project(model[0], {1, 2, 4}));
  EXPECT_EQ(row.contributed_squares, 21);
  EXPECT_EQ(row.applied, Project(model[0], {16, 32, 64}));
  EXPECT_EQ(row.rounded_squares, 21 * 257);
}

TEST(LedgerHook, RefusesAParameterThatItDoesNotKnow) {
  const auto model = LedgerModel(DType::kFloat32);
  LedgerHook ledger(*HookRegistry::Global().Make({}), model);
  std::vector<std::byte> bytes(12);
  auto bucket =
      GradBucket::Make(0, {DType::kFloat32, bytes.data(), 3}, {{.name = "stranger", .shape = {3}}});
  const auto run = ledger.Start(*bucket, 0);
  EXPECT_EQ(run.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(run.status().message()), ::testing::HasSubstr("stranger"));
}

}  // namespace
}  // namespace gradwire
