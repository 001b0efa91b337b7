// The ledger's frames from a peer that may send anything.
#include "proto/wire/ledger_frames.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/wire/codec.h"
#include "proto/wire/proto_conversion.h"
#include "tests/proto/frame_samples.h"

namespace gradwire::wire {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Its message has been changed so that `error` is the whole answer.
struct Hostile {
  std::string error;
  std::function<void(v1::LedgerAccount&)> change;
};

std::vector<Hostile> HostileAccounts() {
  using Account = v1::LedgerAccount;
  const auto add_rows = [](auto* rows, int count) {
    while (rows->size() < count) rows->Add();
  };
  return {
      {"ledger_account.step: -1; allowed: 0 to 9223372036854775807",
       [](Account& account) { account.set_step(-1); }},
      {"ledger_account.before: has 257 entries; allowed: 0 to 256",
       [=](Account& account) { add_rows(account.mutable_before(), 257); }},
      {"ledger_account.change: has 257 entries; allowed: 0 to 256",
       [=](Account& account) { add_rows(account.mutable_change(), 257); }},
      {"ledger_account.before: a value that is not finite; allowed: finite values",
       [](Account& account) { account.mutable_before(1)->set_residual(kNan); }},
      {"ledger_account.before: a value that is not finite; allowed: finite values",
       [](Account& account) { account.mutable_before(0)->set_rounded_squares(kInfinity); }},
      {"ledger_account.earlier: has 4 entries; allowed: 0 to 3",
       [](Account& account) {
         while (account.earlier_size() < 4) account.add_earlier();
       }},
      {"ledger_account.earlier.step: -7; allowed: 0 to 9223372036854775807",
       [](Account& account) { account.mutable_earlier(0)->set_step(-7); }},
      {"ledger_account.earlier.step: 39; allowed: 40 to 9223372036854775807",
       [](Account& account) { account.mutable_earlier(1)->set_step(39); }},
      {"ledger_account.earlier.own: has 257 entries; allowed: 0 to 256",
       [=](Account& account) { add_rows(account.mutable_earlier(1)->mutable_own(), 257); }},
      {"ledger_account.earlier.own: a value that is not finite; allowed: finite values",
       [](Account& account) { account.mutable_earlier(1)->mutable_own(0)->set_lost(-kInfinity); }},
      {"ledger_account.earlier.total: has 257 entries; allowed: 0 to 256",
       [=](Account& account) { add_rows(account.mutable_earlier(1)->mutable_total(), 257); }},
      {"ledger_account.earlier.total: a value that is not finite; allowed: finite values",
       [](Account& account) { account.mutable_earlier(0)->mutable_total(0)->set_applied(kNan); }},
  };
}

TEST(LedgerFrames, HostileAccountsAreRefusedByField) {
  for (const Hostile& hostile : HostileAccounts()) {
    v1::Header header = ToProto(SampleOf<LedgerAccount>());
    hostile.change(*header.mutable_ledger_account());
    const absl::Status status = FromProto(header).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << hostile.error;
    EXPECT_EQ(status.message(), hostile.error);
    // As it comes from a stream.
    v1::Frame frame;
    *frame.mutable_header() = header;
    EXPECT_EQ(Parse(Cut(frame.SerializeAsString(), {}), {}).status().message(), hostile.error);
  }
}

TEST(LedgerFrames, HostileTotalsAreRefusedByField) {
  const auto refusal = [](const std::function<void(v1::LedgerTotal&)>& change) {
    v1::Header header = ToProto(SampleOf<LedgerTotal>());
    change(*header.mutable_ledger_total());
    return std::string(FromProto(header).status().message());
  };
  EXPECT_EQ(refusal([](v1::LedgerTotal& total) { total.set_step(-1); }),
            "ledger_total.step: -1; allowed: 0 to 9223372036854775807");
  EXPECT_EQ(refusal([](v1::LedgerTotal& total) { total.mutable_rows(1)->set_lost(kNan); }),
            "ledger_total.rows: a value that is not finite; allowed: finite values");
  EXPECT_EQ(refusal([](v1::LedgerTotal& total) {
              while (total.rows_size() < 257) total.add_rows();
            }),
            "ledger_total.rows: has 257 entries; allowed: 0 to 256");
}

// The step is a skip then, and the row counts as nothing.
TEST(LedgerFrames, TheOpenStepsGradientNeedNotBeFinite) {
  LedgerAccount account = SampleOf<LedgerAccount>();
  account.change[1].contributed = kInfinity;
  const absl::StatusOr<Header> back = FromProto(ToProto(account));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(std::get<LedgerAccount>(*back), account);
}

TEST(LedgerFrames, TheLargestAccountPasses) {
  LedgerAccount account{.step = std::numeric_limits<std::int64_t>::max(),
                        .generation = std::numeric_limits<std::uint64_t>::max()};
  const double large = std::numeric_limits<double>::max();
  account.before.assign(256, {.contributed = large, .rounded_squares = -large});
  account.change = account.before;
  for (const std::int64_t step : {std::int64_t{0}, account.step - 1, account.step}) {
    account.earlier.push_back({.step = step, .own = account.before, .total = account.before});
  }
  const absl::StatusOr<Frame> frame = Parse(Serialize(account, nullptr), {});
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(std::get<LedgerAccount>(frame->header), account);
}

}  // namespace
}  // namespace gradwire::wire
