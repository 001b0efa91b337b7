#include "server/core/ledger_tolerance.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::server {
namespace {

using ::testing::HasSubstr;

LedgerTolerance Of(const std::string& comm_hook, std::map<std::string, OptionValue> options = {},
                   const std::string& comm_wrapper = "no",
                   const std::vector<DType>& dtypes = {DType::kFloat32}) {
  SessionOptions session;
  session.spec = {.comm_hook = comm_hook,
                  .comm_wrapper = comm_wrapper,
                  .comm_state_option = std::move(options)};
  std::vector<ParameterSpec> parameters;
  for (const DType dtype : dtypes) {
    parameters.push_back({absl::StrCat("p", parameters.size()), {4}, dtype});
  }
  session.manifest = parameters;
  return LedgerToleranceOf(session);
}

// Sixteen times half a unit in the last place, by the bits of the significand: 24, 11, 8 or 53.
constexpr double kFp32 = 16. / (1 << 24);
constexpr double kFp16 = 16. / (1 << 11);
constexpr double kBf16 = 16. / (1 << 8);
constexpr double kFp64 = 16. / (std::int64_t{1} << 53);

TEST(LedgerTolerance, IsOfTheCoarsestDtypeThatIsRoundedTo) {
  EXPECT_EQ(Of("no").of_balance, kFp32);
  EXPECT_EQ(Of("fp16").of_balance, kFp16);
  EXPECT_EQ(Of("bf16").of_balance, kBf16);
  EXPECT_EQ(Of("no", {}, "no", {DType::kFloat64}).of_balance, kFp64);
  EXPECT_EQ(Of("no", {}, "no", {DType::kFloat64, DType::kFloat32}).of_balance, kFp32);
  EXPECT_EQ(Of("no", {}, "no", {DType::kFloat16}).of_balance, kFp16);
  EXPECT_EQ(Of("fp16", {}, "no", {DType::kFloat32, DType::kBFloat16}).of_balance, kBf16);
  EXPECT_EQ(Of("fp16", {}, "no", {DType::kFloat64}).of_balance, kFp16);
  EXPECT_EQ(Of("no", {}, "bf16").of_balance, kBf16);
  for (const char* hook : {"no", "fp16", "bf16"}) {
    EXPECT_EQ(Of(hook).loses, "");
    EXPECT_EQ(Of(hook, {}, "fp16").loses, "") << "a wrapper only casts";
  }
}

// Their error feedback takes the rounding up, if it takes up what the result leaves out.
TEST(LedgerTolerance, OfPowerSgdDependsOnItsErrorFeedback) {
  const std::map<std::string, OptionValue> aggregate = {{"start_powerSGD_iter", std::int64_t{0}}};
  std::map<std::string, OptionValue> local = aggregate;
  local["error_feedback"] = std::string("local");
  std::map<std::string, OptionValue> none = aggregate;
  none["use_error_feedback"] = false;
  for (const char* hook : {"power_sgd", "batched_power_sgd"}) {
    SCOPED_TRACE(hook);
    EXPECT_EQ(Of(hook, aggregate).of_balance, kFp32);
    EXPECT_EQ(Of(hook, aggregate, "bf16").of_balance, kFp32);
    EXPECT_EQ(Of(hook, aggregate, "bf16").loses, "");
    EXPECT_EQ(Of(hook, {}, "bf16").of_balance, kBf16) << "it begins with 1000 plain means";
    EXPECT_EQ(Of(hook, local).of_balance, kFp32);
    EXPECT_EQ(Of(hook, local, "fp16").of_balance, kFp16);
    EXPECT_EQ(Of(hook, local, "fp16").loses, "");
    EXPECT_THAT(Of(hook, none).loses, HasSubstr("without error feedback"));
    EXPECT_EQ(Of(hook, none, "fp16").of_balance, kFp16);
  }
}

TEST(LedgerTolerance, ARegisteredHookMayLoseWhatItLeavesOut) {
  EXPECT_THAT(Of("top_k", {{"k", std::int64_t{8}}}).loses, HasSubstr("does not know"));
  EXPECT_EQ(Of("top_k").of_balance, kFp32);
  EXPECT_EQ(Of("top_k", {}, "fp16").of_balance, kFp16);
}

}  // namespace
}  // namespace gradwire::server
