#include "server/ctl/plan/plan_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/ctl/doctor/model.h"

namespace gradwire::ctl {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr double kWithin = 0.25;

// ResNet-18 for images of 32 x 32, as tests/bench/net/traffic.py has it.
constexpr char kBenchModel[] =
    "64x3x3x3,2*64,64x64x3x3,2*64,64x64x3x3,2*64,64x64x3x3,2*64,64x64x3x3,2*64,"
    "128x64x3x3,2*128,128x128x3x3,2*128,128x64x1x1,2*128,128x128x3x3,2*128,128x128x3x3,2*128,"
    "256x128x3x3,2*256,256x256x3x3,2*256,256x128x1x1,2*256,256x256x3x3,2*256,256x256x3x3,2*256,"
    "512x256x3x3,2*512,512x512x3x3,2*512,512x256x1x1,2*512,512x512x3x3,2*512,512x512x3x3,2*512,"
    "10x512,10";

Workload WorkloadOf(const std::string& hook, const std::string& shapes = kBenchModel) {
  auto workload = Workload::Make(*HookFromText(hook), *ParseShapes(shapes));
  EXPECT_TRUE(workload.ok()) << workload.status();
  return *std::move(workload);
}

Forecast PredictOf(const Site& site, const Workload& workload, const Topology& topology) {
  auto forecast = Predict(site, workload, topology);
  EXPECT_TRUE(forecast.ok()) << forecast.status();
  return *std::move(forecast);
}

Topology OwnHosts(int shards) { return {.shards = shards}; }
Topology MembersHosts(int shards) {
  return {.placement = Placement::kMembersHosts, .shards = shards};
}

struct Row {
  std::string text;
  Topology topology;
  Site site;
  std::string hook;
  double seconds = 0;
};

// The hook as traffic.py writes it: "power_sgd:4".
std::string HookText(const std::string& word) {
  const std::pair<std::string, std::string> halves = absl::StrSplit(word, absl::MaxSplits(':', 1));
  return halves.second.empty()
             ? word
             : absl::StrCat(halves.first, ",matrix_approximation_rank=", halves.second);
}

double BytesPerSecond(const std::string& rate) {
  if (rate == "100mbit") return 100e6 / 8;
  if (rate == "1gbit") return 1e9 / 8;
  EXPECT_EQ(rate, "unlimited");
  return std::numeric_limits<double>::infinity();
}

Topology TopologyNamed(const std::string& name) {
  if (name == "star") return OwnHosts(1);
  if (name == "own-2") return OwnHosts(2);
  if (name == "own-4") return OwnHosts(4);
  const bool leaves = name.ends_with("leaves");
  if (name == "leaves") return {.leaves = true};
  EXPECT_EQ(name, leaves ? "shard-leaves" : "shards");
  return {.placement = Placement::kMembersHosts, .shards = 4, .leaves = leaves};
}

std::vector<Row> MeasuredRows() {
  std::ifstream file(GRADWIRE_MEASURED);
  std::vector<Row> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.starts_with("#")) continue;
    const std::vector<std::string> cells = absl::StrSplit(line, ',');
    EXPECT_EQ(cells.size(), 7U) << line;
    double round_trip = 0;
    double chunk = 0;
    double milliseconds = 0;
    EXPECT_TRUE(absl::SimpleAtod(cells[2], &round_trip)) << line;
    EXPECT_TRUE(absl::SimpleAtod(cells[4], &chunk)) << line;
    EXPECT_TRUE(absl::SimpleAtod(cells[5], &milliseconds)) << line;
    rows.push_back({.text = line,
                    .topology = TopologyNamed(cells[0]),
                    .site = {.hosts = 4,
                             .members_per_host = cells[0].ends_with("leaves") ? 2 : 1,
                             .link_bytes_per_second = BytesPerSecond(cells[1]),
                             .round_trip_seconds = round_trip / 1e3,
                             .cores = 2,
                             .chunk_bytes = chunk,
                             .one_machine = true},
                    .hook = HookText(cells[3]),
                    .seconds = milliseconds / 1e3});
  }
  return rows;
}

TEST(PlanModel, AgreesWithEveryMeasuredRow) {
  const std::vector<Row> rows = MeasuredRows();
  EXPECT_GE(rows.size(), 50U);
  double squares = 0;
  for (const Row& row : rows) {
    const Forecast forecast = PredictOf(row.site, WorkloadOf(row.hook), row.topology);
    const double error = forecast.seconds / row.seconds - 1;
    squares += error * error;
    EXPECT_LE(std::abs(error), kWithin)
        << row.text << "\npredicted: " << 1e3 * forecast.seconds << " ms";
  }
  // Single rows may be off; together they are closer.
  EXPECT_LE(std::sqrt(squares / static_cast<double>(rows.size())), 0.12);
}

// tests/bench/README.md: two members, 25 MiB each, "shared memory, copied": 10 to 15 ms on 2 cores.
TEST(PlanModel, AgreesWithMembersOnTheDaemonsHost) {
  const Site site{.hosts = 1, .members_per_host = 2, .cores = 2};
  const Workload workload = *Workload::OfElements({}, (25 << 20) / 4);
  const double seconds = PredictOf(site, workload, MembersHosts(1)).seconds;
  EXPECT_GT(seconds, 10e-3);
  EXPECT_LT(seconds, 15e-3);
}

