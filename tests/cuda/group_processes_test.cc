// Node groups of real processes: what they compute, and that a member that dies inside of the
// exchange frees the others, which end or go on with another process.
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/process.h"
#include "tests/testing/ranks.h"
#include "tests/testing/test_daemon.h"

namespace gradwire::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The stand-in's faults, for the processes that are started while it lives.
class Faults {
 public:
  explicit Faults(const std::string& faults) {
    EXPECT_EQ(setenv("GRADWIRE_STAND_IN_NCCL", faults.c_str(), 1), 0);
  }
  ~Faults() { unsetenv("GRADWIRE_STAND_IN_NCCL"); }
  Faults(const Faults&) = delete;
  Faults& operator=(const Faults&) = delete;
};

class GroupProcesses : public ::testing::Test {
 protected:
  explicit GroupProcesses(const server::ServerOptions& options = {}) : daemon_(options) {}

  void Start(int world_size, int group_size, int steps, const std::string& next_session = "") {
    for (int rank = 0; rank < world_size; ++rank) {
      members_.push_back(nullptr);
      StartOne("groups", rank, {rank, world_size, group_size, steps}, next_session);
    }
  }
  // In the place of the one at `index`, which is killed if it still runs.
  void StartOne(const std::string& session, int index, const std::vector<int>& numbers,
                const std::string& next_session = "") {
    std::vector<std::string> words = {GROUPED_MEMBER, daemon_.address(), session};
    for (const int number : numbers) words.push_back(std::to_string(number));
    if (!next_session.empty()) words.push_back(next_session);
    auto process = Process::Start(words, daemon_.Path(absl::StrCat(session, index, ".log")));
    ASSERT_TRUE(process.ok()) << process.status();
    members_[static_cast<std::size_t>(index)] = *std::move(process);
  }
  void ExpectAllToLeave(const std::string& last) {
    for (auto& member : members_) {
      EXPECT_EQ(member->Wait(absl::Seconds(60)), 0);
      EXPECT_THAT(member->Log(), AllOf(HasSubstr(last), HasSubstr("left")));
    }
  }
  bool AllSay(const std::string& text) {
    for (auto& member : members_) {
      if (member->Log().find(text) == std::string::npos) return false;
    }
    return true;
  }

  TestDaemon daemon_;
  std::vector<std::unique_ptr<Process>> members_;
};

TEST_F(GroupProcesses, TwoAreOneGroup) {
  Start(2, 2, 20);
  ExpectAllToLeave("step 19 right");
}

TEST_F(GroupProcesses, FourAreOneGroup) {
  Start(4, 4, 20);
  ExpectAllToLeave("step 19 right");
}

TEST_F(GroupProcesses, FourAreTwoGroups) {
  Start(4, 2, 20);
  ExpectAllToLeave("step 19 right");
}

// Two buckets, exchanged and gathered: the ninth operation is an exchange of the third step. As in
// NCCL, it does not notice that a member is gone.
TEST_F(GroupProcesses, AMemberThatDiesInsideOfTheExchangeFreesTheOthers) {
  const Faults faults("hang=9");
  Start(4, 4, 5);
  ASSERT_TRUE(Eventually([&] { return AllSay("step 2 begins"); }, absl::Seconds(60)));
  for (auto& member : members_) EXPECT_EQ(member->Wait(absl::Milliseconds(100)), std::nullopt);
  members_[2]->Signal(SIGKILL);
  const auto died = std::chrono::steady_clock::now();
  for (const std::size_t rank : {0UL, 1UL, 3UL}) {
    EXPECT_NE(members_[rank]->Wait(absl::Seconds(20)).value_or(0), 0) << "rank " << rank;
    EXPECT_THAT(members_[rank]->Log(), HasSubstr("rank 2 was lost in step 2"));
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - died;
  RecordProperty("seconds_until_all_were_told", absl::StrCat(seconds.count()));
  std::cout << "the others were told " << seconds.count() << " s after the death\n";
}

// The processes that are left, whose communicator was aborted, make another one with the newcomer.
TEST_F(GroupProcesses, TheOthersAndANewMemberAreAGroupAgain) {
  {
    const Faults faults("hang=9");
    Start(4, 4, 5, "again");
    ASSERT_TRUE(Eventually([&] { return AllSay("step 2 begins"); }, absl::Seconds(60)));
  }
  members_[2]->Signal(SIGKILL);
  StartOne("again", 2, {2, 4, 4, 5});
  ExpectAllToLeave("step 4 right");
  for (const std::size_t rank : {0UL, 1UL, 3UL}) {
    EXPECT_THAT(members_[rank]->Log(), HasSubstr("rank 2 was lost in step 2"));
  }
}

class GroupProcessesThatWait : public GroupProcesses {
 protected:
  explicit GroupProcessesThatWait(const std::string& on_member_loss = "wait")
      : GroupProcesses(Options(on_member_loss)) {}
  static server::ServerOptions Options(const std::string& on_member_loss) {
    server::ServerOptions options;
    options.on_coordinator_loss = "resume";
    options.on_member_loss = on_member_loss;
    return options;
  }

  // In the same session: the step whose exchange is never done is skipped, and maybe the next one.
  void GoOnAfter(const std::string& fault) {
    const Faults faults(fault);
    Start(4, 4, 5);
    ASSERT_TRUE(Eventually([&] { return AllSay("step 2 begins"); }, absl::Seconds(60)));
    members_[2]->Signal(SIGKILL);
    StartOne("groups", 2, {2, 4, 4, 5});
    ExpectAllToLeave("step 4 right");
    for (const std::size_t rank : {0UL, 1UL, 3UL}) {
      EXPECT_THAT(members_[rank]->Log(), HasSubstr("step 2 skipped"));
    }
  }
};

TEST_F(GroupProcessesThatWait, TheOthersGoOnWithTheSuccessor) { GoOnAfter("hang=9"); }

// NCCL may notice before the daemon does.
TEST_F(GroupProcessesThatWait, TheOthersHoldNcclsErrorBack) { GoOnAfter("error=9"); }

// In smaller groups, or without one.
class GroupProcessesThatShrink : public GroupProcessesThatWait {
 protected:
  GroupProcessesThatShrink() : GroupProcessesThatWait("shrink") {}

  void GoOnWithout(const std::vector<std::size_t>& lost, int group_size) {
    const Faults faults("hang=9");
    Start(6, group_size, 5);
    ASSERT_TRUE(Eventually([&] { return AllSay("step 2 begins"); }, absl::Seconds(60)));
    for (const std::size_t rank : lost) members_[rank]->Signal(SIGKILL);
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      if (std::ranges::count(lost, rank) > 0) continue;
      EXPECT_EQ(members_[rank]->Wait(absl::Seconds(60)), 0);
      EXPECT_THAT(
          members_[rank]->Log(),
          AllOf(HasSubstr("step 1 right of 6"), HasSubstr("step 2 skipped"),
                HasSubstr(absl::StrCat("step 4 right of ", 6 - lost.size())), HasSubstr("left")));
    }
  }
};

