// A daemon that is killed or ends under a training session, and the next one: real processes.
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <barrier>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "tests/integration/recovery_sessions.h"
#include "tests/testing/gradients.h"
#include "tests/testing/ranks.h"

namespace gradwire {
namespace {

using ::gradwire::testing::ExpectAllOk;
using ::gradwire::testing::Gradients;
using ::gradwire::testing::MakeParameter;
using ::gradwire::testing::RunRanks;
using ::testing::AllOf;

// With shared memory, in which the lost daemon may have written results.
TEST_F(Recovery, MembersOnAUnixSocketGoOnWithTheNextDaemon) {
  const std::string address = absl::StrCat("unix:", folder_ / "socket");
  const auto last = TrainThroughLosses(StartDaemon(address, "resume"), 300'000);
  EXPECT_THAT(last->Log(), HasSubstr("all members of a lost daemon are here"));
}

TEST_F(Recovery, MembersOverTcpGoOnWithTheNextDaemon) {
  TrainThroughLosses(StartDaemon("127.0.0.1:0", "resume"), 100'000);
}

// The next daemon has all of PowerSGD's state, or the means would be others from then on.
TEST_F(Recovery, MembersBringPowerSgdsState) {
  for (const char* hook :
       {"power_sgd,start_powerSGD_iter=8", "power_sgd,start_powerSGD_iter=3,warm_start=false",
        "batched_power_sgd,start_powerSGD_iter=3"}) {
    TrainThroughLosses(StartDaemon("127.0.0.1:0", "resume"), 100'000, hook);
  }
}

// Results of 80 chunks come one after another, so that many members have some when the daemon dies.
TEST_F(Recovery, NoStepIsSkippedIfGradientsAreKept) {
  setenv("GRADWIRE_KEEP_GRADIENTS", "on", 1);
  TrainThroughLosses(StartDaemon("127.0.0.1:0", "resume"), 1'300'000, "", false);
  TrainThroughLosses(StartDaemon(absl::StrCat("unix:", folder_ / "socket"), "resume"), 1'300'000,
                     "", false);
  for (const char* hook :
       {"power_sgd,start_powerSGD_iter=3", "power_sgd,start_powerSGD_iter=3,warm_start=false",
        "batched_power_sgd,start_powerSGD_iter=3"}) {
    TrainThroughLosses(StartDaemon("127.0.0.1:0", "resume"), 100'000, hook, false);
  }
  unsetenv("GRADWIRE_KEEP_GRADIENTS");
}

// Nothing is lost before the session has begun, whatever becomes of it later.
TEST_F(Recovery, MembersThatWaitForOthersJoinTheNextDaemon) {
  for (const char* loss : {"fail", "resume"}) {
    auto daemon = StartDaemon("127.0.0.1:0", loss);
    const std::string address = AddressOf(*daemon);
    auto members = StartMembers(address, 1000, "", {0, 1});
    WaitForLog(*daemon, "rank 0 joined");
    WaitForLog(*daemon, "rank 1 joined");
    Kill(*daemon);
    daemon = StartDaemon(address, loss);
    WaitForLog(*daemon, "rank 0 joined");
    members.push_back(std::move(StartMembers(address, 1000, "", {2}).front()));
    ExpectDone(members, 0);
    EXPECT_THAT(members[0]->Log(), HasSubstr("before the session began, and joins again"));
  }
}

// Nor has it applied anything else, as its digests show.
TEST_F(Recovery, WithKeptGradientsTheRunHasTheDigestsOfAnUndisturbedOne) {
  setenv("GRADWIRE_KEEP_GRADIENTS", "on", 1);
  const auto calm = StartDaemon("127.0.0.1:0", "fail");
  auto members = StartMembers(AddressOf(*calm), 300'000);
  ExpectDone(members, 0);
  const auto last = TrainThroughLosses(StartDaemon("127.0.0.1:0", "resume"), 300'000, "", false);
  unsetenv("GRADWIRE_KEEP_GRADIENTS");
  const std::string undisturbed = folder_ / "digests";
  EXPECT_EQ(Digest(*calm, undisturbed), 0);
  const std::string compared = folder_ / "compared";
  EXPECT_EQ(Digest(*last, compared, {"--compare", undisturbed}), 0);
  std::ifstream said(compared);
  EXPECT_EQ(
      std::string(std::istreambuf_iterator<char>(said), {}),
      absl::StrCat("the runs are the same up to step ", kSteps - 1, ", the last that both have\n"));
}

// An upgrade: the daemon does not wait until the training is over.
TEST_F(Recovery, ADaemonThatEndsLeavesItsSessionsToTheNext) {
  auto daemon = StartDaemon("127.0.0.1:0", "resume");
  const std::string address = AddressOf(*daemon);
  auto members = StartMembers(address, 100'000);
  for (int ended = 0; ended < 2; ++ended) {
    WaitForStep(*members[2], 5 + 20 * ended);
    daemon->Signal(SIGTERM);
    const auto status = daemon->Wait(absl::Seconds(10));
    ASSERT_TRUE(status.has_value()) << "it waits for the session: " << daemon->Log();
    EXPECT_EQ(WEXITSTATUS(*status), 0) << daemon->Log();
    daemon = StartDaemon(address, "resume");
  }
  ExpectDone(members, 2);
}

TEST_F(Recovery, WithoutItTheSessionEndsWithItsDaemon) {
  auto daemon = StartDaemon("127.0.0.1:0", "fail");
  auto members = StartMembers(AddressOf(*daemon), 1000);
  WaitForStep(*members[0], 3);
  Kill(*daemon);
  for (const auto& member : members) ExpectError(*member, HasSubstr("lost the daemon at"));
}

TEST_F(Recovery, WithoutANextDaemonMembersEndAfterTheGrace) {
  auto daemon = StartDaemon("127.0.0.1:0", "resume", "2s");
  auto members = StartMembers(AddressOf(*daemon), 1000);
  WaitForStep(*members[0], 3);
  Kill(*daemon);
  const absl::Time lost = absl::Now();
  for (const auto& member : members) ExpectError(*member, HasSubstr("lost the daemon at"));
  EXPECT_GT(absl::Now() - lost, absl::Seconds(1.5));
}

// Nobody need guess why nothing moves.
TEST_F(Recovery, MembersSayThatTheyLookForTheNextDaemonAndThatTheyGoOn) {
  auto daemon = StartDaemon("127.0.0.1:0", "resume");
  const std::string address = AddressOf(*daemon);
  auto members = StartMembers(address, 1000);
  WaitForStep(*members[0], 3);
  Kill(*daemon);
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (members[1]->Log().find(kWaits) == std::string::npos) {
    ASSERT_LT(absl::Now(), deadline) << members[1]->Log();
    absl::SleepFor(absl::Milliseconds(20));
  }
  daemon = StartDaemon(address, "resume");
  ExpectDone(members, 1);
  EXPECT_THAT(
      members[1]->Log(),
      AllOf(HasSubstr(absl::StrCat("rank 1 of session \"s\" has lost the daemon at ", address)),
            HasSubstr("looks for it or the next one for at most 30s"),
            HasSubstr(absl::StrCat("goes on with the daemon at ", address))));
}

// Threads of this process that leave after the loss of their daemon. Daemons end with the thread
// that started them, which is therefore this one.
class Ends : public Recovery {
 protected:
  // Kills the daemon when both have done a step. Returns how long they took to leave after that,
  // while `next` ran.
  absl::Duration LeaveAfter(Process& daemon, const std::function<void()>& next) {
    ClientOptions options;
    options.address = AddressOf(daemon);
    options.session = "s";
    options.world_size = 2;
    options.parameters = {MakeParameter("w", 100)};
    std::barrier<> done(3);
    absl::Time began;
    {
      std::jthread members([&] {
        ExpectAllOk(RunRanks(options, [&](Client& client, int rank) -> absl::Status {
          Gradients gradients(options.parameters);
          gradients.Fill(rank, 0);
          GradBucket bucket = gradients.Bucket();
          absl::Status ended = client.AllReduce(bucket).Wait();
          if (ended.ok()) ended = client.EndStep().status();
          done.arrive_and_wait();
          done.arrive_and_wait();
          return ended.ok() ? client.Leave() : ended;
        }));
      });
      done.arrive_and_wait();
      Kill(daemon);
      done.arrive_and_wait();
      began = absl::Now();
      next();
    }
    return absl::Now() - began;
  }
};

TEST_F(Ends, WhoLeavesTellsTheNextDaemonHowTheLastStepEnded) {
  const auto daemon = StartDaemon("127.0.0.1:0", "resume");
  std::unique_ptr<Process> next;
  LeaveAfter(*daemon, [&] {
    absl::SleepFor(absl::Milliseconds(500));
    next = StartDaemon(AddressOf(*daemon), "resume");
  });
  EXPECT_THAT(next->Log(), AllOf(HasSubstr("all members of a lost daemon are here"),
                                 HasSubstr("rank 0 left after 1 steps"),
                                 HasSubstr("rank 1 left after 1 steps")));
}

TEST_F(Ends, WithoutANextDaemonMembersHaveLeftAfterTenSeconds) {
  const auto daemon = StartDaemon("127.0.0.1:0", "resume");
  ::testing::internal::CaptureStderr();
  const absl::Duration took = LeaveAfter(*daemon, [] {});
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_GE(took, absl::Seconds(9)) << "they look for it";
  for (const int rank : {0, 1}) {
    const std::string who = absl::StrCat("gradwire: rank ", rank, " of session \"s\" ");
    EXPECT_THAT(
        said,
        AllOf(HasSubstr(absl::StrCat(who, "has lost the daemon at ")),
              HasSubstr(absl::StrCat(who, "leaves, although no daemon has let it go within 1"))));
  }
  EXPECT_THAT(said, HasSubstr("looks for it or the next one before it leaves"));
}

TEST_F(Recovery, ADaemonThatTakesNoSessionsOverSaysSo) {
  auto daemon = StartDaemon("127.0.0.1:0", "resume");
  const std::string address = AddressOf(*daemon);
  auto members = StartMembers(address, 1000);
  WaitForStep(*members[0], 3);
  Kill(*daemon);
  daemon = StartDaemon(address, "fail");
  for (const auto& member : members) {
    ExpectError(*member, AllOf(HasSubstr("could not go on with the next one"),
                               HasSubstr("allowed with on_coordinator_loss=resume")));
  }
}

// Who does not come back is named, to those who did, within the grace.
TEST_F(Recovery, AMemberThatIsLostWithTheDaemonIsNamed) {
  auto daemon = StartDaemon("127.0.0.1:0", "resume");
  const std::string address = AddressOf(*daemon);
  auto members = StartMembers(address, 1000);
  WaitForStep(*members[0], 3);
  members[1]->Signal(SIGKILL);
  Kill(*daemon);
  daemon = StartDaemon(address, "resume", "3s");
  for (const std::size_t rank : {0U, 2U}) {
    ExpectError(*members[rank], HasSubstr("waited 3s for rank 1 of 3 to join"));
  }
}

// ---- Of sessions with several daemons, which are left together

class ShardRecovery : public Recovery {
 protected:
  struct Shard {
    std::unique_ptr<Process> daemon;
    std::string address;
  };

  std::vector<Shard> StartShards(std::size_t count) {
    std::vector<Shard> shards;
    for (std::size_t i = 0; i < count; ++i) {
      Shard shard{.daemon = StartDaemon("127.0.0.1:0", "resume"), .address = ""};
      shard.address = AddressOf(*shard.daemon);
      shards.push_back(std::move(shard));
    }
    return shards;
  }

  static std::string List(const std::vector<Shard>& shards) {
    return absl::StrJoin(shards, ",", [](std::string* out, const Shard& shard) {
      absl::StrAppend(out, shard.address);
    });
  }

  // These shards are killed, one after another, and each comes back.
  void TrainThroughLossesOf(std::vector<std::size_t> lost, std::size_t count, int elements,
                            const std::string& hook, int may_skip) {
    std::vector<Shard> shards = StartShards(count);
    auto members = StartMembers(List(shards), elements, hook);
    for (std::size_t i = 0; i < lost.size(); ++i) {
      WaitForStep(*members[1], 5 + 12 * static_cast<int>(i));
      Shard& shard = shards[lost[i]];
      Kill(*shard.daemon);
      shard.daemon = StartDaemon(shard.address, "resume");
    }
    ExpectDone(members, may_skip);
  }
};

TEST_F(ShardRecovery, MembersGoOnWithEachShardsNextDaemon) {
  TrainThroughLossesOf({1, 0, 1, 0}, 2, 300'000, "", 4);
}

TEST_F(ShardRecovery, MembersBringPowerSgdsState) {
  TrainThroughLossesOf({2, 0, 1, 2}, 3, 100'000, "power_sgd,start_powerSGD_iter=3", 4);
}

TEST_F(ShardRecovery, NoStepIsSkippedIfGradientsAreKept) {
  setenv("GRADWIRE_KEEP_GRADIENTS", "on", 1);
  TrainThroughLossesOf({1, 0, 1, 0}, 2, 1'300'000, "", 0);
  TrainThroughLossesOf({0, 1, 0, 1}, 2, 100'000, "power_sgd,start_powerSGD_iter=3", 0);
  unsetenv("GRADWIRE_KEEP_GRADIENTS");
}

TEST_F(ShardRecovery, AllShardsMayBeLostAtOnce) {
  std::vector<Shard> shards = StartShards(3);
  auto members = StartMembers(List(shards), 300'000);
  for (int lost = 0; lost < 2; ++lost) {
    WaitForStep(*members[1], 5 + 20 * lost);
    for (Shard& shard : shards) Kill(*shard.daemon);
    for (Shard& shard : shards) shard.daemon = StartDaemon(shard.address, "resume");
  }
  ExpectDone(members, 2);
}

}  // namespace
}  // namespace gradwire
