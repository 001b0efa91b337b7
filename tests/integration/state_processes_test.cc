// A training that is saved, ended and continued by other processes, under another daemon.
#include <sys/wait.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/integration/saved_training.h"
#include "tests/testing/process.h"

namespace gradwire::testing {
namespace {

constexpr int kWorld = 3;

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

class SavedProcesses : public ::testing::TestWithParam<std::string> {
 protected:
  // A daemon and three members from step `begin` to `end`; what they leave behind.
  Trained Train(int begin, int end, const std::string& save, const std::string& load = "") {
    const std::string folder = folder_ / save;
    std::filesystem::create_directory(folder);
    const std::string address = absl::StrCat("unix:", folder, "/daemon.sock");
    const auto daemon = Process::Start(
        {GRADWIRE_DAEMON, "--listen", address, "--log-level", "warning"}, folder + "/daemon.log");
    EXPECT_TRUE(daemon.ok()) << daemon.status();
    std::vector<std::unique_ptr<Process>> members;
    for (int rank = 0; rank < kWorld; ++rank) {
      std::vector<std::string> words = {GRADWIRE_SAVED_MEMBER,
                                        "--address",
                                        address,
                                        "--rank",
                                        std::to_string(rank),
                                        "--world-size",
                                        "3",
                                        "--hook",
                                        GetParam(),
                                        "--begin",
                                        std::to_string(begin),
                                        "--end",
                                        std::to_string(end),
                                        "--save",
                                        folder};
      if (!load.empty()) words.insert(words.end(), {"--load", folder_ / load});
      auto member = Process::Start(words, absl::StrCat(folder, "/log.", rank));
      EXPECT_TRUE(member.ok()) << member.status();
      members.push_back(*std::move(member));
    }
    Trained trained;
    for (int rank = 0; rank < kWorld; ++rank) {
      Process& member = *members[static_cast<std::size_t>(rank)];
      const auto ended = member.Wait(absl::Seconds(60));
      EXPECT_TRUE(ended && WIFEXITED(*ended) && WEXITSTATUS(*ended) == 0) << member.Log();
      trained.results.push_back(Results(Read(absl::StrCat(folder, "/results.", rank))));
      trained.checkpoint.dicts.push_back(Read(absl::StrCat(folder, "/dict.", rank)));
    }
    trained.checkpoint.state = Read(folder + "/state");
    return trained;
  }

 private:
  static std::vector<std::vector<float>> Results(const std::string& bytes) {
    const std::size_t numel = Buckets(Model()).values().size();
    std::vector<std::vector<float>> steps(bytes.size() / (numel * sizeof(float)));
    for (std::size_t i = 0; i < steps.size(); ++i) {
      steps[i].resize(numel);
      std::memcpy(steps[i].data(), bytes.data() + i * numel * sizeof(float), numel * sizeof(float));
    }
    return steps;
  }

  const TemporaryFolder folder_;
};

TEST_P(SavedProcesses, SixtyStepsInTwoHalvesAreSixtySteps) {
  const Trained whole = Train(0, 60, "whole");
  ASSERT_EQ(whole.results[0].size(), 60U);
  const Trained first = Train(0, 30, "first");
  const Trained second = Train(30, 60, "second", "first");
  if (HasFailure()) return;
  ASSERT_EQ(second.results[0].size(), 30U);
  ExpectSameResults(whole.results, second.results, 30);
  ExpectSameCheckpoint(whole.checkpoint, second.checkpoint);
}

INSTANTIATE_TEST_SUITE_P(Hooks, SavedProcesses,
                         ::testing::Values(kPowerSgd, "batched_" + kPowerSgd),
                         [](const auto& hook) {
                           return hook.index == 0 ? std::string("power_sgd")
                                                  : std::string("batched");
                         });

}  // namespace
}  // namespace gradwire::testing