TEST(PlanModel, CountsTheBytesOfEachLink) {
  const Workload plain = WorkloadOf("no", "1000x1000");
  const double model = 4e6;
  for (const int n : {2, 3, 4, 16, 64}) {
    const Site site{.hosts = n};
    const Forecast star = PredictOf(site, plain, OwnHosts(1));
    EXPECT_DOUBLE_EQ(star.member_link_bytes, model);
    EXPECT_DOUBLE_EQ(star.daemon_link_bytes, n * model);
    // A daemon beside each member: what a ring all-reduce sends over each link.
    const Forecast beside = PredictOf(site, plain, MembersHosts(n));
    EXPECT_DOUBLE_EQ(beside.member_link_bytes, 2.0 * (n - 1) / n * model);
    EXPECT_DOUBLE_EQ(beside.daemon_link_bytes, beside.member_link_bytes);
    const Forecast own = PredictOf(site, plain, OwnHosts(2));
    EXPECT_DOUBLE_EQ(own.member_link_bytes, model);
    EXPECT_DOUBLE_EQ(own.daemon_link_bytes, n * model / 2);
  }
  // 8 members on each of 16 hosts. Each of the others' 120 sends a sixteenth to a host's daemon.
  const Site site{.hosts = 16, .members_per_host = 8};
  EXPECT_DOUBLE_EQ(PredictOf(site, plain, OwnHosts(1)).member_link_bytes, 8 * model);
  EXPECT_DOUBLE_EQ(PredictOf(site, plain, OwnHosts(1)).daemon_link_bytes, 128 * model);
  EXPECT_DOUBLE_EQ(PredictOf(site, plain, MembersHosts(16)).daemon_link_bytes,
                   8 * model * 15 / 16 + 120 * model / 16);
  const Forecast leaves = PredictOf(site, plain, {.leaves = true});
  EXPECT_DOUBLE_EQ(leaves.member_link_bytes, model);
  EXPECT_DOUBLE_EQ(leaves.daemon_link_bytes, 16 * model);
  // 4 daemons beside members of 4 of the 16 hosts, one member each.
  const Forecast few = PredictOf({.hosts = 16}, plain, MembersHosts(4));
  EXPECT_DOUBLE_EQ(few.daemon_link_bytes, model * 3 / 4 + 15 * model / 4);
}

TEST(PlanModel, GivesTheBusiestShardItsWholeMatrices) {
  // P and Q of rank 2: (100 + 60) x 2, (80 + 40) x 2 and (30 + 30) x 2 elements, a vector of 10.
  const Workload low_rank =
      WorkloadOf("power_sgd,matrix_approximation_rank=2", "100x60,80x40,30x30,10");
  EXPECT_EQ(low_rank.cost().bytes(), 4U * (320 + 240 + 120 + 10));
  // Two shards: {320} and {240, 120} and the vector with the lighter one.
  EXPECT_DOUBLE_EQ(*low_rank.BusiestShardBytes(2), 4 * 360.0);
  // More shards than matrices do not divide one.
  EXPECT_DOUBLE_EQ(*low_rank.BusiestShardBytes(64), 4 * 320.0);
  EXPECT_THAT(WorkloadOf("batched_power_sgd").BusiestShardBytes(2).status().message(),
              HasSubstr("needs whole buckets"));
}

TEST(PlanModel, IsMonotonic) {
  for (const char* hook : {"no", "fp16", "power_sgd", "power_sgd,comm_wrapper=fp16"}) {
    const Workload workload = WorkloadOf(hook);
    for (const Topology& topology :
         {OwnHosts(1), OwnHosts(4), MembersHosts(4), Topology{.shards = 4, .leaves = true}}) {
      const Site base{.hosts = 8, .members_per_host = 2};
      const double at = PredictOf(base, workload, topology).seconds;
      const auto seconds = [&](auto change) {
        Site site = base;
        change(site);
        return PredictOf(site, workload, topology).seconds;
      };
      EXPECT_LE(at, seconds([](Site& site) { site.link_bytes_per_second /= 2; })) << hook;
      EXPECT_LE(at, seconds([](Site& site) { site.cores /= 2; })) << hook;
      EXPECT_LE(at, seconds([](Site& site) { site.hosts *= 2; })) << hook;
      EXPECT_LE(at, seconds([](Site& site) { site.members_per_host *= 2; })) << hook;
      EXPECT_LT(at, seconds([](Site& site) { site.round_trip_seconds *= 10; })) << hook;
    }
  }
}

TEST(PlanModel, NeedsMoreTimeForAWanWhoseWindowsAreSmall) {
  // 64 chunks of a member in each round trip of 0.5 s, on a link that could take them all at once.
  const Site site{
      .hosts = 2, .link_bytes_per_second = 1e12, .round_trip_seconds = 0.5, .cores = 64};
  const Workload workload = *Workload::OfElements({}, 100'000'000);
  const double windows = 4e8 / (64 * kChunkBytes);
  EXPECT_NEAR(PredictOf(site, workload, OwnHosts(1)).seconds, windows * 0.5 + 2 * 0.5, 0.01);
}

