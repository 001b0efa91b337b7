// Members' bulk lanes: what travels there, and what happens when one alone fails.
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "tests/testing/fault_relay.h"
#include "tests/testing/gradients.h"
#include "tests/testing/ranks.h"
#include "tests/testing/test_daemon.h"

namespace gradwire {
namespace {

using ::gradwire::testing::Eventually;
using ::gradwire::testing::ExpectAllOk;
using ::gradwire::testing::ExpectedReduction;
using ::gradwire::testing::FaultRelay;
using ::gradwire::testing::Gradients;
using ::gradwire::testing::MakeParameter;
using ::gradwire::testing::RunRanks;
using ::gradwire::testing::TestDaemon;

constexpr int kMembers = 2;
constexpr std::size_t kLarge = 1'000'003;  // elements: whole chunks, and a short one
constexpr std::size_t kSmall = 1000;
constexpr int kSmallBuckets = 20;
// Bulk lanes of a member that fail before it does without; one more where its stream was not
// connected yet.
constexpr int kTries = 3;

// All members' connections go through the relay, which passes no descriptors on: no shared memory.
class BulkLane : public ::testing::Test {
 protected:
  explicit BulkLane(server::ServerOptions options = {.resume_grace = absl::Seconds(5)})
      : daemon_(std::move(options)) {
    auto relay = FaultRelay::Start(daemon_.Path("relay.sock"), daemon_.socket());
    EXPECT_TRUE(relay.ok()) << relay.status();
    relay_ = *std::move(relay);
    options_ = {.address = relay_->address(), .session = "bulk", .world_size = kMembers};
    options_.parameters.push_back(MakeParameter("large", kLarge));
    for (int i = 0; i < kSmallBuckets; ++i) {
      options_.parameters.push_back(MakeParameter("small" + std::to_string(i), kSmall));
    }
  }

  // A bucket of one parameter on its way.
  struct Open {
    Open(Client& client, const ParameterSpec& parameter, int rank, std::int64_t step)
        : gradients({parameter}) {
      gradients.Fill(rank, step);
      bucket.emplace(gradients.Bucket());
      done.emplace(client.AllReduce(*bucket));
    }
    // What is wrong with it, once it is reduced.
    absl::Status Check(std::int64_t step) {
      if (absl::Status status = done->Wait(); !status.ok()) return status;
      const auto expected = ExpectedReduction({}, gradients.parameters(), kMembers, step);
      if (gradients.bytes() == *expected) return absl::OkStatus();
      return absl::DataLossError("other bits in bucket " + gradients.parameters()[0].name);
    }
    Gradients gradients;
    std::optional<GradBucket> bucket;
    std::optional<Completion> done;
  };

  // `meanwhile` runs on each member while the large bucket is under way; the small ones follow.
  absl::Status Step(
      Client& client, int rank, std::int64_t step, const std::function<void()>& meanwhile = [] {},
      const std::function<void()>& afterwards = [] {}) {
    Open large(client, options_.parameters[0], rank, step);
    meanwhile();
    for (int i = 0; i < kSmallBuckets; ++i) {
      Open small(client, options_.parameters[static_cast<std::size_t>(i) + 1], rank, step);
      if (absl::Status status = small.Check(step); !status.ok()) return status;
    }
    afterwards();
    if (absl::Status status = large.Check(step); !status.ok()) return status;
    return client.EndStep().status();
  }

