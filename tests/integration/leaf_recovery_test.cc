// The root of leaf daemons that is killed under a training session, and the next one: real
// processes.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/integration/recovery_sessions.h"

namespace gradwire {
namespace {

using ::testing::AllOf;
using ::testing::Not;

// Nodes of two members each, with a leaf daemon, and perhaps trainers at the root.
class LeafRecovery : public Recovery {
 protected:
  void StartRoots(std::size_t count, const std::string& grace = "30s",
                  const std::vector<std::string>& more = {}) {
    for (std::size_t i = 0; i < count; ++i) {
      roots_.push_back(StartDaemon("127.0.0.1:0", "resume", grace, more));
      addresses_.push_back(AddressOf(*roots_.back()));
    }
    more_of_roots_ = more;
  }
  std::unique_ptr<Process> StartLeaf(std::size_t leaf) {
    return StartDaemon(absl::StrCat("unix:", folder_ / absl::StrCat("leaf", leaf)), "fail", "30s",
                       {"--upstream", absl::StrJoin(addresses_, ",")});
  }
  void StartLeaves(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) leaves_.push_back(StartLeaf(i));
  }
  std::unique_ptr<Process> StartTrainer(int rank) {
    const auto leaf = static_cast<std::size_t>(rank) / 2;
    if (leaf >= leaves_.size()) {
      return StartMember(absl::StrJoin(addresses_, ","), elements_, rank, world_size_, more_);
    }
    std::vector<std::string> behind_leaf = more_;
    behind_leaf.insert(behind_leaf.end(), {"--node", "2"});
    return StartMember(AddressOf(*leaves_[leaf]), elements_, rank, world_size_, behind_leaf);
  }
  void StartTrainers(int world_size, int elements, const std::vector<std::string>& more) {
    world_size_ = world_size;
    elements_ = elements;
    more_ = more;
    for (int rank = 0; rank < world_size; ++rank) members_.push_back(StartTrainer(rank));
  }
  void KillRoot(std::size_t root) {
    Kill(*roots_[root]);
    roots_[root] = StartDaemon(addresses_[root], "resume", "30s", more_of_roots_);
  }
  void LoseRoot(std::size_t root, int at_step) {
    WaitForStep(*members_[1], at_step);
    KillRoot(root);
  }

