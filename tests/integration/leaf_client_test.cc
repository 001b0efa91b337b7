// A leaf's client and trainers, with one root daemon and with two.
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/member_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/gradients.h"
#include "tests/testing/ranks.h"
#include "tests/testing/test_daemon.h"

namespace gradwire {
namespace {

using ::gradwire::testing::ExpectedReduction;
using ::gradwire::testing::Gradients;
using ::gradwire::testing::GradientValue;
using ::gradwire::testing::MakeParameter;
using ::gradwire::testing::TestDaemon;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::chrono::seconds kSoon(20);
const std::vector<ParameterSpec> kModel = {MakeParameter("w", 30'000), MakeParameter("b", 7)};
constexpr std::size_t kElements = 30'007;

struct Failure {
  absl::Status status;
  int blamed_rank = -1;
};

// A leaf, and what it is told. Each value can be awaited once.
class TestLeaf {
 public:
  TestLeaf(ClientOptions options, int rank, int ranks) {
    options.rank = rank;
    const auto failed = [this](const absl::Status& status, int blamed_rank) {
      failed_.set_value({status, blamed_rank});
    };
    auto client = client::PlaceLeaf(
        options, {.wish = {.ranks = ranks, .name = absl::StrCat("node-", rank)}, .failed = failed});
    status_ = client.status();
    if (!client.ok()) return;
    client_ = *std::move(client);
    client_->Start()->OnDone([this](const absl::Status& status) { joined_.set_value(status); });
  }

  client::MemberClient& client() { return *client_; }
  const absl::Status& status() const { return status_; }
  void Destroy() { client_.reset(); }

  absl::Status Joined() { return Await(joined_); }
  Failure Failed() {
    auto future = failed_.get_future();
    if (future.wait_for(kSoon) != std::future_status::ready) return {absl::OkStatus(), -2};
    return future.get();
  }
  bool HasFailed() {
    return failed_.get_future().wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  // One step over all parameters in one bucket.
  absl::StatusOr<Verdict> Step(Gradients& gradients) {
    GradBucket bucket = gradients.Bucket();
    const Completion reduced = client_->AllReduce(bucket);
    std::promise<absl::StatusOr<Verdict>> done;
    client_->EndStep([&](const absl::StatusOr<Verdict>& verdict) { done.set_value(verdict); });
    auto future = done.get_future();
    const absl::StatusOr<Verdict> verdict = future.get();
    if (!verdict.ok()) return verdict;
    if (absl::Status status = reduced.Wait(); !status.ok()) return status;
    return verdict;
  }
  absl::Status Barrier() {
    std::promise<absl::Status> done;
    client_->Barrier([&](const absl::Status& status) { done.set_value(status); });
    return done.get_future().get();
  }

 private:
  static absl::Status Await(std::promise<absl::Status>& promise) {
    auto future = promise.get_future();
    if (future.wait_for(kSoon) == std::future_status::ready) return future.get();
    return absl::DeadlineExceededError("the test waited for joined");
  }

  // Outlive the client, whose callbacks refer to them.
  std::promise<absl::Status> joined_;
  std::promise<Failure> failed_;
  absl::Status status_;
  std::unique_ptr<client::MemberClient> client_;
};

// With so many daemons.
class LeafClientTest : public ::testing::TestWithParam<int> {
 protected:
  LeafClientTest() {
    for (int i = 0; i < GetParam(); ++i) {
      daemons_.push_back(std::make_unique<TestDaemon>(server::ServerOptions{.chunk_bytes = 4096}));
    }
  }

  ClientOptions Options(int world_size, const std::string& hook = "no") const {
    const std::string addresses = absl::StrJoin(
        daemons_, ",",
        [](std::string* out, const auto& daemon) { absl::StrAppend(out, daemon->address()); });
    return {.address = addresses,
            .session = "leaves",
            .world_size = world_size,
            .parameters = kModel,
            .hook = *HookSpec::Parse(hook),
            .join_timeout = absl::Seconds(20),
            .step_timeout = absl::Seconds(20)};
  }

  // Runs `member` for a trainer of this rank.
  static std::future<absl::Status> Trainer(ClientOptions options, int rank,
                                           std::function<absl::Status(Client&)> member) {
    options.rank = rank;
    return std::async(std::launch::async,
                      [options = std::move(options), member = std::move(member)] {
                        auto client = Client::Join(options);
                        return client.ok() ? member(**client) : client.status();
                      });
  }

  static absl::StatusOr<Verdict> Step(Client& client, Gradients& gradients) {
    GradBucket bucket = gradients.Bucket();
    if (absl::Status status = client.AllReduce(bucket).Wait(); !status.ok()) return status;
    return client.EndStep();
  }

  std::vector<std::unique_ptr<TestDaemon>> daemons_;
};

// (2 leaf + trainer) / 3. Each fp32 operation on the way is within half a unit in the last place of
// values below 1.4: the weight, the quotient by two, the sum.
void ExpectWeightedMean(const Gradients& gradients, std::int64_t step) {
  const auto* values = reinterpret_cast<const float*>(gradients.bytes().data());
  for (std::size_t i = 0; i < kElements; ++i) {
    const double leaf = static_cast<float>(GradientValue(0, step, i));
    const double trainer = static_cast<float>(GradientValue(2, step, i));
    ASSERT_NEAR(values[i], (2 * leaf + trainer) / 3, 3.0 / (1 << 24)) << i;
  }
}

TEST_P(LeafClientTest, CountsForAllItsRanks) {
  constexpr int kSteps = 3;
  auto trainer = Trainer(Options(3), 2, [](Client& client) -> absl::Status {
    for (int step = 0; step < kSteps; ++step) {
      Gradients gradients(kModel);
      gradients.Fill(2, step);
      const auto verdict = Step(client, gradients);
      if (!verdict.ok()) return verdict.status();
      EXPECT_EQ(*verdict, Verdict::kApply);
      ExpectWeightedMean(gradients, step);
    }
    if (absl::Status status = client.Barrier(); !status.ok()) return status;
    return client.Leave();
  });
  TestLeaf leaf(Options(3), 0, 2);
  ASSERT_TRUE(leaf.status().ok()) << leaf.status();
  ASSERT_TRUE(leaf.Joined().ok());
  EXPECT_EQ(leaf.client().rank(), 0);
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_EQ(leaf.client().step(), step);
    Gradients gradients(kModel);
    gradients.Fill(0, step);
    const auto verdict = leaf.Step(gradients);
    ASSERT_TRUE(verdict.ok()) << verdict.status();
    ExpectWeightedMean(gradients, step);
  }
  EXPECT_EQ(leaf.client().metrics().steps_applied, kSteps);
  EXPECT_TRUE(leaf.Barrier().ok());
  EXPECT_TRUE(leaf.client().Leave().ok());
  const absl::Status trained = trainer.get();
  EXPECT_TRUE(trained.ok()) << trained;
  EXPECT_FALSE(leaf.HasFailed());
}

TEST_P(LeafClientTest, EqualLeavesAreLikeTwoMembers) {
  for (const char* hook : {"no", "fp16", "power_sgd"}) {
    ClientOptions options = Options(4, hook);
    options.session = absl::StrCat("equal-", hook);
    TestLeaf first(options, 0, 2);
    TestLeaf second(options, 2, 2);
    ASSERT_TRUE(first.status().ok() && second.status().ok()) << first.status() << second.status();
    ASSERT_TRUE(first.Joined().ok() && second.Joined().ok());
    Gradients a(kModel);
    Gradients b(kModel);
    a.Fill(0, 0);
    b.Fill(1, 0);
    auto other = std::async(std::launch::async, [&] { return second.Step(b); });
    const auto verdict = first.Step(a);
    ASSERT_TRUE(verdict.ok()) << verdict.status();
    ASSERT_TRUE(other.get().ok());
    if (std::string(hook) == "power_sgd") {  // its first steps are plain means of these parameters
      EXPECT_EQ(a.bytes(), b.bytes());
      continue;
    }
    const auto expected = ExpectedReduction(options.hook, kModel, 2, 0);
    EXPECT_TRUE(a.bytes() == *expected) << hook;
    EXPECT_TRUE(b.bytes() == *expected) << hook;
  }
}

// Its members may be through a broadcast before it is.
TEST_P(LeafClientTest, ABarrierWaitsForTheBroadcastBeforeIt) {
  std::vector<char> data(10'000, 'd');
  absl::Notification asked;
  auto trainer = Trainer(Options(3), 2, [&](Client& client) {
    asked.WaitForNotificationWithTimeout(absl::Seconds(10));
    absl::Status status = client.Broadcast(2, data.data(), data.size());
    if (status.ok()) status = client.Barrier();
    return status.ok() ? client.Leave() : status;
  });
  TestLeaf leaf(Options(3), 0, 2);
  ASSERT_TRUE(leaf.status().ok()) << leaf.status();
  ASSERT_TRUE(leaf.Joined().ok());
  std::string came;
  std::promise<absl::Status> given;
  leaf.client().Relay({.root = 2,
                       .bytes = data.size(),
                       .room = data.size(),
                       .began = [] {},
                       .came =
                           [&](const wire::PayloadRef& bytes) {
                             for (const auto piece : bytes->pieces()) {
                               came.append(reinterpret_cast<const char*>(piece.data()),
                                           piece.size());
                             }
                           }},
                      [&](const absl::Status& status) { given.set_value(status); });
  std::promise<absl::Status> over;
  leaf.client().Barrier([&](const absl::Status& status) { over.set_value(status); });
  asked.Notify();
  EXPECT_EQ(given.get_future().get(), absl::OkStatus());
  EXPECT_EQ(over.get_future().get(), absl::OkStatus());
  EXPECT_EQ(came, std::string(data.begin(), data.end()));
  EXPECT_EQ(trainer.get(), absl::OkStatus());
  EXPECT_TRUE(leaf.client().Leave().ok());
}

TEST_P(LeafClientTest, WhatFailsBehindItFailsEverywhere) {
  auto trainer = Trainer(Options(3), 2, [](Client& client) -> absl::Status {
    Gradients gradients(kModel);
    const auto verdict = Step(client, gradients);
    return verdict.status();
  });
  {
    TestLeaf leaf(Options(3), 0, 2);
    ASSERT_TRUE(leaf.status().ok()) << leaf.status();
    ASSERT_TRUE(leaf.Joined().ok());
    Gradients gradients(kModel);
    GradBucket bucket = gradients.Bucket();
    const Completion reduced = leaf.client().AllReduce(bucket);
    leaf.client().FailElsewhere(absl::AbortedError("rank 1 was lost in step 0"), 1);
    leaf.client().FailElsewhere(absl::AbortedError("later"), 0);
    // It is told at once, although the object goes.
    leaf.Destroy();
    EXPECT_TRUE(reduced.done());
  }
  EXPECT_THAT(std::string(trainer.get().message()),
              AllOf(HasSubstr("rank 1 was lost in step 0"), ::testing::Not(HasSubstr("later"))));
}

TEST_P(LeafClientTest, IsToldWhoIsToBlame) {
  Gradients trainers(kModel);  // outlives the client that is destroyed while they travel
  absl::Notification joined;
  auto trainer = Trainer(Options(3), 2, [&](Client& client) -> absl::Status {
    GradBucket bucket = trainers.Bucket();
    const Completion reduced = client.AllReduce(bucket);
    // With several daemons the leaf may hear of one's failure before it has joined the other.
    joined.WaitForNotificationWithTimeout(absl::Seconds(10));
    return absl::OkStatus();  // and is destroyed in the step
  });
  TestLeaf leaf(Options(3), 0, 2);
  ASSERT_TRUE(leaf.status().ok()) << leaf.status();
  ASSERT_TRUE(leaf.Joined().ok());
  joined.Notify();
  EXPECT_TRUE(trainer.get().ok());
  // The trainer may have left before its bucket was begun; then the leaf's own bucket shows it.
  Gradients gradients(kModel);
  GradBucket bucket = gradients.Bucket();
  const Completion reduced = leaf.client().AllReduce(bucket);
  const Failure failure = leaf.Failed();
  EXPECT_EQ(failure.blamed_rank, 2);
  EXPECT_THAT(std::string(failure.status.message()), HasSubstr("rank 2"));
  EXPECT_EQ(reduced.Wait(), failure.status);
}

TEST_P(LeafClientTest, IsToldThatMembersAreMissing) {
  ClientOptions options = Options(3);
  options.join_timeout = absl::Seconds(1);
  TestLeaf leaf(options, 0, 2);
  ASSERT_TRUE(leaf.status().ok()) << leaf.status();
  const absl::Status joined = leaf.Joined();
  EXPECT_EQ(joined.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(joined.message()), HasSubstr("rank 2"));
}

TEST_P(LeafClientTest, MayGoWhileItWaits) {
  TestLeaf leaf(Options(3), 0, 2);
  ASSERT_TRUE(leaf.status().ok()) << leaf.status();
  const absl::Time begin = absl::Now();
  leaf.Destroy();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(2));
}

TEST_P(LeafClientTest, ALeafThatIsGoneGivesItsRanksBack) {
  { TestLeaf gone(Options(3), 0, 2); }
  TestLeaf leaf(Options(3), 0, 3);
  ASSERT_TRUE(leaf.status().ok()) << leaf.status();
  EXPECT_TRUE(leaf.Joined().ok());
}

INSTANTIATE_TEST_SUITE_P(Daemons, LeafClientTest, ::testing::Values(1, 2));

}  // namespace
}  // namespace gradwire
