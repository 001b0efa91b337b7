// Members that are killed under a session that waits for their successors: real processes.
#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "tests/testing/gradients.h"
#include "tests/testing/process.h"

namespace gradwire {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::Process;
using testing::TemporaryFolder;

constexpr int kMembers = 3;
constexpr int kSteps = 80;

int Count(const std::string& log, const std::string& text) {
  int count = 0;
  for (std::size_t at = log.find(text); at != std::string::npos; at = log.find(text, at + 1)) {
    ++count;
  }
  return count;
}

class Wait : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const std::string& name : logs_) {
      if (!HasFailure()) return;
      std::ifstream log(name);
      std::cout << "---- " << name << "\n" << log.rdbuf() << std::endl;
    }
  }

  std::string Log(const std::string& name) {
    logs_.push_back(folder_ / absl::StrCat(name, "-", logs_.size()));
    return logs_.back();
  }

  void StartDaemon(const std::string& listen, const std::string& grace = "60s",
                   const std::string& policy = "wait") {
    auto daemon =
        Process::Start({GRADWIRE_DAEMON, "--listen", listen, "--on-coordinator-loss", "resume",
                        "--coordinator-grace", "30s", "--on-member-loss", policy, "--member-grace",
                        grace, "--shrink-after", "2s", "--http-listen", "off", "--ledger"},
                       Log("daemon"));
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (daemon_->Log().find("  grpc  ") == std::string::npos) {
      ASSERT_LT(absl::Now(), deadline) << daemon_->Log();
      absl::SleepFor(absl::Milliseconds(10));
    }
    for (const absl::string_view line : absl::StrSplit(daemon_->Log(), '\n')) {
      const std::string text(line);
      if (text.starts_with("  grpc  ")) address_ = text.substr(8);
    }
  }

  std::unique_ptr<Process> StartMember(int rank, const std::string& elements = "20000",
                                       bool trains = true) {
    std::vector<std::string> command = {GRADWIRE_TEST_MEMBER,
                                        "--address",
                                        address_,
                                        "--session",
                                        "s",
                                        "--rank",
                                        absl::StrCat(rank),
                                        "--world-size",
                                        absl::StrCat(kMembers),
                                        "--elements",
                                        elements,
                                        "--steps",
                                        absl::StrCat(kSteps),
                                        "--late-ms",
                                        "20",
                                        "--trains",
                                        trains ? "1" : "0"};
    if (!hook_.empty()) command.insert(command.end(), {"--hook", hook_});
    auto member = Process::Start(command, Log(absl::StrCat("member", rank)));
    EXPECT_TRUE(member.ok()) << member.status();
    return *std::move(member);
  }
  void StartMembers() {
    for (int rank = 0; rank < kMembers; ++rank) members_.push_back(StartMember(rank));
  }

  // Until the text stands in the process' log so many times.
  static void WaitForLog(const Process& process, const std::string& text, int times) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (Count(process.Log(), text) < times) {
      ASSERT_LT(absl::Now(), deadline) << process.Log();
      absl::SleepFor(absl::Milliseconds(5));
    }
  }
  // Until the member has done so many steps as this process.
  static void WaitForSteps(const Process& member, int steps) { WaitForLog(member, "step ", steps); }

  static void Kill(Process& process) {
    process.Signal(SIGKILL);
    ASSERT_TRUE(process.Wait(absl::Seconds(10)).has_value());
  }
  void Replace(int rank) {
    auto& member = members_[static_cast<std::size_t>(rank)];
    Kill(*member);
    member = StartMember(rank);
  }

  // All go on to the end, and have trained the same model.
  void ExpectDone(int losses) {
    std::string model;
    for (const auto& member : members_) {
      const auto status = member->Wait(absl::Seconds(120));
      ASSERT_TRUE(status.has_value()) << member->Log();
      const std::string log = member->Log();
      EXPECT_EQ(WEXITSTATUS(*status), 0) << log;
      EXPECT_THAT(log, HasSubstr("done"));
      EXPECT_LE(Count(log, "skip"), 2 * losses) << log;
      const std::string own = log.substr(log.find("model "));
      if (model.empty()) model = own;
      EXPECT_EQ(own, model);
    }
    ExpectLedgerCloses();
  }

  // Whoever was lost: what members contributed was applied, or was lost by name.
  void ExpectLedgerCloses() {
    auto ctl = Process::Start({GRADWIRE_CTL, "--address", address_, "session", "ledger", "s"},
                              Log("ledger"));
    ASSERT_TRUE(ctl.ok()) << ctl.status();
    const auto status = (*ctl)->Wait(absl::Seconds(30));
    ASSERT_TRUE(status.has_value());
    EXPECT_EQ(WEXITSTATUS(*status), 0) << (*ctl)->Log();
    EXPECT_THAT((*ctl)->Log(), HasSubstr("it closes"));
  }

  // As a launcher does that starts all processes again.
  void RestartAll() {
    StartMembers();
    WaitForSteps(*members_[0], 5);
    for (const auto& member : members_) member->Signal(SIGKILL);
    for (int rank = 0; rank < kMembers; ++rank) {
      ASSERT_TRUE(members_[static_cast<std::size_t>(rank)]->Wait(absl::Seconds(10)).has_value());
      members_[static_cast<std::size_t>(rank)] = StartMember(rank);
    }
    ExpectDone(0);
    EXPECT_THAT(members_[0]->Log(), HasSubstr("step 0 apply"));
  }

  // Rank 0 goes in good order after some steps, such as before its machine is taken away.
  void LeaveAndBeReplaced() {
    for (const int rank : {1, 2}) members_.push_back(StartMember(rank, "1000"));
    const auto client = Client::Join({.address = address_,
                                      .session = "s",
                                      .rank = 0,
                                      .world_size = kMembers,
                                      .parameters = {testing::MakeParameter("w", 1000)}});
    ASSERT_TRUE(client.ok()) << client.status();
    for (int step = 0; step < 5; ++step) {
      testing::Gradients gradients({testing::MakeParameter("w", 1000)});
      gradients.Fill(0, step);
      GradBucket bucket = gradients.Bucket();
      ASSERT_TRUE((*client)->AllReduce(bucket).Wait().ok());
      ASSERT_TRUE((*client)->EndStep().ok());
    }
    const absl::Status left = (*client)->Leave();
    ASSERT_TRUE(left.ok()) << left;
    members_.push_back(StartMember(0, "1000"));
    ExpectDone(1);
  }

  // The daemon still knows those of the steps before its members gathered, but for one of two that
  // ended then.
  void ExpectDigests(int losses) {
    const auto tool = Process::Start(
        {GRADWIRE_CTL, "--address", address_, "session", "digest", "s"}, Log("digests"));
    ASSERT_TRUE(tool.ok()) << tool.status();
    ASSERT_EQ((*tool)->Wait(absl::Seconds(30)), 0) << (*tool)->Log();
    const std::string digests = (*tool)->Log();
    EXPECT_THAT(digests, ::testing::StartsWith("step 0  "));
    EXPECT_THAT(digests, HasSubstr(absl::StrCat("step ", kSteps - 1, "  ")));
    EXPECT_GE(Count(digests, "step "), kSteps - losses) << digests;
  }

  static void ExpectError(Process& member, const ::testing::Matcher<std::string>& text) {
    const auto status = member.Wait(absl::Seconds(30));
    ASSERT_TRUE(status.has_value()) << member.Log();
    EXPECT_EQ(WEXITSTATUS(*status), 1);
    EXPECT_THAT(member.Log(), text);
  }

  TemporaryFolder folder_;
  std::vector<std::string> logs_;
  std::unique_ptr<Process> daemon_;
  std::string address_;
  std::string hook_;
  std::vector<std::unique_ptr<Process>> members_;
};

