// Members that die, connections that break, daemons that go away.
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "tests/testing/fault_relay.h"
#include "tests/testing/gradients.h"
#include "tests/testing/process.h"
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
using ::gradwire::testing::Process;
using ::gradwire::testing::RunRanks;
using ::gradwire::testing::TestDaemon;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// Four members as processes.
class Processes {
 public:
  Processes(const TestDaemon& daemon, const std::string& session,
            const std::vector<std::string>& more, int special_rank = -1,
            const std::vector<std::string>& special = {}) {
    for (int rank = 0; rank < 4; ++rank) {
      std::vector<std::string> words = {GRADWIRE_TEST_MEMBER, "--address",    daemon.address(),
                                        "--session",          session,        "--rank",
                                        std::to_string(rank), "--world-size", "4"};
      words.insert(words.end(), more.begin(), more.end());
      if (rank == special_rank) words.insert(words.end(), special.begin(), special.end());
      auto process = Process::Start(words, daemon.Path(session + std::to_string(rank) + ".log"));
      EXPECT_TRUE(process.ok()) << process.status();
      members_.push_back(*std::move(process));
    }
  }

  Process& operator[](int rank) { return *members_[static_cast<std::size_t>(rank)]; }

 private:
  std::vector<std::unique_ptr<Process>> members_;
};

TEST(DeadMember, OthersLearnItsRankAndTheDaemonServesOn) {
  const TestDaemon daemon;
  Processes dying(daemon, "dying", {"--elements", "4000000", "--steps", "100"}, 2,
                  {"--die-after-bytes", "5000000"});
  const auto death = dying[2].Wait(absl::Seconds(60));
  const auto died = std::chrono::steady_clock::now();
  ASSERT_TRUE(death.has_value()) << dying[2].Log();
  ASSERT_TRUE(WIFSIGNALED(*death) && WTERMSIG(*death) == SIGKILL) << dying[2].Log();
  for (const int rank : {0, 1, 3}) {
    const auto end = dying[rank].Wait(absl::Seconds(10));
    EXPECT_LT(std::chrono::steady_clock::now() - died, std::chrono::seconds(2));
    ASSERT_TRUE(end.has_value() && WIFEXITED(*end)) << dying[rank].Log();
    EXPECT_EQ(WEXITSTATUS(*end), 1);
    EXPECT_THAT(dying[rank].Log(),
                AllOf(HasSubstr("error: ABORTED"), HasSubstr("rank 2"), HasSubstr(" [GW301]\n")));
  }
  Processes next(daemon, "next", {"--elements", "100000", "--steps", "3"});
  for (int rank = 0; rank < 4; ++rank) {
    const auto end = next[rank].Wait(absl::Seconds(60));
    ASSERT_TRUE(end.has_value());
    EXPECT_TRUE(WIFEXITED(*end) && WEXITSTATUS(*end) == 0) << next[rank].Log();
    EXPECT_THAT(next[rank].Log(), HasSubstr("step 2 apply\ndone"));
  }
}

// The daemon sees no more of a crash than that the connection closes.
TEST(DeadMember, ThatCrashesIsNamedAsOneThatIsKilled) {
  for (const int cause : {SIGSEGV, SIGABRT}) {
    const TestDaemon daemon;
    Processes crashing(daemon, "crashing", {"--elements", "4000000", "--steps", "100"}, 1,
                       {"--die-after-bytes", "5000000", "--die-by", std::to_string(cause)});
    const auto death = crashing[1].Wait(absl::Seconds(60));
    ASSERT_TRUE(death.has_value()) << crashing[1].Log();
    ASSERT_TRUE(WIFSIGNALED(*death) && WTERMSIG(*death) == cause) << crashing[1].Log();
    for (const int rank : {0, 2, 3}) {
      const auto end = crashing[rank].Wait(absl::Seconds(30));
      ASSERT_TRUE(end.has_value() && WIFEXITED(*end)) << crashing[rank].Log();
      EXPECT_EQ(WEXITSTATUS(*end), 1);
      EXPECT_THAT(crashing[rank].Log(),
                  AllOf(HasSubstr("error: ABORTED"), HasSubstr("rank 1 was lost"),
                        HasSubstr(" [GW301]\n")));
    }
  }
}

