#include "server/core/wait_log.h"

#include "tests/server/core/session_harness.h"

namespace gradwire::server {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr absl::Duration kMs = absl::Milliseconds(1);
constexpr std::uint32_t kBuckets[] = {0, 1, 2};

// Four members, three parameters of one chunk each, two of which may be open.
class WaitLogTest : public ::testing::Test {
 protected:
  static SessionOptions Options() {
    SessionOptions options = SmallOptions(4);
    options.manifest = {
        {"a", {16}, DType::kFloat32}, {"b", {16}, DType::kFloat32}, {"c", {16}, DType::kFloat32}};
    return options;
  }

  void SetUp() override { harness_.Start(); }

  // Each event is at a time since the step's first one.
  void At(absl::Duration time) {
    harness_.now = begin_ + time;
    harness_.session.Observe(harness_.now);
  }
  void Announce(int rank, std::uint32_t bucket) { harness_.Announce(rank, {bucket}); }
  void Send(int rank, std::uint32_t bucket) { harness_.Contribute(rank, bucket, 1); }
  void AnnounceAndSend(int rank, std::uint32_t bucket) {
    Announce(rank, bucket);
    Send(rank, bucket);
  }
  void Acknowledge(std::uint32_t bucket, const std::vector<int>& ranks = {0, 1, 2, 3}) {
    for (const int r : ranks) {
      harness_.Receive(r, wire::Ack{.id = {.step = step_, .bucket = bucket}, .received = 1});
    }
  }
  // The step has ended at this time, and the next one begins.
  const StepRecord& End(absl::Duration time) {
    EXPECT_EQ(harness_.session.step(), step_ + 1);
    At(time + 50 * kMs);
    ++step_;
    begin_ = harness_.now + absl::Seconds(1);
    const StepRecord& record = harness_.session.waits().recent().back();
    EXPECT_EQ(record.step, step_ - 1);
    EXPECT_EQ(record.duration(), time);
    return record;
  }
  static std::vector<absl::Duration> Compute(const StepRecord& record) {
    std::vector<absl::Duration> caused;
    for (const auto& member : record.members) caused.push_back(member.caused.compute);
    return caused;
  }
  static std::vector<absl::Duration> Link(const StepRecord& record) {
    std::vector<absl::Duration> caused;
    for (const auto& member : record.members) caused.push_back(member.caused.link);
    return caused;
  }
  // A step as DistributedDataParallel does it, in which one member is late with its backward.
  void OverlappingStep(int late, absl::Duration by) {
    // In the order of time: the others at 10, 20 and 30 ms.
    std::multimap<absl::Duration, std::pair<int, std::uint32_t>> events;
    for (int r = 0; r < 4; ++r) {
      for (std::uint32_t b = 0; b < 3; ++b) {
        events.emplace((b + 1) * 10 * kMs + (r == late ? by : absl::ZeroDuration()),
                       std::pair(r, b));
      }
    }
    std::map<std::uint32_t, int> announced;
    for (const auto& [time, event] : events) {
      At(time - 10 * kMs);
      Announce(event.first, event.second);
      if (++announced[event.second] < 4) continue;
      for (int r = 0; r < 4; ++r) Send(r, event.second);
      harness_.Reduce();
      Acknowledge(event.second);
    }
  }

