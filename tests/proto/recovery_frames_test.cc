// Reports of members, as protobuf has them.
#include "proto/wire/recovery_frames.h"

#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::wire {
namespace {

using ::testing::HasSubstr;

MemberReport Report() {
  return {.session_key = "0123456789abcdef",
          .lineage = 0x1122334455667788,
          .step = 41,
          .last = Verdict::kSkip,
          .before_last = Verdict::kApply,
          .has_contributed = true,
          .may_have_results = true,
          .ready = MemberReport::Readiness{.verdict = Verdict::kSkip, .digest = 7},
          .collectives = 3,
          .chunk_bytes = 32768,
          .window_chunks = 16,
          .eager_bytes = 65536,
          .newcomer = true,
          .keeps_gradients = true,
          .roster = Roster{.number = 4, .ranks = {0, 2, 3}},
          .concluded = {0, 1, 2, 3},
          .has_seen_results = true,
          .in_collective = true,
          .life = 6,
          .chain = 0xfeed,
          .skipped = 3,
          .has_leaves = true,
          .arbiter = 0xbeef,
          .shares = 4};
}

std::string Refusal(const v1::MemberReport& message) {
  const absl::StatusOr<MemberReport> report = FromProto(message);
  EXPECT_EQ(report.status().code(), absl::StatusCode::kInvalidArgument) << report.status();
  return std::string(report.status().message());
}

TEST(MemberReport, ComesBackAsItWas) {
  EXPECT_EQ(*FromProto(ToProto(Report())), Report());
  MemberReport first = Report();
  first.last = first.before_last = std::nullopt;
  first.ready = std::nullopt;
  EXPECT_EQ(*FromProto(ToProto(first)), first);
}

TEST(MemberReport, IsRefusedByField) {
  v1::MemberReport message = ToProto(Report());
  message.set_session_key("short");
  EXPECT_THAT(Refusal(message), HasSubstr("report.session_key"));
  message = ToProto(Report());
  message.set_session_key(std::string(1 << 20, 'x'));
  EXPECT_THAT(Refusal(message), HasSubstr("report.session_key"));
  message = ToProto(Report());
  message.set_step(-1);
  EXPECT_THAT(Refusal(message), HasSubstr("report.step"));
  message.set_step(std::numeric_limits<std::int64_t>::max() - 1);
  EXPECT_THAT(Refusal(message), HasSubstr("report.step"));
  message = ToProto(Report());
  message.set_last(static_cast<v1::StepVerdict>(9));
  EXPECT_THAT(Refusal(message), HasSubstr("report.verdict"));
  message = ToProto(Report());
  message.mutable_ready()->clear_verdict();
  EXPECT_THAT(Refusal(message), HasSubstr("report.verdict"));
}

}  // namespace
}  // namespace gradwire::wire