TEST(Plan, HasSomethingForOneHostAndForThousands) {
  const Workload workload = WorkloadOf("no");
  const auto one = MakePlan({.hosts = 1, .members_per_host = 4}, workload);
  ASSERT_TRUE(one.ok()) << one.status();
  const Forecast& local = one->forecasts[one->recommended];
  EXPECT_THAT(one->why, StartsWith("a daemon on the members' host: "));
  EXPECT_EQ(local.daemon_link_bytes, 0);
  EXPECT_EQ(local.limit, Limit::kProcessor);
  // A session has at most 64 shards and 4096 members.
  const auto flat = MakePlan({.hosts = 4096}, workload);
  ASSERT_TRUE(flat.ok()) << flat.status();
  for (const Forecast& each : flat->forecasts) {
    EXPECT_LE(each.topology.shards, 64);
    EXPECT_TRUE(std::isfinite(each.seconds) && each.seconds > 0);
  }
  EXPECT_TRUE(flat->left_out.empty());
  const auto deep = MakePlan({.hosts = 4096, .members_per_host = 64}, workload);
  ASSERT_TRUE(deep.ok()) << deep.status();
  EXPECT_THAT(deep->left_out.front().why, HasSubstr("262144 members; a session has at most 4096"));
  for (const Forecast& each : deep->forecasts) EXPECT_TRUE(each.topology.leaves);
}

TEST(Plan, RecommendsWhatItsRulesSay) {
  // Nothing to gain: one daemon.
  const auto idle = MakePlan({.hosts = 8}, WorkloadOf("noop"));
  EXPECT_THAT(idle->why, StartsWith("star: nothing else is faster"));
  // The fastest would need as many hosts again.
  const auto four = MakePlan({.hosts = 4}, WorkloadOf("no"));
  EXPECT_THAT(four->why, StartsWith("shards on the members' hosts: "));
  EXPECT_THAT(four->why, HasSubstr("but need 4 more hosts"));
  // One member's contribution instead of 8 over each link.
  const auto groups = MakePlan({.hosts = 16, .members_per_host = 8}, WorkloadOf("no"));
  EXPECT_TRUE(groups->forecasts[groups->recommended].topology.leaves);
  // In a step that computes for long, the simplest is as good.
  const Workload small = WorkloadOf("power_sgd");
  EXPECT_EQ(MakePlan({.hosts = 8}, small, 10)->recommended, 0U);
  EXPECT_NE(MakePlan({.hosts = 8}, small, 0)->recommended, 0U);
  // Hooks that need whole buckets have one daemon, or leaves.
  const auto whole = MakePlan({.hosts = 8}, WorkloadOf("batched_power_sgd"));
  EXPECT_EQ(whole->forecasts.size(), 1U);
  EXPECT_EQ(whole->left_out.size(), 1U);
}

TEST(Workload, FillsBucketsAsDistributedDataParallel) {
  // Reversed: 512 KiB + 1 MiB close the first bucket, 20 + 20 MiB the second, 4 MiB are left.
  const Buckets buckets = BucketsOf(*ParseShapes("1024x1024,2*5x1024x1024,256x1024,128x1024"));
  EXPECT_EQ(buckets.count, 3U);
  EXPECT_DOUBLE_EQ(buckets.largest_share, 40 / (4 + 40 + 1.5));
  const auto flat = Workload::OfElements({}, 7'000'000'000);
  ASSERT_TRUE(flat.ok()) << flat.status();
  EXPECT_EQ(flat->cost().bytes(), 28'000'000'000U);
  EXPECT_EQ(flat->buckets().count, 1069U);
  EXPECT_THAT(Workload::OfElements(*HookFromText("power_sgd"), 1000).status().message(),
              HasSubstr("depend on shapes"));
}

TEST(Workload, HasTheRoundsThatTheHookHas) {
  const auto model = ParseShapes("100x50,7");
  for (const char* text :
       {"no", "fp16", "noop", "power_sgd,matrix_approximation_rank=3",
        "power_sgd,comm_wrapper=bf16", "batched_power_sgd", "power_sgd,start_powerSGD_iter=1"}) {
    const HookSpec spec = *HookFromText(text);
    const auto planned = PlannedRounds(spec, *model);
    const auto measured = MeasureCost(spec, *model);
    ASSERT_TRUE(planned.ok() && measured.ok()) << text;
    ASSERT_EQ(planned->size(), measured->rounds.size()) << text;
    for (std::size_t i = 0; i < planned->size(); ++i) {
      EXPECT_EQ((*planned)[i].streamed_bytes, measured->rounds[i].streamed_bytes) << text;
      EXPECT_EQ((*planned)[i].whole_bytes, measured->rounds[i].whole_bytes) << text;
    }
  }
}

}  // namespace
}  // namespace gradwire::ctl