  SessionHarness harness_{Options()};
  absl::Time begin_ = harness_.now;
  std::int64_t step_ = 0;
};

using Durations = std::vector<absl::Duration>;
const Durations kNone(4);

TEST_F(WaitLogTest, TheLateMemberCausesTheWaitAndNotTheOverlap) {
  // That members overlap shows in the first step, after its first pause.
  OverlappingStep(2, 200 * kMs);
  EXPECT_EQ(Compute(End(220 * kMs)), (Durations{{}, {}, 210 * kMs, {}}));
  OverlappingStep(2, 200 * kMs);
  const StepRecord& record = End(220 * kMs);
  // The others had all announced at 20 ms; before, they computed as well.
  EXPECT_EQ(Compute(record), (Durations{{}, {}, 200 * kMs, {}}));
  EXPECT_EQ(Link(record), kNone);
  EXPECT_EQ(record.straggler_gap(), 200 * kMs);
  EXPECT_EQ(record.members[2].announced - record.began, 220 * kMs);
  EXPECT_THAT(harness_.session.Slow(),
              HasSubstr("rank 2 caused 100% of the waiting in the last 2 steps, 205 ms a step: it "
                        "announces its buckets late"));
}

TEST_F(WaitLogTest, NamesTheLateMemberWithinThreeSteps) {
  for (int i = 0; i < 30; ++i) {
    OverlappingStep(i % 4, kMs);
    End(21 * kMs);
  }
  EXPECT_EQ(harness_.session.Slow(), "");
  EXPECT_THAT(harness_.session.waits().recent(), SizeIs(WaitLog::kRecent));
  for (int i = 0; i < 3; ++i) {
    OverlappingStep(1, 200 * kMs);
    End(220 * kMs);
  }
  EXPECT_THAT(harness_.session.Slow(), HasSubstr("rank 1 caused"));
}

TEST_F(WaitLogTest, TwoThatAreLateShareTheWait) {
  At({});
  for (const std::uint32_t b : kBuckets) {
    for (int r : {0, 1}) Announce(r, b);
  }
  At(100 * kMs);
  for (const std::uint32_t b : kBuckets) Announce(2, b);
  At(160 * kMs);
  for (const std::uint32_t b : kBuckets) Announce(3, b);
  for (const std::uint32_t b : kBuckets) {
    for (int r = 0; r < 4; ++r) Send(r, b);
    harness_.Reduce();
    Acknowledge(b);
  }
  EXPECT_EQ(Compute(End(160 * kMs)), (Durations{{}, {}, 50 * kMs, 110 * kMs}));
}

// Members that reduce one bucket after the other wait for each.
TEST_F(WaitLogTest, WithoutOverlapEachBucketCounts) {
  absl::Duration time;
  for (const std::uint32_t b : kBuckets) {
    At(time);
    for (int r : {0, 1, 2}) AnnounceAndSend(r, b);
    time += 30 * kMs;
    At(time);
    AnnounceAndSend(3, b);
    harness_.Reduce();
    Acknowledge(b);
    time += 5 * kMs;  // in which all compute
  }
  EXPECT_EQ(Compute(End(100 * kMs)), (Durations{{}, {}, {}, 90 * kMs}));
}

TEST_F(WaitLogTest, SlowBytesAreTheLinks) {
  for (const std::uint32_t b : kBuckets) {
    At({});
    for (int r = 0; r < 4; ++r) Announce(r, b);
  }
  for (const std::uint32_t b : kBuckets) {
    for (int r : {0, 2, 3}) Send(r, b);
    At((b + 1) * 80 * kMs);
    Send(1, b);
    harness_.Reduce();
    Acknowledge(b);
  }
  const StepRecord& record = End(240 * kMs);
  EXPECT_EQ(Compute(record), kNone);
  EXPECT_EQ(Link(record), (Durations{{}, 240 * kMs, {}, {}}));
  EXPECT_THAT(harness_.session.Slow(), HasSubstr("rank 1 caused 100%"));
  EXPECT_THAT(harness_.session.Slow(), HasSubstr("its bytes come late"));
}

// The last result is sent when the step is over; the next step's buckets need the place of those
// that are not acknowledged.
TEST_F(WaitLogTest, TheDaemonsWorkIsNobodysFault) {
  At({});
  for (const std::uint32_t b : kBuckets) {
    for (int r = 0; r < 4; ++r) AnnounceAndSend(r, b);
    if (b < 2) {
      harness_.Reduce();
      Acknowledge(b);
    }
  }
  At(40 * kMs);
  harness_.Reduce();
  const StepRecord& record = End(40 * kMs);
  EXPECT_EQ(Compute(record), kNone);
  EXPECT_EQ(Link(record), kNone);
  EXPECT_EQ(record.daemon, 40 * kMs);
  EXPECT_EQ(harness_.session.waits().daemon_total(), 40 * kMs);
  EXPECT_EQ(harness_.session.Slow(), "");
}

// A stall is put down while it lasts.
TEST_F(WaitLogTest, TheOpenStepCountsToo) {
  At({});
  for (const std::uint32_t b : kBuckets) {
    for (int r : {0, 1, 2}) Announce(r, b);
  }
  At(5 * absl::Seconds(1));
  EXPECT_EQ(harness_.session.waits().total(3).compute, absl::Seconds(5));
  EXPECT_EQ(harness_.session.waits().current().members[3].caused.compute, absl::Seconds(5));
}

TEST_F(WaitLogTest, NothingCountsBetweenSteps) {
  At(absl::Seconds(100));
  EXPECT_EQ(harness_.session.waits().total(0).sum(), absl::ZeroDuration());
  EXPECT_THAT(harness_.session.waits().recent(), SizeIs(0));
}

// Clocks of two threads.
TEST_F(WaitLogTest, TimeDoesNotGoBack) {
  At(10 * kMs);
  for (const std::uint32_t b : kBuckets) {
    for (int r : {0, 1, 2}) Announce(r, b);
  }
  At(50 * kMs);
  At(20 * kMs);
  At(60 * kMs);
  EXPECT_EQ(harness_.session.waits().total(3).compute, 50 * kMs);
}

}  // namespace
}  // namespace gradwire::server
