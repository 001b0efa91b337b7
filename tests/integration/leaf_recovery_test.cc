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

// Nodes of two members each, with a leaf daemon, and perhaps trainers at the root.
class LeafRecovery : public Recovery {
 protected:
  void StartRoots(std::size_t count, const std::string& grace = "30s") {
    for (std::size_t i = 0; i < count; ++i) {
      roots_.push_back(StartDaemon("127.0.0.1:0", "resume", grace));
      addresses_.push_back(AddressOf(*roots_.back()));
    }
  }
  void StartLeaves(int count) {
    const std::string upstream = absl::StrJoin(addresses_, ",");
    for (int i = 0; i < count; ++i) {
      leaves_.push_back(StartDaemon(absl::StrCat("unix:", folder_ / absl::StrCat("leaf", i)),
                                    "fail", "30s", {"--upstream", upstream}));
    }
  }
  void StartTrainers(int world_size, int elements, const std::vector<std::string>& more) {
    std::vector<std::string> behind_leaf = more;
    behind_leaf.insert(behind_leaf.end(), {"--node", "2"});
    for (int rank = 0; rank < world_size; ++rank) {
      const auto leaf = static_cast<std::size_t>(rank) / 2;
      members_.push_back(
          leaf < leaves_.size()
              ? StartMember(AddressOf(*leaves_[leaf]), elements, rank, world_size, behind_leaf)
              : StartMember(absl::StrJoin(addresses_, ","), elements, rank, world_size, more));
    }
  }
  void LoseRoot(std::size_t root, int at_step) {
    WaitForStep(*members_[1], at_step);
    Kill(*roots_[root]);
    roots_[root] = StartDaemon(addresses_[root], "resume");
  }

  std::vector<std::unique_ptr<Process>> roots_;
  std::vector<std::string> addresses_;  // of the roots
  std::vector<std::unique_ptr<Process>> leaves_;
  std::vector<std::unique_ptr<Process>> members_;
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

}  // namespace
}  // namespace gradwire