// As after a checkpoint was restored by mistake while the old processes still run.
TEST(SecondStart, IsRefusedWhileTheFirstOneRunsAndHarmsNobody) {
  const TestDaemon daemon;
  const std::vector<std::string> training = {"--elements", "20000",     "--steps",
                                             "150",        "--late-ms", "20"};
  Processes first(daemon, "twice", training);
  ASSERT_TRUE(Eventually([&] { return first[3].Log().find("step 5 apply") != std::string::npos; },
                         absl::Seconds(60)));
  for (int rank = 0; rank < 4; ++rank) {
    auto words = std::vector<std::string>{GRADWIRE_TEST_MEMBER, "--address",    daemon.address(),
                                          "--session",          "twice",        "--rank",
                                          std::to_string(rank), "--world-size", "4"};
    words.insert(words.end(), training.begin(), training.end());
    const auto second = Process::Start(words, daemon.Path("second"));
    ASSERT_TRUE(second.ok()) << second.status();
    const auto refused = (*second)->Wait(absl::Seconds(60));
    ASSERT_TRUE(refused.has_value() && WIFEXITED(*refused)) << (*second)->Log();
    EXPECT_EQ(WEXITSTATUS(*refused), 1);
    EXPECT_THAT((*second)->Log(),
                AllOf(HasSubstr("error: ALREADY_EXISTS"), HasSubstr(" [GW204]\n")));
  }
  EXPECT_THAT(first[0].Log(), Not(HasSubstr("done"))) << "they came too late";
  for (int rank = 0; rank < 4; ++rank) {
    const auto end = first[rank].Wait(absl::Seconds(60));
    ASSERT_TRUE(end.has_value());
    EXPECT_TRUE(WIFEXITED(*end) && WEXITSTATUS(*end) == 0) << first[rank].Log();
    EXPECT_THAT(first[rank].Log(),
                AllOf(HasSubstr("step 149 apply\ndone"), Not(HasSubstr("skip"))));
  }
}

TEST(DeadMember, SilenceIsADeathToo) {
  TestDaemon daemon(
      {.heartbeat_interval = absl::Milliseconds(100), .silence_timeout = absl::Seconds(3)});
  Processes silent(daemon, "silent", {"--elements", "100000", "--steps", "100000"});
  ASSERT_TRUE(Eventually([&] { return silent[1].Log().find("step 3 apply") != std::string::npos; },
                         absl::Seconds(60)));
  silent[1].Signal(SIGSTOP);
  for (const int rank : {0, 2, 3}) {
    ASSERT_TRUE(silent[rank].Wait(absl::Seconds(20)).has_value());
    EXPECT_THAT(silent[rank].Log(),
                AllOf(HasSubstr("error: ABORTED"), HasSubstr("rank 1"), HasSubstr(" [GW302]\n")));
  }
}

// Trains a few steps with one member behind a relay, and checks every bit.
class BrokenConnection : public ::testing::TestWithParam<int> {};

