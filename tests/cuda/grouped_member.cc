// A member of a node group as a process, with an emulated GPU of its own and the stand-in for NCCL.
// Checks every result against a sum of its own.
//
//   grouped_member ADDRESS SESSION RANK WORLD_SIZE GROUP_SIZE STEPS [NEXT_SESSION]
//
// With NEXT_SESSION it joins that one, at the same place, if the first one fails.
// Ranks are grouped in order: the first GROUP_SIZE of them are one group, and so on. Prints
// "step N begins" and "step N right" or "step N skipped", or an error, with which it ends.
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/client.h"
#include "tests/cuda/gpu_memory.h"
#include "tests/testing/gradients.h"

namespace gradwire::testing {
namespace {

const std::vector<ParameterSpec> kModel = {MakeParameter("a", 1000), MakeParameter("b", 301),
                                           MakeParameter("c", 7), MakeParameter("d", 700)};
// Positions in the model.
const std::vector<std::vector<std::size_t>> kBuckets = {{3, 2}, {1, 0}};

struct Place {
  int rank = 0;
  int world_size = 1;
  int group_size = 1;
};

// The gradients that a rank has in a step.
float Gradient(int rank, std::int64_t step, std::size_t parameter, std::size_t i) {
  return static_cast<float>(GradientValue(rank, step, 10'000 * parameter + i));
}

// What all `members` get.
float Expected(const std::vector<int>& members, int group_size, std::int64_t step,
               std::size_t parameter, std::size_t i) {
  std::map<int, double> sums;  // by group
  for (const int rank : members) {
    sums[rank / group_size] += double{Gradient(rank, step, parameter, i)};
  }
  const auto groups = static_cast<double>(sums.size());
  double result = 0;
  for (const auto& [group, sum] : sums) {
    const auto mean = static_cast<float>(sum / (static_cast<double>(members.size()) / groups));
    result += double{mean / static_cast<float>(groups)};
  }
  return static_cast<float>(result);
}

absl::StatusOr<Verdict> RunStep(Client& client, GpuMemory& memory, const Place& place,
                                std::int64_t step) {
  std::vector<void*> there;
  std::vector<std::unique_ptr<GradBucket>> open;
  std::vector<Completion> completions;
  for (const std::vector<std::size_t>& parameters : kBuckets) {
    std::vector<float> values;
    std::vector<ParameterSpec> specs;
    for (const std::size_t p : parameters) {
      specs.push_back(kModel[p]);
      for (std::size_t i = 0; i < kModel[p].numel(); ++i) {
        values.push_back(Gradient(place.rank, step, p, i));
      }
    }
    there.push_back(memory.Put(std::as_bytes(std::span(values))));
    auto bucket =
        GradBucket::Make(0, {DType::kFloat32, there.back(), values.size(), memory.device()}, specs);
    if (!bucket.ok()) return bucket.status();
    open.push_back(std::make_unique<GradBucket>(*std::move(bucket)));
    completions.push_back(client.AllReduce(*open.back(), memory.stream()));
  }
  for (const Completion& completion : completions) {
    if (absl::Status status = completion.Wait(); !status.ok()) return status;
  }
  const absl::StatusOr<Verdict> verdict = client.EndStep();
  const std::vector<int> members = client.members();
  for (std::size_t b = 0;
       b < kBuckets.size() && verdict.value_or(Verdict::kSkip) == Verdict::kApply; ++b) {
    std::vector<float> values(open[b]->buffer().numel);
    memory.Get(there[b], std::as_writable_bytes(std::span(values)));
    auto value = values.begin();
    for (const std::size_t p : kBuckets[b]) {
      for (std::size_t i = 0; i < kModel[p].numel(); ++i, ++value) {
        const float expected = Expected(members, place.group_size, step, p, i);
        if (*value == expected) continue;
        return absl::DataLossError(absl::StrCat("element ", i, " of ", kModel[p].name, " is ",
                                                *value, "; expected ", expected));
      }
    }
  }
  memory.Clear();
  return verdict;
}

// There is no model to be given.
absl::Status Heal(Client& client) {
  const auto change = client.membership_change();
  if (!change || change->newcomers.empty()) return absl::OkStatus();
  char nothing = 0;
  const absl::Status healed = client.Broadcast(change->root, &nothing, 1);
  return absl::IsAborted(healed) ? absl::OkStatus() : healed;  // void: somebody was lost
}

absl::Status Run(const std::vector<std::string>& words, const std::string& session) {
  const Place place{.rank = std::stoi(words[3]),
                    .world_size = std::stoi(words[4]),
                    .group_size = std::stoi(words[5])};
  auto client = Client::Join({.address = words[1],
                              .session = session,
                              .rank = place.rank,
                              .world_size = place.world_size,
                              .parameters = kModel,
                              .device = {DeviceKind::kCuda, 0},
                              .cuda_library = EMULATED,
                              .nccl_library = STAND_IN,
                              .node_group = absl::StrCat("g", place.rank / place.group_size),
                              .step_timeout = absl::Seconds(60)});
  if (!client.ok()) return client.status();
  GpuMemory memory;
  while ((*client)->step() < std::stoi(words[6])) {
    if (absl::Status healed = Heal(**client); !healed.ok()) return healed;
    const std::int64_t step = (*client)->step();
    std::cout << "step " << step << " begins" << std::endl;
    const absl::StatusOr<Verdict> verdict = RunStep(**client, memory, place, step);
    if (!verdict.ok()) return verdict.status();
    std::cout << "step " << step << (*verdict == Verdict::kApply ? " right" : " skipped") << " of "
              << (*client)->members().size() << std::endl;
  }
  return (*client)->Leave();
}

}  // namespace
}  // namespace gradwire::testing

int main(int argc, char** argv) {
  if (argc != 7 && argc != 8) return EXIT_FAILURE;
  const std::vector<std::string> words(argv, argv + argc);
  absl::Status status = gradwire::testing::Run(words, words[2]);
  if (!status.ok() && argc == 8) {
    std::cout << status.ToString() << std::endl;
    unsetenv("GRADWIRE_STAND_IN_NCCL");  // the stand-in's faults are those of the first session
    status = gradwire::testing::Run(words, words[7]);
  }
  std::cout << (status.ok() ? "left" : status.ToString()) << std::endl;
  return status.ok() ? EXIT_SUCCESS : EXIT_FAILURE;
}