TEST_F(Wait, ASuccessorTakesTheModelAndGoesOn) {
  StartDaemon("127.0.0.1:0");
  StartMembers();
  WaitForSteps(*members_[0], 10);
  Replace(1);
  WaitForSteps(*members_[1], 10);
  Replace(0);  // the one that gave the model
  WaitForSteps(*members_[0], 10);
  Replace(2);
  ExpectDone(3);
  for (const auto& member : members_) EXPECT_THAT(member->Log(), HasSubstr("heal done"));
  ExpectDigests(3);
}

class Shrink : public Wait {
 protected:
  void Start(const std::string& grace = "60s") {
    StartDaemon("127.0.0.1:0", grace, "shrink");
    StartMembers();
    WaitForSteps(*members_[0], 10);
  }
};

TEST_F(Shrink, TheOthersGoOnWithoutALostMember) {
  for (const char* hook : {"", "power_sgd,start_powerSGD_iter=3"}) {
    hook_ = hook;
    Start();
    Kill(*members_[0]);
    members_.erase(members_.begin());
    ExpectDone(1);
    EXPECT_THAT(daemon_->Log(), HasSubstr("the session goes on with 2 members"));
    members_.clear();
  }
}

TEST_F(Shrink, AProcessThatComesLaterIsTakenIn) {
  Start();
  Kill(*members_[1]);
  WaitForSteps(*members_[0], 25);
  members_[1] = StartMember(1);
  ExpectDone(2);
  for (const auto& member : members_) EXPECT_THAT(member->Log(), HasSubstr("heal done"));
  EXPECT_THAT(daemon_->Log(), HasSubstr("a process has come for rank 1"));
}

