// Leaf daemons with a root, all in the test's process, and members that are threads.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "tests/testing/gradients.h"
#include "tests/testing/ranks.h"
#include "tests/testing/test_daemon.h"

namespace gradwire::testing {

inline std::vector<ParameterSpec> Model() {
  return {{"w", {40, 60}, DType::kFloat32},
          {"v", {900, 41}, DType::kFloat32},
          MakeParameter("b", 7),
          MakeParameter("none", 0)};
}

inline server::ServerOptions LeafOf(const std::string& upstream) {
  server::ServerOptions options;
  options.upstream = upstream;
  return options;
}

// Nodes of two members each, with a leaf, and perhaps trainers at the root.
class LeavesTest : public ::testing::Test {
 protected:
  void StartLeaves(int count, std::size_t roots = 1) { StartLeaves(count, roots, {}, {}); }
  void StartLeaves(int count, std::size_t roots, const server::ServerOptions& root,
                   server::ServerOptions leaf) {
    for (std::size_t i = 0; i < roots; ++i) roots_.push_back(std::make_unique<TestDaemon>(root));
    if (leaf.upstream.empty()) leaf.upstream = RootAddress();
    for (int i = 0; i < count; ++i) leaves_.push_back(std::make_unique<TestDaemon>(leaf));
  }
  std::string RootAddress() const {
    return absl::StrJoin(roots_, ",", [](std::string* out, const auto& daemon) {
      absl::StrAppend(out, daemon->address());
    });
  }
  ClientOptions Options(int world_size, const std::string& hook = "no") const {
    return {.session = "leaves",
            .world_size = world_size,
            .parameters = Model(),
            .hook = *HookSpec::Parse(hook),
            .join_timeout = absl::Seconds(10),
            .step_timeout = absl::Seconds(10)};
  }
  // Ranks in pairs behind the leaves; the others at the root.
  void Place(ClientOptions& options, int rank) const {
    const auto leaf = static_cast<std::size_t>(rank) / 2;
    if (leaf >= leaves_.size()) {
      options.address = RootAddress();
      return;
    }
    options.address = leaves_[leaf]->address();
    options.local_rank = rank % 2;
    options.local_world_size = 2;
  }
  std::vector<absl::Status> Run(const ClientOptions& options,
                                const std::function<absl::Status(Client&, int)>& member) const {
    return RunRanks(options, member, [this](ClientOptions& own, int rank) { Place(own, rank); });
  }

  std::vector<std::unique_ptr<TestDaemon>> roots_;
  std::vector<std::unique_ptr<TestDaemon>> leaves_;
};

// A bucket for each parameter, in memory that a daemon on this host may share.
class Training {
 public:
  explicit Training(Client& client)
      : client_(client), memory_(client.AllocateGradients(Gradients(Model()).bytes().size())) {}

  absl::Status Step(const std::vector<std::byte>& gradients, Verdict expected = Verdict::kApply) {
    std::memcpy(memory_.get(), gradients.data(), gradients.size());
    std::vector<Completion> reduced;
    std::size_t at = 0;
    for (const ParameterSpec& parameter : Model()) {
      const TensorView view{.data = memory_.get() + at, .numel = parameter.numel()};
      at += view.bytes();
      auto bucket = GradBucket::Make(static_cast<int>(reduced.size()), view, {parameter});
      if (!bucket.ok()) return bucket.status();
      reduced.push_back(client_.AllReduce(*bucket));
    }
    for (const Completion& one : reduced) {
      if (absl::Status status = one.Wait(); !status.ok()) return status;
    }
    const absl::StatusOr<Verdict> verdict = client_.EndStep();
    if (!verdict.ok()) return verdict.status();
    EXPECT_EQ(*verdict, expected);
    result_.assign(memory_.get(), memory_.get() + gradients.size());
    return absl::OkStatus();
  }
  absl::Status Step(int rank, int step, Verdict expected = Verdict::kApply) {
    Gradients gradients(Model());
    gradients.Fill(rank, step);
    return Step(gradients.bytes(), expected);
  }
  const std::vector<std::byte>& result() const { return result_; }
  float result(std::size_t i) const {
    float value = 0;
    std::memcpy(&value, result_.data() + i * sizeof value, sizeof value);
    return value;
  }

 private:
  Client& client_;
  const std::shared_ptr<std::byte> memory_;
  std::vector<std::byte> result_;
};

}  // namespace gradwire::testing