TEST_F(GroupProcessesThatShrink, TheOthersOfAGroupGoOn) { GoOnWithout({2}, 3); }

TEST_F(GroupProcessesThatShrink, OneIsLeftOfAGroup) { GoOnWithout({2}, 2); }

// It says so and ends; those who had been a group before hold NCCL's error back.
TEST_F(GroupProcessesThatShrink, ANewcomerThatCannotConnectIsDoneWithout) {
  Start(3, 3, 1000);
  ASSERT_TRUE(Eventually([&] { return AllSay("step 9 right"); }, absl::Seconds(60)));
  members_[2]->Signal(SIGKILL);
  const auto go_on = [&](const std::string& words) {
    return Eventually([&] { return members_[0]->Log().find(words) != std::string::npos; },
                      absl::Seconds(60));
  };
  ASSERT_TRUE(go_on("right of 2"));
  const Faults faults("duplicate");
  StartOne("groups", 2, {2, 3, 3, 1000});
  EXPECT_NE(members_[2]->Wait(absl::Seconds(30)).value_or(0), 0);
  EXPECT_THAT(members_[2]->Log(), HasSubstr("one GPU for each member"));
  for (const std::size_t rank : {0UL, 1UL}) {
    EXPECT_EQ(members_[rank]->Wait(absl::Seconds(60)), 0);
    EXPECT_THAT(members_[rank]->Log(), AllOf(HasSubstr("step 999 right of 2"), HasSubstr("left")));
  }
}

TEST_F(GroupProcessesThatShrink, AWholeGroupIsGone) { GoOnWithout({2, 3}, 2); }

TEST_F(GroupProcessesThatWait, WhatIsWrongWithTheGroupIsSaidAtOnce) {
  const Faults faults("duplicate");
  Start(2, 2, 1);
  for (auto& member : members_) {
    EXPECT_NE(member->Wait(absl::Seconds(10)).value_or(0), 0);
    EXPECT_THAT(member->Log(), HasSubstr("one GPU for each member"));
  }
}

TEST_F(GroupProcesses, TwoMembersOnOneGpuAreToldWhatToDo) {
  const Faults faults("duplicate");
  Start(2, 2, 1);
  for (auto& member : members_) {
    EXPECT_NE(member->Wait(absl::Seconds(20)).value_or(0), 0);
    EXPECT_THAT(member->Log(), AllOf(HasSubstr("the node group of ranks 0, 1"),
                                     HasSubstr("one GPU for each member")));
  }
}

TEST_F(GroupProcesses, AnErrorOfNcclEndsTheSessionForAll) {
  const Faults faults("error=5");
  Start(4, 4, 5);
  for (auto& member : members_) {
    EXPECT_NE(member->Wait(absl::Seconds(20)).value_or(0), 0);
    EXPECT_THAT(member->Log(), HasSubstr("step 1 begins"));
  }
}

}  // namespace
}  // namespace gradwire::testing