// Nobody knows of its loss: the next daemon waits for it, and then goes on.
TEST_F(Shrink, AMemberMayBeLostWithTheDaemon) {
  Start();
  Kill(*daemon_);
  Kill(*members_[2]);
  members_.pop_back();
  StartDaemon(address_, "60s", "shrink");
  ExpectDone(1);
}

// One of two is no majority: it waits for another process, and ends when none comes.
TEST_F(Shrink, AMinorityDoesNotGoOn) {
  Start("4s");
  Kill(*members_[1]);
  WaitForSteps(*members_[0], 25);
  Kill(*members_[2]);
  ExpectError(*members_[0], HasSubstr("to join"));
}

// The step that the lost member was in is dropped for all, also for those who never began it.
TEST_F(Wait, WhoHasDoneItsLastStepLeavesAlthoughTheNextOneWasDropped) {
  static constexpr int kOwnSteps = 3;
  StartDaemon("127.0.0.1:0");
  members_.push_back(StartMember(2, "1000"));
  const ClientOptions options = {.address = address_,
                                 .session = "s",
                                 .world_size = kMembers,
                                 .parameters = {testing::MakeParameter("w", 1000)},
                                 .step_timeout = absl::Seconds(60)};
  std::atomic<int> done = 0;
  const auto train = [&](int rank) -> absl::Status {
    ClientOptions own = options;
    own.rank = rank;
    const auto client = Client::Join(own);
    if (!client.ok()) return client.status();
    for (int step = 0; step < kOwnSteps; ++step) {
      testing::Gradients gradients(own.parameters);
      gradients.Fill(rank, step);
      GradBucket bucket = gradients.Bucket();
      if (absl::Status reduced = (*client)->AllReduce(bucket).Wait(); !reduced.ok()) return reduced;
      if (const auto verdict = (*client)->EndStep(); !verdict.ok()) return verdict.status();
    }
    ++done;
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while ((*client)->metrics().steps_skipped == 0) {
      if (absl::Now() > deadline) return absl::DeadlineExceededError("no step was dropped");
      absl::SleepFor(absl::Milliseconds(5));
    }
    return (*client)->Leave();
  };
  std::vector<absl::Status> left(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] { left[static_cast<std::size_t>(rank)] = train(rank); });
  }
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (done < 2 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
  members_[0]->Signal(SIGKILL);
  // It asks nobody for the model: who leaves while it does ends the session for the others.
  const auto successor = StartMember(2, "1000", /*trains=*/false);
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : left) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(done, 2);
  successor->Signal(SIGKILL);  // nobody is left to train with
}

TEST_F(Wait, AMemberThatLeavesHasASuccessor) {
  StartDaemon("127.0.0.1:0");
  LeaveAndBeReplaced();
  EXPECT_THAT(daemon_->Log(), HasSubstr("rank 0 has left before the others"));
}

TEST_F(Wait, WithSharedMemory) {
  StartDaemon(absl::StrCat("unix:", folder_ / "socket"));
  StartMembers();
  for (const int rank : {2, 0}) {
    WaitForSteps(*members_[1], rank == 2 ? 10 : 30);
    Replace(rank);
  }
  ExpectDone(2);
}

TEST_F(Wait, WithStateOnTheCoordinator) {
  hook_ = "power_sgd,start_powerSGD_iter=5";
  StartDaemon("127.0.0.1:0");
  StartMembers();
  for (const int rank : {0, 2}) {
    WaitForSteps(*members_[1], rank == 0 ? 12 : 40);
    Replace(rank);
  }
  ExpectDone(2);
}

// The next daemon gathers who is left, and takes a successor in as the lost one would have.
TEST_F(Wait, ADaemonAndAMemberAreLostTogether) {
  StartDaemon("127.0.0.1:0");
  StartMembers();
  WaitForSteps(*members_[0], 10);
  Kill(*members_[2]);
  Kill(*daemon_);
  StartDaemon(address_);
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (daemon_->Log().find("rank 0 joined") == std::string::npos) {
    ASSERT_LT(absl::Now(), deadline) << daemon_->Log();
    absl::SleepFor(absl::Milliseconds(10));
  }
  members_[2] = StartMember(2);
  ExpectDone(2);
}

