// Node groups whose members' gradients lie on the emulated GPU, over the stand-in for NCCL.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/grouped_conformance.h"
#include "tests/cuda/emulated_device.h"
#include "tests/cuda/emulation/emulation.h"
#include "tests/cuda/gpu_memory.h"

namespace gradwire::conformance {
namespace {

// Joins through the options that a user has.
class GroupedGpuMemory final : public MemberMemory {
 public:
  explicit GroupedGpuMemory(std::string group) : group_(std::move(group)) {}

  DeviceId device() const override { return gpu_.device(); }
  std::string library() const override { return gpu_.library(); }
  void* stream() override { return gpu_.stream(); }
  void* Put(std::span<const std::byte> bytes) override { return gpu_.Put(bytes); }
  void Get(const void* from, std::span<std::byte> bytes) override { gpu_.Get(from, bytes); }
  void Clear() override { gpu_.Clear(); }
  absl::StatusOr<std::unique_ptr<Client>> Join(const ClientOptions& options) override {
    ClientOptions grouped = options;
    grouped.node_group = group_.empty() ? "off" : group_;
    grouped.nccl_library = STAND_IN;
    return Client::Join(grouped);
  }

 private:
  testing::GpuMemory gpu_;
  const std::string group_;
};

MakeMemory OnGpus(const Grouping& grouping) {
  emulation::Reset();
  return
      [grouping](std::size_t rank) { return std::make_unique<GroupedGpuMemory>(grouping[rank]); };
}

// Members that are in no group may be on the CPU.
MakeMemory OnGpusAndCpus(const Grouping& grouping) {
  emulation::Reset();
  return [grouping](std::size_t rank) -> std::unique_ptr<MemberMemory> {
    if (grouping[rank].empty()) return MakeHostMemory(rank);
    return std::make_unique<GroupedGpuMemory>(grouping[rank]);
  };
}

// Without fp64, which takes an emulated GPU long and the same way as fp32.
std::vector<GroupedCase> Cases(const MakeGroupedMemory& memory, bool low_rank) {
  const auto device = [] { return testing::MakeEmulatedDevice(); };
  std::vector<GroupedCase> cases = GroupedCases(memory, device, low_rank);
  std::erase_if(cases, [](const GroupedCase& one) { return one.dtype == DType::kFloat64; });
  for (GroupedCase& one : cases) one.one_bucket = one.spec.find("sgd") == std::string::npos;
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Gpus, NodeGroups, ::testing::ValuesIn(Cases(OnGpus, true)),
                         GroupedCaseName);
INSTANTIATE_TEST_SUITE_P(GpusAndCpus, NodeGroups, ::testing::ValuesIn(Cases(OnGpusAndCpus, false)),
                         GroupedCaseName);

}  // namespace
}  // namespace gradwire::conformance
