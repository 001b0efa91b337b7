// Node groups whose daemon is killed, and whose members are lost, under the training. The daemon is
// a process; members are threads, and groups meet in the host's memory.
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/client.h"
#include "tests/conformance/grouped_memory.h"
#include "tests/integration/recovery_sessions.h"
#include "tests/testing/gradients.h"

namespace gradwire {
namespace {

constexpr std::int64_t kLast = 40;  // steps
constexpr std::size_t kElements = 64 * 64;

const std::vector<ParameterSpec> kModel = {
    {.name = "w0", .shape = {64, 64}, .dtype = DType::kFloat32},
    {.name = "w1", .shape = {64, 64}, .dtype = DType::kFloat32},
    {.name = "w2", .shape = {64, 64}, .dtype = DType::kFloat32},
    {.name = "w3", .shape = {64, 64}, .dtype = DType::kFloat32}};

// What a member has seen.
struct Seen {
  absl::Status status;
  std::map<std::int64_t, std::vector<float>> applied{};  // by step
  std::map<std::int64_t, std::vector<int>> members{};    // whose mean that is
  std::set<std::int64_t> skipped{};
  std::vector<double> model = std::vector<double>(kModel.size() * kElements);
};

class GroupRecovery : public Recovery {
 protected:
  struct Job {
    std::string address;
    conformance::Grouping groups;
    std::string hook = "no";
    std::set<std::int64_t> spoiled{};  // steps in which a gradient is not finite
    std::set<int> dies{};              // ranks
    bool come_again = true;
  };

  // `dies_in`: leaves this step without a word.
  Seen Train(const Job& job, int rank, const std::string& group, std::int64_t dies_in = -1) {
    Seen seen;
    auto client = conformance::JoinGroup({.address = job.address,
                                          .session = "s",
                                          .rank = rank,
                                          .world_size = static_cast<int>(job.groups.size()),
                                          .parameters = kModel,
                                          .hook = *HookSpec::Parse(job.hook)},
                                         group, place_);
    seen.status = client.status();
    while (seen.status.ok() && (*client)->step() < kLast) {
      if ((*client)->step() == dies_in) {
        // The others wait for what it would have done.
        std::vector<float> values(2 * kElements);
        GradBucket half = *GradBucket::Make(0, {DType::kFloat32, values.data(), values.size()},
                                            {kModel[0], kModel[1]});
        const Completion reduced = (*client)->AllReduce(half);
        client->reset();
        return seen;
      }
      seen.status = Step(job, rank, **client, seen);
      if (rank == 0) steps_.fetch_add(1);
    }
    if (seen.status.ok()) seen.status = (*client)->Leave();
    return seen;
  }

  static absl::Status Step(const Job& job, int rank, Client& client, Seen& seen) {
    const std::int64_t step = client.step();
    if (const auto change = client.membership_change(); change && !change->newcomers.empty()) {
      absl::Status healed =
          client.Broadcast(change->root, seen.model.data(), seen.model.size() * sizeof(double));
      if (!healed.ok()) return healed;
    }
    std::vector<float> values(kModel.size() * kElements);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(testing::GradientValue(rank, step, i));
    }
    if (rank == 0 && job.spoiled.contains(step)) values[0] = std::nanf("");
    std::vector<GradBucket> buckets;
    for (std::size_t b = 0; b < 2; ++b) {
      buckets.push_back(*GradBucket::Make(
          static_cast<int>(b), {DType::kFloat32, values.data() + 2 * b * kElements, 2 * kElements},
          {kModel[2 * b], kModel[2 * b + 1]}));
    }
    std::vector<Completion> reduced;
    for (GradBucket& bucket : buckets) reduced.push_back(client.AllReduce(bucket));
    for (const Completion& one : reduced) {
      if (absl::Status status = one.Wait(); !status.ok()) return status;
    }
    const auto verdict = client.EndStep();
    if (!verdict.ok()) return verdict.status();
    if (*verdict == Verdict::kSkip) {
      seen.skipped.insert(step);
      return absl::OkStatus();
    }
    for (std::size_t i = 0; i < values.size(); ++i) seen.model[i] += double{values[i]};
    seen.applied[step] = std::move(values);
    seen.members[step] = client.members();
    return absl::OkStatus();
  }