TEST_F(Wait, TwoMembersAreLostAtOnce) {
  StartDaemon("127.0.0.1:0");
  StartMembers();
  WaitForSteps(*members_[0], 10);
  Kill(*members_[1]);
  Replace(2);
  members_[1] = StartMember(1);
  ExpectDone(2);
}

TEST_F(Wait, WithoutASuccessorTheSessionEndsAfterTheGrace) {
  StartDaemon("127.0.0.1:0", "2s");
  StartMembers();
  WaitForSteps(*members_[0], 5);
  Kill(*members_[1]);
  for (const std::size_t rank : {0U, 2U}) {
    ExpectError(*members_[rank], HasSubstr("for rank 1 of 3 to join"));
  }
}

// Also once the others gather, who wait for a process of exactly this rank.
TEST_F(Wait, ASuccessorWithAnotherModelIsRefusedAndHarmsNobody) {
  StartDaemon("127.0.0.1:0", "20s");
  StartMembers();
  WaitForSteps(*members_[0], 5);
  Kill(*members_[1]);
  WaitForLog(*daemon_, "rank 2 joined", 2);
  ExpectError(*StartMember(1, "10000"), HasSubstr("parameter"));
  members_[1] = StartMember(1);
  ExpectDone(1);
}

TEST_F(Wait, WhereAllAreNewTheSessionBeginsAnew) {
  StartDaemon("127.0.0.1:0");
  RestartAll();
  EXPECT_THAT(members_[0]->Log(), Not(HasSubstr("heal")));
}

// ---- Of sessions with several daemons: who is lost at one is lost at all

class ShardWait : public Wait {
 protected:
  void StartShards(int count, const std::string& policy = "wait") {
    std::vector<std::string> addresses;
    for (int i = 0; i < count; ++i) {
      StartDaemon("127.0.0.1:0", "60s", policy);
      shards_.push_back(std::move(daemon_));
      addresses.push_back(address_);
    }
    address_ = absl::StrJoin(addresses, ",");
  }
  void StartShardAgain(std::size_t shard) {
    const std::string all = address_;
    StartDaemon(std::vector<std::string>(absl::StrSplit(all, ','))[shard]);
    shards_[shard] = std::move(daemon_);
    address_ = all;
  }

  std::vector<std::unique_ptr<Process>> shards_;
};

TEST_F(ShardWait, ASuccessorTakesTheModelAndGoesOn) {
  for (const char* hook : {"", "power_sgd,start_powerSGD_iter=5"}) {
    hook_ = hook;
    StartShards(2);
    StartMembers();
    for (const int rank : {1, 0}) {
      WaitForSteps(*members_[2], rank == 1 ? 12 : 40);
      Replace(rank);
    }
    ExpectDone(2);
    for (const auto& member : members_) EXPECT_THAT(member->Log(), HasSubstr("heal done"));
    members_.clear();
    shards_.clear();
  }
}

TEST_F(ShardWait, AShardAndAMemberAreLostTogether) {
  for (const std::size_t shard : {0U, 1U}) {
    StartShards(2);
    StartMembers();
    WaitForSteps(*members_[0], 10);
    Kill(*members_[2]);
    Kill(*shards_[shard]);
    StartShardAgain(shard);
    // The others report first, or nobody knows the session: to the first shard, which may be new.
    for (const char* joined : {"rank 0 joined", "rank 1 joined"}) {
      WaitForLog(*shards_[0], joined, shard == 0 ? 1 : 2);
    }
    members_[2] = StartMember(2);
    ExpectDone(2);
    members_.clear();
    shards_.clear();
  }
}

TEST_F(ShardWait, AMemberThatLeavesHasASuccessor) {
  StartShards(2);
  LeaveAndBeReplaced();
}

TEST_F(ShardWait, WhereAllAreNewTheSessionBeginsAnew) {
  StartShards(2);
  RestartAll();
}

TEST_F(ShardWait, WithShrinkTheOthersGoOnAndTakeAProcessIn) {
  for (const char* hook : {"", "power_sgd,start_powerSGD_iter=3"}) {
    hook_ = hook;
    StartShards(2, "shrink");
    StartMembers();
    WaitForSteps(*members_[1], 10);
    Kill(*members_[0]);
    WaitForSteps(*members_[1], 25);
    members_[0] = StartMember(0);
    ExpectDone(2);
    for (const auto& shard : shards_) {
      EXPECT_THAT(shard->Log(), HasSubstr("the session goes on with 2 members"));
    }
    for (const auto& member : members_) EXPECT_THAT(member->Log(), HasSubstr("heal done"));
    members_.clear();
    shards_.clear();
  }
}

}  // namespace
}  // namespace gradwire
