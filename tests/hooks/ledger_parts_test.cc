// Accounts of a model with more parameters than rows, and of members that reduce a bucket in
// slices.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/hooks/registry.h"
#include "gtest/gtest.h"
#include "tests/hooks/ledger_world.h"

namespace gradwire {
namespace {

using namespace ::gradwire::testing;  // NOLINT(google-build-using-namespace)

const double kFp32 = std::ldexp(1.0, -24);

// ---- More parameters than rows

TEST(LedgerHook, ManyParametersShareRows) {
  EXPECT_EQ(LedgerRowsOf(256), 256U);
  EXPECT_EQ(LedgerRowsOf(257), 256U);
  for (const std::size_t count : {1U, 255U, 256U, 257U, 600U, 100000U}) {
    std::vector<std::size_t> used(LedgerRowsOf(count));
    std::size_t last = 0;
    for (std::size_t p = 0; p < count; ++p) {
      const std::size_t row = LedgerRowOf(p, count);
      ASSERT_LT(row, used.size());
      ASSERT_GE(row, last) << "neighbours do not stay together";
      last = row;
      ++used[row];
    }
    EXPECT_LE(std::ranges::max(used) - std::ranges::min(used), 1U) << count;
  }
  std::vector<ParameterSpec> model;
  Buckets buckets(2);
  for (std::size_t p = 0; p < 600; ++p) {
    model.push_back({.name = "w" + std::to_string(p),
                     .shape = {2 + static_cast<std::int64_t>(p % 7), 3},
                     .dtype = DType::kFloat32});
    buckets[p % 2].push_back(p);
  }
  for (const char* spec : {"no", "power_sgd,start_powerSGD_iter=1,min_compression_rate=0.5"}) {
    LedgerWorld world(3, spec, model);
    for (std::uint32_t step = 0; step < 8; ++step) {
      const Values values = RandomGradients(model, 3, step);
      if (step == 4) {
        world.DroppedStep(values, {buckets[0]}, {buckets[1]});
      } else {
        ASSERT_EQ(world.Step(values, buckets), Verdict::kApply);
      }
    }
    EXPECT_EQ(world.ledger(0).account().size(), 256U);
    world.ExpectAccounts();
    world.ExpectClosed(kFp32);
  }
}

// ---- Slices

// One member's bucket, of which each of the runs has a slice. Results are `mean`, wherever a run
// has its slice.
void RunSlices(std::vector<std::unique_ptr<LedgerHook>>& hooks,
               const std::vector<ParameterSpec>& model, const Vector& gradient, const Vector& mean,
               Verdict verdict) {
  const DType dtype = model.front().dtype;
  std::vector<std::byte> bytes = Packed(dtype, gradient);
  auto bucket = GradBucket::Make(0, {dtype, bytes.data(), gradient.size()}, model);
  ASSERT_TRUE(bucket.ok()) << bucket.status();
  for (std::uint32_t part = 0; part < hooks.size(); ++part) {
    const Slice slice{.part = part, .parts = static_cast<std::uint32_t>(hooks.size())};
    auto run = hooks[part]->Start(*bucket, 0);
    ASSERT_TRUE(run.ok()) << run.status();
    const auto plan = (*run)->Next({.world_size = 2, .slice = slice});
    ASSERT_TRUE(plan.ok() && plan->has_value());
    const auto [begin, end] = slice.Of(gradient.size());
    const Segment& segment = (*plan)->segments.front();
    const std::vector<std::byte> wire =
        Packed(segment.dtype, Vector(mean.begin() + static_cast<std::ptrdiff_t>(begin),
                                     mean.begin() + static_cast<std::ptrdiff_t>(end)));
    ASSERT_TRUE((*run)->Decode({.segment = 0, .begin = begin, .end = end}, wire).ok());
    ASSERT_FALSE((*run)->Next({.world_size = 2, .slice = slice})->has_value());
    verdict == Verdict::kApply ? (*run)->Commit() : (*run)->Abort();
  }
  for (const auto& hook : hooks) hook->EndStep(verdict);
}

TEST(LedgerHook, SlicesAddUpToTheWhole) {
  const std::vector<ParameterSpec> model = {
      {.name = "a", .shape = {700}, .dtype = DType::kFloat32},
      {.name = "b", .shape = {3000}, .dtype = DType::kFloat32},
      {.name = "c", .shape = {0}, .dtype = DType::kFloat32},
      {.name = "d", .shape = {5000}, .dtype = DType::kFloat32}};
  for (const char* spec : {"no", "fp16"}) {
    for (const std::size_t parts : {2U, 3U, 12U}) {  // 12: some have none
      std::vector<std::unique_ptr<LedgerHook>> whole;
      std::vector<std::unique_ptr<LedgerHook>> sliced;
      for (std::size_t i = 0; i <= parts; ++i) {
        auto hook = HookRegistry::Global().Make(*HookSpec::Parse(spec));
        ASSERT_TRUE(hook.ok());
        (i == 0 ? whole : sliced).push_back(std::make_unique<LedgerHook>(*std::move(hook), model));
      }
      for (std::uint32_t step = 0; step < 6; ++step) {
        const std::vector<ParameterSpec> flat = {{.name = "all", .shape = {8700}}};
        const Vector gradient = RandomGradients(flat, 1, step)[0][0];
        const Vector mean = RandomGradients(flat, 1, step + 50)[0][0];
        const Verdict verdict = step == 3 ? Verdict::kSkip : Verdict::kApply;
        RunSlices(whole, model, gradient, mean, verdict);
        RunSlices(sliced, model, gradient, mean, verdict);
      }
      std::vector<LedgerRow> sum(model.size());
      std::size_t active = 0;
      for (const auto& hook : sliced) {
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += hook->account()[i];
        active += hook->account()[3].contributed_squares > 0 ? 1U : 0U;
      }
      EXPECT_GT(active, 1U) << "one slice has the whole parameter";
      for (std::size_t i = 0; i < sum.size(); ++i) {
        const LedgerRow& want = whole[0]->account()[i];
        EXPECT_EQ(want.contributed_squares > 0, i != 2);
        const double squares = want.contributed_squares + want.rounded_squares;
        sum[i].ForEach(want, [&](double value, double wanted) {
          EXPECT_NEAR(value, wanted, 1e-12 * std::max(squares, std::sqrt(squares)));
        });
      }
    }
  }
}

}  // namespace
}  // namespace gradwire
