// What a session does besides reducing: verdicts, collectives, leaving, deadlines.
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "tests/testing/gradients.h"
#include "tests/testing/ranks.h"
#include "tests/testing/test_daemon.h"

namespace gradwire {
namespace {

using ::gradwire::testing::ExpectAllOk;
using ::gradwire::testing::Gradients;
using ::gradwire::testing::MakeParameter;
using ::gradwire::testing::RunRanks;
using ::gradwire::testing::TestDaemon;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

class SessionTest : public ::testing::Test {
 protected:
  ClientOptions Options(int world_size) const {
    return {.address = daemon_.address(),
            .session = "session",
            .world_size = world_size,
            .parameters = {MakeParameter("a", 3000), MakeParameter("b", 10)}};
  }

  TestDaemon daemon_{{.chunk_bytes = 4096}};
};

absl::Status ReduceOne(Client& client, Gradients& gradients) {
  GradBucket bucket = gradients.Bucket();
  return client.AllReduce(bucket).Wait();
}

TEST_F(SessionTest, NonFiniteValuesSkipTheStepEverywhere) {
  ExpectAllOk(RunRanks(Options(3), [&](Client& client, int rank) -> absl::Status {
    for (std::int64_t step = 0; step < 3; ++step) {
      Gradients a({MakeParameter("a", 3000)});
      Gradients b({MakeParameter("b", 10)});
      a.Fill(rank, step);
      b.Fill(rank, step);
      const int poisoned = step == 1 ? 2 : -1;
      if (rank == poisoned) a.Poison(0);
      GradBucket bucket_a = a.Bucket();
      GradBucket bucket_b = b.Bucket();
      const Completion first = client.AllReduce(bucket_a);
      const Completion second = client.AllReduce(bucket_b);
      const auto verdict = client.EndStep();
      if (!verdict.ok()) return verdict.status();
      EXPECT_TRUE(first.done() && second.done());
      EXPECT_EQ(*verdict, step == 1 ? Verdict::kSkip : Verdict::kApply);
      const auto expected =
          gradwire::testing::ExpectedReduction({}, a.parameters(), 3, step, rank, poisoned);
      EXPECT_TRUE(a.bytes() == *expected) << "rank " << rank << " step " << step;
    }
    EXPECT_EQ(client.metrics().steps_skipped, 1);
    EXPECT_EQ(client.metrics().steps_applied, 2);
    return client.Leave();
  }));
}

TEST_F(SessionTest, EndStepClosesAStepWithoutSomeParameters) {
  ExpectAllOk(RunRanks(Options(2), [&](Client& client, int rank) -> absl::Status {
    for (std::int64_t step = 0; step < 3; ++step) {
      Gradients b({MakeParameter("b", 10)});
      b.Fill(rank, step);
      if (absl::Status status = ReduceOne(client, b); !status.ok()) return status;
      if (absl::Status status = client.EndStep().status(); !status.ok()) return status;
      EXPECT_EQ(client.step(), step + 1);
    }
    return client.EndStep().status();  // a step without any bucket
  }));
}

TEST_F(SessionTest, CallbacksMayBeginTheNextBucket) {
  ExpectAllOk(RunRanks(Options(2), [&](Client& client, int rank) -> absl::Status {
    Gradients a({MakeParameter("a", 3000)});
    Gradients b({MakeParameter("b", 10)});
    a.Fill(rank, 0);
    b.Fill(rank, 0);
    GradBucket bucket_a = a.Bucket();
    GradBucket bucket_b = b.Bucket();
    std::atomic<bool> second = false;
    client.AllReduce(bucket_a).OnDone([&](const absl::Status& status) {
      EXPECT_TRUE(status.ok()) << status;
      client.AllReduce(bucket_b).OnDone([&](const absl::Status& other) {
        EXPECT_TRUE(other.ok()) << other;
        second = true;
      });
    });
    EXPECT_TRUE(gradwire::testing::Eventually([&] { return second.load(); }));
    return client.EndStep().status();
  }));
}

TEST_F(SessionTest, BroadcastAndBarrier) {
  for (const std::size_t bytes : std::vector<std::size_t>{0, 1, 4095, 4096, 4097, 300000}) {
    ExpectAllOk(RunRanks(Options(3), [&](Client& client, int rank) -> absl::Status {
      for (int root = 0; root < 3; ++root) {
        std::vector<unsigned char> data(bytes);
        for (std::size_t i = 0; i < bytes; ++i) {
          data[i] = rank == root ? static_cast<unsigned char>(i * 7 + bytes) : 0;
        }
        absl::Status status = client.Broadcast(root, data.data(), bytes);
        if (!status.ok()) return status;
        for (std::size_t i = 0; i < bytes; ++i) {
          if (data[i] != static_cast<unsigned char>(i * 7 + bytes)) {
            return absl::DataLossError("byte " + std::to_string(i) + " differs");
          }
        }
        if (status = client.Barrier(); !status.ok()) return status;
      }
      EXPECT_EQ(client.Broadcast(3, nullptr, 0).code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(client.Broadcast(0, nullptr, 1).code(), absl::StatusCode::kInvalidArgument);
      return client.Leave();
    }));
  }
}

TEST_F(SessionTest, CollectivesAndBucketsMix) {
  ExpectAllOk(RunRanks(Options(2), [&](Client& client, int rank) -> absl::Status {
    Gradients a({MakeParameter("a", 3000)});
    a.Fill(rank, 0);
    GradBucket bucket = a.Bucket();
    const Completion reduced = client.AllReduce(bucket);
    std::vector<char> data(20'000, rank == 1 ? 'x' : 'y');
    if (absl::Status status = client.Broadcast(1, data.data(), data.size()); !status.ok()) {
      return status;
    }
    EXPECT_EQ(data, std::vector<char>(20'000, 'x'));
    if (absl::Status status = reduced.Wait(); !status.ok()) return status;
    return client.EndStep().status();
  }));
}

TEST_F(SessionTest, DifferentCollectivesAreAnError) {
  const auto statuses = RunRanks(Options(2), [](Client& client, int rank) -> absl::Status {
    std::vector<char> data(100);
    return rank == 0 ? client.Barrier() : client.Broadcast(0, data.data(), data.size());
  });
  for (const absl::Status& status : statuses) EXPECT_FALSE(status.ok());
  EXPECT_EQ(statuses[0], statuses[1]);
}

TEST_F(SessionTest, RanksMayBePicked) {
  std::atomic<int> seen = 0;
  std::vector<std::thread> members;
  for (int i = 0; i < 3; ++i) {
    members.emplace_back([&] {
      const auto client = Client::Join(Options(3));
      ASSERT_TRUE(client.ok()) << client.status();
      EXPECT_EQ((*client)->world_size(), 3);
      seen += 1 << (*client)->rank();
    });
  }
  for (std::thread& member : members) member.join();
  EXPECT_EQ(seen, 7);
}

TEST_F(SessionTest, AfterALeaveTheNextStepNamesWhoLeft) {
  std::atomic<bool> left = false;
  const auto statuses = RunRanks(Options(2), [&](Client& client, int rank) -> absl::Status {
    if (absl::Status status = client.Barrier(); !status.ok()) return status;
    if (rank == 1) {
      absl::Status status = client.Leave();
      left = true;
      return status;
    }
    EXPECT_TRUE(gradwire::testing::Eventually([&] { return left.load(); }));
    Gradients b({MakeParameter("b", 10)});
    return ReduceOne(client, b);
  });
  EXPECT_TRUE(statuses[1].ok()) << statuses[1];
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kAborted);
  EXPECT_THAT(Message(statuses[0]), AllOf(HasSubstr("rank 1"), EndsWith(" [GW305]")));
}

TEST_F(SessionTest, ANameCanBeUsedAgain) {
  for (int life = 0; life < 3; ++life) {
    ExpectAllOk(RunRanks(Options(2), [](Client& client, int) { return client.Leave(); }));
  }
}

TEST_F(SessionTest, JoinTimeoutNamesWhoIsMissing) {
  ClientOptions options = Options(3);
  options.rank = 1;
  options.join_timeout = absl::Milliseconds(300);
  const auto before = absl::Now();
  const absl::Status status = Client::Join(options).status();
  EXPECT_LT(absl::Now() - before, absl::Seconds(2));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr("300ms"), HasSubstr("0"), HasSubstr("2"), EndsWith(" [GW205]")));
}

TEST_F(SessionTest, StepTimeoutNamesWhoIsWaitedFor) {
  ClientOptions options = Options(3);
  options.step_timeout = absl::Milliseconds(500);
  const auto statuses = RunRanks(options, [](Client& client, int rank) -> absl::Status {
    if (rank == 2) {
      gradwire::testing::Eventually([] { return false; }, absl::Seconds(2));
      return client.Barrier();
    }
    Gradients b({MakeParameter("b", 10)});
    return ReduceOne(client, b);
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(Message(status),
                AllOf(HasSubstr("500ms"), HasSubstr("rank 2"), EndsWith(" [GW303]")));
  }
}

TEST_F(SessionTest, TcpWorksLikeAUnixSocket) {
  server::ServerOptions tcp{.listen = {"127.0.0.1:0"}};
  const auto server = server::Server::Start(tcp);
  ASSERT_TRUE(server.ok()) << server.status();
  ClientOptions options = Options(2);
  options.address = (*server)->addresses().front();
  ExpectAllOk(RunRanks(options, [](Client& client, int rank) -> absl::Status {
    Gradients a({MakeParameter("a", 3000)});
    a.Fill(rank, 0);
    if (absl::Status status = ReduceOne(client, a); !status.ok()) return status;
    return client.EndStep().status();
  }));
}

}  // namespace
}  // namespace gradwire