  // Runs the members, and `meanwhile` beside them.
  std::vector<Seen> Run(
      const Job& job, const std::function<void()>& meanwhile = [] {}) {
    steps_ = 0;
    std::vector<Seen> seen(job.groups.size());
    std::vector<std::thread> members;
    for (std::size_t r = 0; r < seen.size(); ++r) {
      members.emplace_back([&, r] {
        const int rank = static_cast<int>(r);
        const bool dies = job.dies.contains(rank);
        seen[r] = Train(job, rank, job.groups[r], dies ? 10 : -1);
        if (!dies) return;
        lost_ = true;
        if (!job.come_again) return;
        if (strayed_.empty()) {
          seen[r] = Train(job, rank, job.groups[r]);
          return;
        }
        stray_ = Train(job, rank, strayed_);
        seen[r] = Train(job, rank, job.groups[r]);
      });
    }
    meanwhile();
    for (std::thread& member : members) member.join();
    for (const Seen& one : seen) EXPECT_EQ(one.status, absl::OkStatus());
    for (std::size_t r = 0; r < seen.size(); ++r) {
      const Seen& one = seen[r];
      const bool is_gone = !job.come_again && job.dies.contains(static_cast<int>(r));
      EXPECT_TRUE(is_gone || one.model == seen[0].model) << r;
      for (const auto& [step, values] : one.applied) {
        EXPECT_TRUE(seen[0].applied.contains(step) && seen[0].applied[step] == values) << step;
      }
    }
    return seen;
  }

  // Each step has the mean of those who are there. Returns how many steps had that of all.
  static std::size_t CheckMeans(const Seen& seen, std::size_t world_size) {
    std::size_t of_all = 0;
    for (const auto& [step, values] : seen.applied) {
      const std::vector<int>& members = seen.members.at(step);
      if (members.size() == world_size) ++of_all;
      for (std::size_t i = 0; i < values.size(); i += 97) {
        double sum = 0;
        for (const int rank : members) {
          sum += static_cast<float>(testing::GradientValue(rank, step, i));
        }
        EXPECT_NEAR(values[i], sum / static_cast<double>(members.size()), 1e-6) << step;
      }
    }
    return of_all;
  }

  void GoOnWithout(const std::set<int>& lost, const std::string& hook) {
    const auto daemon = StartDaemon("127.0.0.1:0", "resume", "30s", {"--on-member-loss", "shrink"});
    const auto seen = Run({.address = AddressOf(*daemon),
                           .groups = {"a", "a", "a", "b", "b"},
                           .hook = hook,
                           .dies = lost,
                           .come_again = false});
    EXPECT_EQ(seen[0].members.rbegin()->second.size(), 5 - lost.size());
    EXPECT_LE(seen[0].skipped.size(), 2 * lost.size());
    EXPECT_TRUE(hook != "no" || CheckMeans(seen[0], 5) >= 10U);
  }

