#include "server/ctl/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace gradwire::ctl {
namespace {

constexpr int kDaemon = 10'000;  // its process; ranks follow

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TraceTest : public ::testing::Test {
 protected:
  TraceTest() {
    trace_.summary.set_session("s");
    trace_.summary.set_world_size(2);
    trace_.summary.mutable_hook()->set_comm_hook("power_sgd");
    trace_.summary.set_complete_steps(1);
    trace_.summary.set_end(v1::TRACE_END_COMPLETE);
  }

  // Times in microseconds.
  v1::TimelineEvent& Add(v1::TimelineKind kind, int rank, int begin, int end,
                         std::uint32_t round = 0) {
    v1::TimelineEvent& event = trace_.events.emplace_back();
    event.set_kind(kind);
    event.set_rank(rank);
    event.set_name(name_);
    event.set_round(round);
    event.set_begin_ns(begin * 1000);
    event.set_end_ns(end * 1000);
    event.set_ended(true);
    event.set_rounds(2);
    event.set_parameters(3);
    return event;
  }
  // Two rounds; rank 1 is late. The second round's sum begins before rank 1 has sent all.
  void AddStep() {
    Add(v1::TIMELINE_KIND_STEP, -1, 0, 80).set_verdict(v1::STEP_VERDICT_APPLY);
    for (int rank : {0, 1}) {
      Add(v1::TIMELINE_KIND_MEMBER_STEP, rank, 10 * rank, 90).set_verdict(v1::STEP_VERDICT_APPLY);
      Add(v1::TIMELINE_KIND_GRANT, rank, 10 * rank, 10 * rank + 2);
    }
    Add(v1::TIMELINE_KIND_CONTRIBUTE, 0, 4, 6);
    Add(v1::TIMELINE_KIND_CONTRIBUTE, 1, 14, 20);
    Add(v1::TIMELINE_KIND_SUM, -1, 20, 25);
    for (int rank : {0, 1}) Add(v1::TIMELINE_KIND_RESULT, rank, 25, 30 + rank);
    Add(v1::TIMELINE_KIND_CONTRIBUTE, 0, 29, 40, 1);
    Add(v1::TIMELINE_KIND_CONTRIBUTE, 1, 40, 60, 1);
    Add(v1::TIMELINE_KIND_SUM, -1, 50, 80, 1);
    for (int rank : {0, 1}) Add(v1::TIMELINE_KIND_RESULT, rank, 55, 90, 1);
  }
  json Written() { return json::parse(TraceJson(trace_)); }
  // Names with begin and end, by process, in the order of the file.
  std::vector<std::string> Slices(int process) {
    std::vector<std::string> slices;
    const json written = Written();
    for (const json& event : written["traceEvents"]) {
      // Viewers would draw it first, as the main thread.
      EXPECT_NE(event["pid"], event["tid"]);
      if (event["ph"] != "X" || event["pid"] != process) continue;
      const int begin = event["ts"].get<int>();
      slices.push_back(event["name"].get<std::string>() + " " + std::to_string(begin) + "-" +
                       std::to_string(begin + event["dur"].get<int>()));
    }
    return slices;
  }

  std::string name_ = "w";
  Trace trace_;
};

TEST_F(TraceTest, ShowsWhatEachMemberDoesAndWaitsFor) {
  AddStep();
  EXPECT_THAT(Slices(kDaemon),
              ElementsAre("step 0: apply 0-80", "w (+2) round 1 {uncompressed, P} 20-25",
                          "w (+2) round 2 {Q} 50-80"));
  EXPECT_THAT(
      Slices(kDaemon + 1),
      ElementsAre("step 0: apply 0-90", "w (+2) 0-90", "waits for grant 0-2",
                  "round 1 {uncompressed, P}: contribute 4-6",
                  "round 1 {uncompressed, P}: waits for rank 1 6-20",
                  "round 1 {uncompressed, P}: sum 20-25", "round 1 {uncompressed, P}: result 25-29",
                  "round 2 {Q}: contribute 29-40", "round 2 {Q}: waits for rank 1 40-50",
                  "round 2 {Q}: sum 50-80", "round 2 {Q}: result 80-90"));
  EXPECT_THAT(
      Slices(kDaemon + 2),
      ElementsAre("step 0: apply 10-90", "w (+2) 10-90", "waits for grant 10-12",
                  "round 1 {uncompressed, P}: contribute 14-20",
                  "round 1 {uncompressed, P}: sum 20-25", "round 1 {uncompressed, P}: result 25-31",
                  "round 2 {Q}: contribute 40-60", "round 2 {Q}: sum 60-80",
                  "round 2 {Q}: result 80-90"));
}

// Rank 0 has filled its window and waits for rank 1's first bytes.
TEST_F(TraceTest, ShowsTheWaitOfAFullWindow) {
  for (int rank : {0, 1}) Add(v1::TIMELINE_KIND_GRANT, rank, 0, 0);
  Add(v1::TIMELINE_KIND_CONTRIBUTE, 0, 10, 900).set_before_sums_ns(20'000);
  Add(v1::TIMELINE_KIND_CONTRIBUTE, 1, 800, 950).set_before_sums_ns(800'000);
  Add(v1::TIMELINE_KIND_SUM, -1, 800, 960);
  trace_.summary.mutable_hook()->set_comm_hook("no");
  EXPECT_THAT(
      Slices(kDaemon + 1),
      ElementsAre("w (+2) 0-960", "round 1: contribute 10-20", "round 1: waits for rank 1 20-800",
                  "round 1: contribute the rest 800-900", "round 1: sum 900-960"));
  EXPECT_THAT(Slices(kDaemon + 2),
              ElementsAre("w (+2) 0-960", "round 1: contribute 800-950", "round 1: sum 950-960"));
}

// Viewers need it sorted, and slices of one row nested or apart.
TEST_F(TraceTest, IsSortedAndEachRowNests) {
  AddStep();
  for (int i = 0; i < 3; ++i) {  // buckets that overlap with the first and with each other
    v1::TimelineEvent& grant = Add(v1::TIMELINE_KIND_GRANT, 0, 5 + i, 70 + 20 * i);
    grant.set_bucket(static_cast<std::uint32_t>(i + 1));
  }
  std::stable_sort(trace_.events.begin(), trace_.events.end(),
                   [](const auto& a, const auto& b) { return a.begin_ns() < b.begin_ns(); });
  double last = 0;
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> open;
  const json written = Written();
  for (const json& event : written["traceEvents"]) {
    if (event["ph"] == "M") continue;
    const double begin = event["ts"];
    const double end = begin + event["dur"].get<double>();
    EXPECT_GE(begin, last);
    last = begin;
    EXPECT_GE(end, begin);
    auto& row = open[{event["pid"], event["tid"]}];
    while (!row.empty() && row.back().second <= begin) row.pop_back();
    if (!row.empty()) {
      EXPECT_LE(end, row.back().second) << event;
    }
    row.emplace_back(begin, end);
  }
}

TEST_F(TraceTest, NamesMayHoldAnything) {
  name_ = "a\"b\\c\nd\x01é</script>\xff";
  AddStep();
  const json written = Written();
  bool found = false;
  for (const json& event : written["traceEvents"]) {
    found |= event["name"] == "a\"b\\c\nd\x01é</script>\xEF\xBF\xBD (+2)";
  }
  EXPECT_TRUE(found);
  EXPECT_EQ(written["otherData"]["session"], "s");
}

TEST_F(TraceTest, UnfinishedAndEagerSpansAndMoments) {
  Add(v1::TIMELINE_KIND_STEP, -1, 0, 0).set_ended(false);
  Add(v1::TIMELINE_KIND_GRANT, 0, 0, 0).set_eager(true);
  Add(v1::TIMELINE_KIND_CONTRIBUTE, 0, 0, 0);
  Add(v1::TIMELINE_KIND_BROKEN, 1, 40, 40);
  EXPECT_THAT(Slices(kDaemon), ElementsAre("step 0: unfinished 0-40"));
  EXPECT_THAT(Slices(kDaemon + 1),
              ElementsAre("w (+2) 0-40", "round 1 {uncompressed, P}: contribute 0-1",
                          "round 1 {uncompressed, P}: waits for others 1-40"));
  EXPECT_THAT(TraceJson(trace_), HasSubstr("connection lost"));
}

TEST_F(TraceTest, SaysHowFarItCame) {
  EXPECT_EQ(TraceOutcome(trace_, 1), "1 of 1 steps");
  trace_.summary.set_end(v1::TRACE_END_TIME);
  trace_.summary.set_first_step(7);
  EXPECT_THAT(TraceOutcome(trace_, 5), HasSubstr("1 of 5 steps; step 8 did not end in time"));
  trace_.summary.set_end(v1::TRACE_END_FULL);
  EXPECT_THAT(TraceOutcome(trace_, 5), HasSubstr("truncated"));
  trace_.summary.set_end(v1::TRACE_END_SESSION);
  EXPECT_THAT(TraceOutcome(trace_, 5), HasSubstr("the session ended"));
}

TEST_F(TraceTest, NothingRecordedIsADocument) {
  EXPECT_EQ(Written()["traceEvents"].size(), 3 * 4U);  // names and orders of rows
  EXPECT_THAT(Slices(kDaemon), ElementsAre());
}

// Of two daemons, whose recordings began 100 us apart.
TEST_F(TraceTest, SeveralDaemonsStandSideBySide) {
  AddStep();
  Trace second = trace_;
  trace_.daemon = "a:1";
  second.daemon = "b:1";
  second.summary.set_complete_steps(0);
  for (v1::TimelineEvent& event : second.events) {
    event.set_begin_ns(event.begin_ns() + 100'000);
    event.set_end_ns(event.end_ns() + 100'000);
  }
  const json written = json::parse(TraceJson(std::vector<Trace>{trace_, second}));
  EXPECT_EQ(written["otherData"]["daemons"], 2);
  EXPECT_EQ(written["otherData"]["complete steps"], 0);
  std::map<int, std::string> names;
  std::map<int, double> steps;
  for (const json& event : written["traceEvents"]) {
    EXPECT_NE(event["pid"], event["tid"]);
    const int process = event["pid"];
    if (event["name"] == "process_name") names[process] = event["args"]["name"];
    if (event["name"] == "step 0: apply") steps[process] = event["ts"];
  }
  EXPECT_EQ(names, (std::map<int, std::string>{{kDaemon, "daemon a:1: session s, power_sgd"},
                                               {kDaemon + 1, "rank 0 at a:1"},
                                               {kDaemon + 2, "rank 1 at a:1"},
                                               {kDaemon + 3, "daemon b:1: session s, power_sgd"},
                                               {kDaemon + 4, "rank 0 at b:1"},
                                               {kDaemon + 5, "rank 1 at b:1"}}));
  // The first one's moves to the second one's, each member at its distance from it.
  EXPECT_EQ(steps, (std::map<int, double>{{kDaemon, 100},
                                          {kDaemon + 1, 100},
                                          {kDaemon + 2, 110},
                                          {kDaemon + 3, 100},
                                          {kDaemon + 4, 100},
                                          {kDaemon + 5, 110}}));
}

}  // namespace
}  // namespace gradwire::ctl