  std::vector<std::unique_ptr<Process>> roots_;
  std::vector<std::string> addresses_;  // of the roots
  std::vector<std::unique_ptr<Process>> leaves_;
  std::vector<std::unique_ptr<Process>> members_;
  std::vector<std::string> more_of_roots_;
  int world_size_ = 0;
  int elements_ = 0;
  std::vector<std::string> more_;  // of the trainers' words
};

class LeafRecoveryHooks : public LeafRecovery, public ::testing::WithParamInterface<const char*> {};

TEST_P(LeafRecoveryHooks, MembersBehindLeavesGoOnWithTheRootsNextDaemon) {
  StartRoots(1);
  StartLeaves(2);
  StartTrainers(4, 100'000, {"--hook", GetParam()});
  for (int lost = 0; lost < 4; ++lost) LoseRoot(0, 5 + 12 * lost);
  ExpectDone(members_, 4);
  EXPECT_THAT(roots_[0]->Log(), HasSubstr("all members of a lost daemon are here"));
}

INSTANTIATE_TEST_SUITE_P(Hooks, LeafRecoveryHooks,
                         ::testing::Values("no", "power_sgd,start_powerSGD_iter=3"),
                         [](const auto& test) {
                           return test.param == std::string("no") ? "no" : "power_sgd";
                         });

TEST_F(LeafRecovery, OneOfTheRootsShardsMayBeLost) {
  StartRoots(2);
  StartLeaves(2);
  StartTrainers(4, 100'000, {});
  LoseRoot(1, 5);
  LoseRoot(0, 20);
  ExpectDone(members_, 2);
}

// Whose gradients have other weights.
TEST_F(LeafRecovery, TrainersAtTheRootGoOnWithLeaves) {
  StartRoots(1);
  StartLeaves(2);
  StartTrainers(5, 100'000, {"--trains", "1"});
  for (int lost = 0; lost < 2; ++lost) LoseRoot(0, 5 + 20 * lost);
  ExpectDone(members_, 2);
}

TEST_F(LeafRecovery, ARootThatStaysAwayEndsTheSessionForAllBehindLeaves) {
  StartRoots(1, "2s");
  StartLeaves(2);
  StartTrainers(4, 1000, {});
  WaitForStep(*members_[1], 3);
  Kill(*roots_[0]);
  for (const auto& member : members_) {
    ExpectError(*member,
                AllOf(HasSubstr("lost the daemon at " + addresses_[0]), HasSubstr("[GW308]")));
  }
}

TEST_F(LeafRecovery, ALostLeafStillEndsTheSessionForAll) {
  StartRoots(1);
  StartLeaves(2);
  StartTrainers(4, 1000, {});
  WaitForStep(*members_[1], 3);
  Kill(*leaves_[1]);
  for (const std::size_t rank : {0U, 1U}) ExpectError(*members_[rank], HasSubstr("ranks 2 to 3"));
  for (const std::size_t rank : {2U, 3U}) ExpectError(*members_[rank], HasSubstr("GW"));
}

// ---- Lost leaves, and members behind them

// The root waits for the successors of lost members.
class LeafLoss : public LeafRecovery {
 protected:
  void Start(std::size_t roots, int world_size, const std::vector<std::string>& more,
             const std::string& on_loss = "wait", const std::string& grace = "60s") {
    StartRoots(roots, "30s",
               {"--on-member-loss", on_loss, "--member-grace", grace, "--shrink-after", "2s"});
    StartLeaves(2);
    std::vector<std::string> words = {"--trains", "1"};
    words.insert(words.end(), more.begin(), more.end());
    StartTrainers(world_size, 20'000, words);
    WaitForStep(*members_[0], 5);
  }
  // A launcher would start a node's processes again when one of them has ended.
  void StartNodeAgain(std::size_t leaf) {
    for (std::size_t i = 0; i < 2; ++i) {
      std::unique_ptr<Process>& member = members_[2 * leaf + i];
      ASSERT_TRUE(member->Wait(absl::Seconds(30)).has_value()) << member->Log();
      member = StartTrainer(static_cast<int>(2 * leaf + i));
    }
  }
  void ExpectSameModels(int losses) {
    std::string model;
    for (const auto& member : members_) {
      const auto status = member->Wait(absl::Seconds(90));
      ASSERT_TRUE(status.has_value()) << member->Log();
      const std::string log = member->Log();
      EXPECT_EQ(WEXITSTATUS(*status), 0) << log;
      ASSERT_THAT(log, HasSubstr("model "));
      EXPECT_LE(Count(log, "skip"), 2 * losses) << log;
      const std::string own = log.substr(log.find("model "));
      if (model.empty()) model = own;
      EXPECT_EQ(own, model);
    }
  }
};

TEST_F(LeafLoss, ALeafIsReplacedWithItsTrainers) {
  Start(1, 4, {});
  Kill(*leaves_[1]);
  leaves_[1] = StartLeaf(1);
  StartNodeAgain(1);
  ExpectSameModels(1);
  EXPECT_THAT(roots_[0]->Log(), HasSubstr("with ranks 2 to 3 was lost"));
  EXPECT_THAT(members_[0]->Log(), HasSubstr("heal done")) << "behind a leaf that was not lost";
  EXPECT_THAT(members_[3]->Log(), HasSubstr("heal done"));
}

// With it goes its node, as far as the others can see.
TEST_F(LeafLoss, AMemberBehindALeafIsReplacedWithItsNode) {
  Start(1, 4, {"--hook", "power_sgd,start_powerSGD_iter=3"});
  Kill(*members_[0]);
  StartNodeAgain(0);
  ExpectSameModels(1);
  EXPECT_THAT(roots_[0]->Log(), HasSubstr("rank 0 was lost"));
  EXPECT_THAT(members_[1]->Log(), HasSubstr("heal done"));
}

TEST_F(LeafLoss, ATrainerBesideLeavesIsReplaced) {
  Start(1, 5, {});
  Kill(*members_[4]);
  members_[4] = StartTrainer(4);
  ExpectSameModels(1);
  EXPECT_THAT(members_[0]->Log(), HasSubstr("heal done"));
}

TEST_F(LeafLoss, ALeafIsReplacedThatWasLostWithTheRoot) {
  Start(1, 4, {"--hook", "power_sgd,start_powerSGD_iter=3"});
  Kill(*leaves_[0]);
  KillRoot(0);
  leaves_[0] = StartLeaf(0);
  // A member reports first, or the next root knows nothing of the session.
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (Count(roots_[0]->Log(), "ranks 2 to 3 joined") == 0) {
    ASSERT_LT(absl::Now(), deadline) << roots_[0]->Log();
    absl::SleepFor(absl::Milliseconds(5));
  }
  StartNodeAgain(0);
  ExpectSameModels(2);
}

TEST_F(LeafLoss, ALeafIsReplacedInASessionOfTwoRoots) {
  Start(2, 4, {});
  Kill(*members_[3]);
  StartNodeAgain(1);
  WaitForStep(*members_[3], 5);
  Kill(*leaves_[0]);
  leaves_[0] = StartLeaf(0);
  StartNodeAgain(0);
  ExpectSameModels(2);
}

// ---- Without them

// Two leaves of two members each, and two trainers, whose gradients weigh less.
class LeafShrink : public LeafLoss {
 protected:
  void StartSix(const std::vector<std::string>& more = {"--checks-mean", "1"},
                const std::string& grace = "60s") {
    Start(1, 6, more, "shrink", grace);
  }
  // Its trainers end with it.
  void LoseLeaf(std::size_t leaf) {
    Kill(*leaves_[leaf]);
    for (const std::size_t rank : {2 * leaf, 2 * leaf + 1}) {
      ASSERT_TRUE(members_[rank]->Wait(absl::Seconds(30)).has_value()) << members_[rank]->Log();
    }
  }
  void EraseMembers(std::size_t first, std::size_t count) {
    const auto from = members_.begin() + static_cast<std::ptrdiff_t>(first);
    members_.erase(from, from + static_cast<std::ptrdiff_t>(count));
  }
};

TEST_F(LeafShrink, TheOthersGoOnWithoutALeaf) {
  StartSix();
  LoseLeaf(1);
  EraseMembers(2, 2);
  ExpectSameModels(1);
  EXPECT_THAT(roots_[0]->Log(), HasSubstr("the session goes on with 4 members"));
}

TEST_F(LeafShrink, TheOthersGoOnWithoutATrainerBesideLeaves) {
  StartSix({"--hook", "power_sgd,start_powerSGD_iter=3"});
  Kill(*members_[5]);
  EraseMembers(5, 1);
  ExpectSameModels(1);
  EXPECT_THAT(roots_[0]->Log(), HasSubstr("the session goes on with 5 members"));
}

// Its members hear from it who is there, and get the model.
TEST_F(LeafShrink, ALeafThatComesLaterIsTakenIn) {
  StartSix();
  LoseLeaf(0);
  WaitForStep(*members_[4], 25);
  leaves_[0] = StartLeaf(0);
  StartNodeAgain(0);
  ExpectSameModels(2);
  for (const std::size_t rank : {0U, 2U, 4U}) {
    EXPECT_THAT(members_[rank]->Log(), HasSubstr("heal done")) << rank;
  }
  EXPECT_THAT(roots_[0]->Log(), HasSubstr("a process has come for ranks 0, 1"));
}

TEST_F(LeafShrink, ALeafMayBeLostWithTheRoot) {
  StartSix();
  Kill(*leaves_[1]);
  KillRoot(0);
  EraseMembers(2, 2);
  ExpectSameModels(2);
}

// A leaf with two members is no majority of six.
TEST_F(LeafShrink, AMinorityDoesNotGoOn) {
  StartSix({}, "4s");
  Kill(*leaves_[1]);
  Kill(*members_[4]);
  Kill(*members_[5]);
  for (const std::size_t rank : {0U, 1U}) ExpectError(*members_[rank], HasSubstr("to join"));
  EXPECT_THAT(roots_[0]->Log(), Not(HasSubstr("the session goes on with")));
}

}  // namespace
}  // namespace gradwire