  void WaitForSteps(int steps) const {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (steps_ < steps) {
      ASSERT_LT(absl::Now(), deadline) << steps_ << " steps";
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

  // Three daemons are killed; then all is as in a run that skips the same steps.
  void TrainThroughKills(const std::string& hook, const conformance::Grouping& groups) {
    auto daemon = StartDaemon("127.0.0.1:0", "resume");
    const std::string address = AddressOf(*daemon);
    const auto seen = Run({.address = address, .groups = groups, .hook = hook}, [&] {
      for (int lost = 0; lost < 3; ++lost) {
        WaitForSteps(6 + 10 * lost);
        Kill(*daemon);
        daemon = StartDaemon(address, "resume");
      }
    });
    EXPECT_LE(seen[0].skipped.size(), 3U);
    for (const Seen& one : seen) EXPECT_EQ(one.skipped, seen[0].skipped);
    const auto calm = StartDaemon("127.0.0.1:0", "fail");
    const auto reference = Run(
        {.address = AddressOf(*calm), .groups = groups, .hook = hook, .spoiled = seen[0].skipped},
        [] {});
    EXPECT_EQ(reference[0].skipped, seen[0].skipped);
    EXPECT_TRUE(reference[0].applied == seen[0].applied) << hook;
  }

  testing::HostMeetingPlace place_;
  std::atomic<int> steps_ = 0;  // of rank 0
  std::atomic<bool> lost_ = false;
  std::string strayed_;  // the group of a process that comes first for a lost rank
  std::optional<Seen> stray_;
};

TEST_F(GroupRecovery, GroupsGoOnWithTheNextDaemon) {
  TrainThroughKills("no", {"a", "a", "b", "b"});
  TrainThroughKills("fp16", {"a", "a", ""});
}

// Each member has the factors of its shares only.
TEST_F(GroupRecovery, MembersBringPowerSgdsStateByTheirShares) {
  for (const char* hook :
       {"power_sgd,start_powerSGD_iter=2,matrix_approximation_rank=2",
        "power_sgd,start_powerSGD_iter=2,matrix_approximation_rank=2,warm_start=false",
        "power_sgd,start_powerSGD_iter=2,matrix_approximation_rank=2,rounds=1",
        "batched_power_sgd,start_powerSGD_iter=2,matrix_approximation_rank=2"}) {
    TrainThroughKills(hook, {"a", "a", "b", "b"});
  }
  TrainThroughKills("power_sgd,start_powerSGD_iter=2,matrix_approximation_rank=2",
                    {"a", "a", "a", "b", "b", ""});
}

TEST_F(GroupRecovery, ALostMemberIsReplacedOnItsNode) {
  for (const char* hook : {"no", "power_sgd,start_powerSGD_iter=2,matrix_approximation_rank=2"}) {
    const auto daemon = StartDaemon("127.0.0.1:0", "resume", "30s", {"--on-member-loss", "wait"});
    const auto seen = Run(
        {.address = AddressOf(*daemon), .groups = {"a", "a", "b", "b"}, .hook = hook, .dies = {1}});
    EXPECT_TRUE(lost_);
    EXPECT_GE(seen[0].skipped.size(), 1U);
    EXPECT_LE(seen[0].skipped.size(), 2U);
    EXPECT_FALSE(seen[1].applied.empty());
    EXPECT_THAT(daemon->Log(), HasSubstr("rank 1 is new, without the model"));
  }
}

// The others go on in smaller groups: of three in "a" two are left.
TEST_F(GroupRecovery, TheOthersGoOnWithoutALostMember) {
  for (const char* hook : {"no", "power_sgd,start_powerSGD_iter=2,matrix_approximation_rank=2",
                           "batched_power_sgd,start_powerSGD_iter=2,matrix_approximation_rank=2"}) {
    GoOnWithout({1}, hook);
  }
}

TEST_F(GroupRecovery, TheOthersGoOnWithoutANode) { GoOnWithout({3, 4}, "no"); }

// It has its share again, which another one has had meanwhile; and the daemon is lost, too.
TEST_F(GroupRecovery, ALostMemberComesBackToThoseWhoWentOn) {
  for (const char* hook : {"no", "power_sgd,start_powerSGD_iter=2,matrix_approximation_rank=2"}) {
    auto daemon = StartDaemon("127.0.0.1:0", "resume", "30s", {"--on-member-loss", "shrink"});
    const std::string address = AddressOf(*daemon);
    const auto seen =
        Run({.address = address, .groups = {"a", "a", "b", "b"}, .hook = hook, .dies = {1}}, [&] {
          WaitForSteps(30);
          Kill(*daemon);
          daemon = StartDaemon(address, "resume", "30s", {"--on-member-loss", "shrink"});
        });
    EXPECT_THAT(seen[0].members.rbegin()->second, ::testing::SizeIs(4));
    EXPECT_FALSE(seen[1].applied.empty());
    EXPECT_TRUE(std::string(hook) != "no" || CheckMeans(seen[0], 4) >= 20U);
  }
}

// Its process runs on another node: it is refused, and the next one is taken.
TEST_F(GroupRecovery, AProcessOfAnotherNodeIsRefused) {
  const auto daemon = StartDaemon("127.0.0.1:0", "resume", "30s", {"--on-member-loss", "wait"});
  strayed_ = "b";
  Run({.address = AddressOf(*daemon), .groups = {"a", "a", "b", "b"}, .dies = {1}});
  ASSERT_TRUE(stray_.has_value());
  EXPECT_THAT(std::string(stray_->status.message()),
              HasSubstr("has lost rank 1, which was in the node group of ranks 0, 1; this process "
                        "is in that of ranks 1, 2, 3"));
}

}  // namespace
}  // namespace gradwire
