// Reports of members that gather, and what is expected of them.
#pragma once

#include <cstdint>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/gathering.h"

namespace gradwire::server {

using Report = wire::MemberReport;

inline const std::string kKey(wire::kSessionKeyBytes, 'k');

inline Report At(std::int64_t step) {
  return {.session_key = kKey, .lineage = 5, .step = step, .last = Verdict::kApply};
}
inline Report Contributed(std::int64_t step, bool may_have_results) {
  Report report = At(step);
  report.has_contributed = true;
  report.may_have_results = may_have_results;
  return report;
}
inline Report Ready(std::int64_t step, Verdict verdict = Verdict::kApply,
                    std::uint64_t digest = 9) {
  Report report = Contributed(step, true);
  report.ready = {.verdict = verdict, .digest = digest};
  return report;
}

inline void ExpectEnded(const absl::StatusOr<Gathering::Outcome>& outcome, std::int64_t step,
                        Verdict verdict) {
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->step, step + 1);
  ASSERT_THAT(outcome->ended, ::testing::SizeIs(1));
  EXPECT_EQ(outcome->ended[0].step, step);
  EXPECT_EQ(outcome->ended[0].verdict, verdict);
  EXPECT_EQ(outcome->ended[0].dropped, verdict == Verdict::kSkip);
}

}  // namespace gradwire::server