  TestDaemon daemon_;
  std::unique_ptr<FaultRelay> relay_;
  ClientOptions options_;
};

TEST_F(BulkLane, CarriesWhatIsLargeAndNothingElse) {
  constexpr int kSteps = 3;
  ExpectAllOk(RunRanks(options_, [&](Client& client, int rank) -> absl::Status {
    for (std::int64_t step = 0; step < kSteps; ++step) {
      if (absl::Status status = Step(client, rank, step); !status.ok()) return status;
    }
    EXPECT_EQ(client.metrics().resumes, 0U);
    return client.Leave();
  }));
  constexpr std::int64_t kBothWays = 2;
  constexpr std::int64_t kLargeBytes = kLarge * sizeof(float) * kMembers * kBothWays * kSteps;
  constexpr std::int64_t kSmallBytes =
      kSmall * sizeof(float) * kSmallBuckets * kMembers * kBothWays * kSteps;
  EXPECT_GE(relay_->bulk_bytes(), kLargeBytes);
  EXPECT_LT(relay_->bulk_bytes(), kLargeBytes + kLargeBytes / 50);
  EXPECT_GE(relay_->bytes() - relay_->bulk_bytes(), kSmallBytes);
}

TEST_F(BulkLane, WhileItStandsStillSmallBucketsAreReduced) {
  std::atomic<int> through = 0;
  ExpectAllOk(RunRanks(options_, [&](Client& client, int rank) -> absl::Status {
    for (std::int64_t step = 0; step < 2; ++step) {
      relay_->StallBulk(true);
      if (absl::Status status = client.Barrier(); !status.ok()) return status;
      const std::int64_t before = relay_->bulk_bytes();
      if (absl::Status status = Step(
              client, rank, step, [] {},
              [&] {
                EXPECT_LT(relay_->bulk_bytes() - before, 10'000) << "only heartbeats";
                ++through;
                const int all = kMembers * static_cast<int>(step + 1);
                EXPECT_TRUE(Eventually([&] { return through == all; }));
                relay_->StallBulk(false);
              });
          !status.ok()) {
        return status;
      }
      if (absl::Status status = client.Barrier(); !status.ok()) return status;
    }
    EXPECT_EQ(client.metrics().resumes, 0U);
    return client.Leave();
  }));
}

TEST_F(BulkLane, ThatBreaksIsResumedWithTheSameBits) {
  ExpectAllOk(RunRanks(options_, [&](Client& client, int rank) -> absl::Status {
    for (std::int64_t step = 0; step < 3; ++step) {
      const std::int64_t before = relay_->bulk_bytes();
      const auto cut = [&] {
        if (rank != 0) return;
        EXPECT_TRUE(Eventually([&] { return relay_->bulk_bytes() > before + 500'000; }));
        relay_->CutBulk();
      };
      if (absl::Status status = Step(client, rank, step, cut); !status.ok()) return status;
    }
    EXPECT_GE(client.metrics().resumes, 1U);
    return client.Leave();
  }));
  EXPECT_EQ(relay_->cuts(), 3);
}

TEST_F(BulkLane, ThatIsRefusedIsDoneWithout) {
  relay_->RefuseBulk(true);
  ExpectAllOk(RunRanks(options_, [&](Client& client, int rank) -> absl::Status {
    for (std::int64_t step = 0; step < 3; ++step) {
      if (absl::Status status = Step(client, rank, step); !status.ok()) return status;
    }
    return client.Leave();
  }));
  EXPECT_GE(relay_->refused_bulk(), kMembers);
  EXPECT_LE(relay_->refused_bulk(), kMembers * kTries);
}

class SilentBulkLane : public BulkLane {
 protected:
  // Of members: those that read.
  static std::size_t Threads() {
    std::size_t readers = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
      std::ifstream file(entry.path() / "comm");
      std::string name;
      if (std::getline(file, name) && name == "gradwire-read") ++readers;
    }
    return readers;
  }
  SilentBulkLane()
      : BulkLane({.hello_timeout = absl::Milliseconds(500),
                  .resume_grace = absl::Seconds(5),
                  .heartbeat_interval = absl::Milliseconds(100),
                  .silence_timeout = absl::Milliseconds(800)}) {}
};

TEST_F(SilentBulkLane, IsNoticedAndDoneWithout) {
  ExpectAllOk(RunRanks(options_, [&](Client& client, int rank) -> absl::Status {
    for (std::int64_t step = 0; step < 3; ++step) {
      if (step == 1) relay_->StallBulk(true);  // for good; not even a Hello passes
      if (absl::Status status = Step(client, rank, step); !status.ok()) return status;
    }
    EXPECT_GE(client.metrics().resumes, 1U);
    EXPECT_LE(client.metrics().resumes, static_cast<std::uint64_t>(kTries) + 1);
    return client.Leave();
  }));
}

TEST_F(SilentBulkLane, FromTheStartIsDoneWithout) {
  relay_->StallBulk(true);
  ExpectAllOk(RunRanks(options_, [&](Client& client, int rank) -> absl::Status {
    if (absl::Status status = Step(client, rank, 0); !status.ok()) return status;
    return client.Leave();
  }));
}

// Its socket takes nothing when the client is destroyed, so that gRPC ends it late.
TEST_F(SilentBulkLane, GoesWhenItEndsLongAfterItsClient) {
  const std::size_t threads = Threads();
  std::vector<std::unique_ptr<Open>> unfinished(kMembers);  // outlive the clients
  ExpectAllOk(RunRanks(options_, [&](Client& client, int rank) -> absl::Status {
    if (absl::Status status = Step(client, rank, 0); !status.ok()) return status;
    relay_->StallBulk(true);
    unfinished[static_cast<std::size_t>(rank)] =
        std::make_unique<Open>(client, options_.parameters[0], rank, 1);
    return Open(client, options_.parameters[1], rank, 1).Check(1);
  }));
  for (const auto& open : unfinished) EXPECT_FALSE(open->done->Wait().ok());
  relay_->StallBulk(false);
  EXPECT_TRUE(Eventually([&] { return Threads() <= threads; })) << Threads() << ", not " << threads;
}

TEST_F(SilentBulkLane, LivesOnHeartbeats) {
  ExpectAllOk(RunRanks(options_, [&](Client& client, int rank) -> absl::Status {
    if (absl::Status status = Step(client, rank, 0); !status.ok()) return status;
    // Longer than a bulk lane may be silent. Nothing but heartbeats passes meanwhile.
    const std::int64_t before = relay_->bulk_bytes();
    const auto since = std::chrono::steady_clock::now();
    EXPECT_TRUE(Eventually([&] {
      return std::chrono::steady_clock::now() - since > std::chrono::milliseconds(4500);
    }));
    EXPECT_GT(relay_->bulk_bytes(), before);
    if (absl::Status status = Step(client, rank, 1); !status.ok()) return status;
    EXPECT_EQ(client.metrics().resumes, 0U);
    return client.Leave();
  }));
}

}  // namespace
}  // namespace gradwire