TEST_P(BrokenConnection, ResumesWithTheSameBits) {
  TestDaemon daemon({.chunk_bytes = 16 << 10, .resume_grace = absl::Seconds(5)});
  auto relay = FaultRelay::Start(daemon.Path("relay.sock"), daemon.socket());
  ASSERT_TRUE(relay.ok()) << relay.status();
  ClientOptions options{.address = daemon.address(), .session = "resume", .world_size = 3};
  for (int p = 0; p < 6; ++p) {
    options.parameters.push_back(MakeParameter("p" + std::to_string(p), 100'000));
  }
  const auto member = [&](Client& client, int rank) -> absl::Status {
    for (std::int64_t step = 0; step < 3; ++step) {
      std::vector<Gradients> gradients;
      std::vector<GradBucket> views;
      std::vector<Completion> completions;
      for (const ParameterSpec& parameter : options.parameters) {
        gradients.emplace_back(std::vector{parameter}).Fill(rank, step);
      }
      for (Gradients& one : gradients) views.push_back(one.Bucket());
      if (rank == 0) (*relay)->CutAfter(GetParam());
      for (GradBucket& view : views) completions.push_back(client.AllReduce(view));
      for (std::size_t b = 0; b < views.size(); ++b) {
        if (absl::Status status = completions[b].Wait(); !status.ok()) return status;
        const auto expected = ExpectedReduction({}, {options.parameters[b]}, 3, step);
        EXPECT_TRUE(gradients[b].bytes() == *expected) << "rank " << rank << " step " << step;
      }
      if (absl::Status status = client.EndStep().status(); !status.ok()) return status;
      std::vector<char> data(50'000, rank == 0 ? 'r' : ' ');
      if (absl::Status status = client.Broadcast(0, data.data(), data.size()); !status.ok()) {
        return status;
      }
      EXPECT_EQ(data, std::vector<char>(50'000, 'r'));
    }
    if (rank == 0) {
      EXPECT_GE(client.metrics().resumes, 2);
    }
    return client.Leave();
  };
  // RunRanks gives all members one address; the one behind the relay runs beside them.
  std::vector<absl::Status> statuses(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      ClientOptions mine = options;
      mine.rank = rank;
      if (rank == 0) mine.address = (*relay)->address();
      auto client = Client::Join(mine);
      statuses[static_cast<std::size_t>(rank)] =
          client.ok() ? member(**client, rank) : client.status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  ExpectAllOk(statuses);
  EXPECT_GE((*relay)->cuts(), 2);
}

INSTANTIATE_TEST_SUITE_P(Cuts, BrokenConnection,
                         ::testing::Values(1, 900, 20'000, 70'000, 333'333, 1'000'000, 2'600'000));

class LostDaemon : public ::testing::Test {
 protected:
  // All members of a session with an open bucket, which one of them never joins; `fault` strikes.
  std::vector<absl::Status> Strike(const std::string& address, const std::function<void()>& fault) {
    ClientOptions options{.address = address,
                          .session = "lost",
                          .world_size = 3,
                          .parameters = {MakeParameter("w", 1000)}};
    std::atomic<int> waiting = 0;
    std::thread striker([&] {
      Eventually([&] { return waiting == 2; });
      fault();
    });
    const auto statuses = RunRanks(options, [&](Client& client, int rank) -> absl::Status {
      if (rank == 2) return client.Barrier();
      Gradients gradients({MakeParameter("w", 1000)});
      GradBucket bucket = gradients.Bucket();
      const Completion reduced = client.AllReduce(bucket);
      ++waiting;
      const absl::Status status = reduced.Wait();
      EXPECT_EQ(client.EndStep().status(), status);
      return status;
    });
    striker.join();
    return statuses;
  }
};

TEST_F(LostDaemon, ConnectionsThatCannotResume) {
  TestDaemon daemon({.resume_grace = absl::Milliseconds(500)});
  auto relay = FaultRelay::Start(daemon.Path("relay.sock"), daemon.socket());
  ASSERT_TRUE(relay.ok()) << relay.status();
  const auto statuses = Strike((*relay)->address(), [&] {
    (*relay)->Refuse(true);
    (*relay)->CutNow();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(Message(status), AllOf(HasSubstr("lost the daemon at " + (*relay)->address()),
                                       HasSubstr("outcome of step 0 unknown) [GW308]")));
  }
}

TEST_F(LostDaemon, ConnectionsThatStall) {
  TestDaemon daemon(
      {.heartbeat_interval = absl::Milliseconds(100), .silence_timeout = absl::Milliseconds(800)});
  auto relay = FaultRelay::Start(daemon.Path("relay.sock"), daemon.socket());
  ASSERT_TRUE(relay.ok()) << relay.status();
  const auto statuses = Strike((*relay)->address(), [&] { (*relay)->Stall(true); });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(Message(status),
                AllOf(HasSubstr("nothing was heard from it for 800ms"), EndsWith(" [GW308]")));
  }
}

// Rank 1's connection still carries a byte now and then, so that neither TCP nor gRPC sees an end.
TEST(SlowMember, AByteAtATimeIsSilenceAndHurtsItsSessionOnly) {
  TestDaemon daemon(
      {.heartbeat_interval = absl::Milliseconds(100), .silence_timeout = absl::Seconds(3)});
  auto relay = FaultRelay::Start(daemon.Path("relay.sock"), daemon.socket());
  ASSERT_TRUE(relay.ok()) << relay.status();
  const auto reduce = [](Client& client) -> absl::Status {
    Gradients gradients({MakeParameter("w", 1000)});
    GradBucket bucket = gradients.Bucket();
    if (absl::Status status = client.AllReduce(bucket).Wait(); !status.ok()) return status;
    return client.EndStep().status();
  };
  std::atomic<bool> over = false;
  std::atomic<int> steps = 0;
  std::thread beside([&] {
    ExpectAllOk(RunRanks({.address = daemon.address(),
                          .session = "beside",
                          .world_size = 2,
                          .parameters = {MakeParameter("w", 1000)}},
                         [&](Client& client, int rank) -> absl::Status {
                           while (true) {
                             std::int64_t last = over ? 1 : 0;
                             absl::Status status = client.Broadcast(0, &last, sizeof last);
                             if (!status.ok() || last != 0) return status;
                             if (status = reduce(client); !status.ok()) return status;
                             if (rank == 0) ++steps;
                           }
                         }));
  });
  std::vector<absl::Status> statuses(3);
  std::atomic<int> trained = 0;
  std::vector<std::thread> threads;
  int steps_before = 0;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      auto client = Client::Join({.address = rank == 1 ? (*relay)->address() : daemon.address(),
                                  .session = "slow",
                                  .rank = rank,
                                  .world_size = 3,
                                  .parameters = {MakeParameter("w", 1000)}});
      absl::Status& status = statuses[static_cast<std::size_t>(rank)];
      status = client.status();
      while (status.ok()) {
        status = reduce(**client);
        if (++trained == 9) {
          steps_before = steps;
          (*relay)->Trickle(true);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(steps, steps_before);
  over = true;
  beside.join();
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_EQ(statuses[rank].code(), absl::StatusCode::kAborted) << statuses[rank];
    EXPECT_THAT(Message(statuses[rank]),
                AllOf(HasSubstr("rank 1"), HasSubstr("nothing was heard"), EndsWith(" [GW302]")));
  }
  EXPECT_FALSE(statuses[1].ok());
}

// One by one, and they are freed in another order.
TEST(CloggedConnections, DelayStepsAndChangeNoBit) {
  const TestDaemon daemon({.chunk_bytes = 16 << 10});
  std::vector<std::unique_ptr<FaultRelay>> relays;
  for (int rank = 0; rank < 3; ++rank) {
    auto relay = FaultRelay::Start(daemon.Path("relay" + std::to_string(rank)), daemon.socket());
    ASSERT_TRUE(relay.ok()) << relay.status();
    relays.push_back(*std::move(relay));
  }
  std::atomic<int> steps = 0;
  std::atomic<int> last = 1 << 30;
  std::thread clogger([&] {
    for (std::size_t round = 0; round < 6; ++round) {
      const int before = steps;
      ASSERT_TRUE(Eventually([&] { return steps > before + 2; }, absl::Seconds(60)));
      for (const std::size_t turn : {0U, 1U, 2U}) {
        relays[(turn + round) % 3]->Stall(true);
        absl::SleepFor(absl::Milliseconds(50));
      }
      for (const std::size_t turn : {1U, 2U, 0U}) {
        relays[(turn * (1 + round % 2) + round) % 3]->Stall(false);
        absl::SleepFor(absl::Milliseconds(100));
      }
    }
  });
  std::thread ender([&] {
    clogger.join();
    last = steps + 10;  // no rank has come so far
  });
  const ClientOptions options{
      .session = "clogged", .world_size = 3, .parameters = {MakeParameter("w", 100'000)}};
  const auto train = [&](Client& client, int rank) -> absl::Status {
    for (int step = 0; step < last; ++step) {
      Gradients gradients(options.parameters);
      gradients.Fill(rank, step);
      GradBucket bucket = gradients.Bucket();
      if (absl::Status status = client.AllReduce(bucket).Wait(); !status.ok()) return status;
      EXPECT_TRUE(gradients.bytes() == *ExpectedReduction({}, options.parameters, 3, step))
          << "rank " << rank << " step " << step;
      const auto verdict = client.EndStep();
      if (!verdict.ok()) return verdict.status();
      EXPECT_EQ(*verdict, Verdict::kApply);
      if (rank == 0) steps = step;
    }
    EXPECT_EQ(client.metrics().resumes, 0);
    return client.Leave();
  };
  const auto statuses = RunRanks(options, train, [&](ClientOptions& own, int rank) {
    own.address = relays[static_cast<std::size_t>(rank)]->address();
  });
  ender.join();
  ExpectAllOk(statuses);
}

TEST_F(LostDaemon, DaemonIsKilled) {
  const gradwire::testing::TemporaryFolder folder;
  const std::string address = "unix:" + folder / "daemon.sock";
  auto daemon = Process::Start({GRADWIRE_DAEMON, "--listen", address}, folder / "daemon.log");
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  const auto statuses = Strike(address, [&] { (*daemon)->Signal(SIGKILL); });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(Message(status), HasSubstr("lost the daemon at " + address));
  }
}

TEST(ParentOfADaemon, ItsEndIsTheEndOfTheDaemon) {
  const gradwire::testing::TemporaryFolder folder;
  auto daemon = Process::Start({"/bin/sh", "-c", "true | $0 --listen unix:$1 --stop-on-eof",
                                GRADWIRE_DAEMON, folder / "daemon.sock"},
                               folder / "daemon.log");
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  EXPECT_EQ((*daemon)->Wait(absl::Seconds(10)), 0);
  EXPECT_THAT((*daemon)->Log(), HasSubstr("drained"));
}

TEST_F(LostDaemon, DaemonIsTerminated) {
  const gradwire::testing::TemporaryFolder folder;
  const std::string address = "unix:" + folder / "daemon.sock";
  auto daemon = Process::Start({GRADWIRE_DAEMON, "--listen", address, "--drain-timeout", "200ms"},
                               folder / "daemon.log");
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  const auto statuses = Strike(address, [&] { (*daemon)->Signal(SIGTERM); });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  }
  EXPECT_TRUE((*daemon)->Wait(absl::Seconds(10)).has_value()) << (*daemon)->Log();
}

}  // namespace
}  // namespace gradwire
