// A whole session in one loop: the members' hooks, the coordinator's, and the reduction between
// them. No chunks, frames, threads or processes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/hooks/hook.h"
#include "gradwire/hooks/hook_spec.h"
#include "hooks/coordinator_hook.h"
#include "hooks/cpu/host_device.h"
#include "hooks/device_vector.h"

namespace gradwire::testing {

// For each parameter of the manifest, the bytes of its gradient.
using MemberGradients = std::vector<std::vector<std::byte>>;
// Positions in the manifest, bucket by bucket.
using Buckets = std::vector<std::vector<std::size_t>>;

// Makes the device that one member's gradients lie on.
using DeviceFactory = std::function<std::shared_ptr<Device>()>;

class HookWorld {
 public:
  static absl::StatusOr<std::unique_ptr<HookWorld>> Make(
      int world_size, const HookSpec& spec, std::vector<ParameterSpec> manifest,
      const DeviceFactory& make_device = MakeHostDevice);

  // One step; `gradients`, by rank, become what the members are left with. `fails`: the step is
  // given up at the end, as if a member had died; no verdict reaches the hooks.
  absl::StatusOr<Verdict> RunStep(std::vector<MemberGradients>& gradients, const Buckets& buckets,
                                  bool fails = false);

  const std::vector<ParameterSpec>& manifest() const { return manifest_; }
  Hook& hook(std::size_t rank) { return *hooks_[rank]; }
  CoordinatorHook& coordinator() { return *coordinator_; }
  // Puts a hook around each member's. Before the first step.
  void Wrap(const std::function<std::unique_ptr<Hook>(std::unique_ptr<Hook>)>& wrap) {
    for (auto& hook : hooks_) hook = wrap(std::move(hook));
  }
  std::size_t world_size() const { return hooks_.size(); }

  // The coordinator's state as a file has it, and its replacement by another one; the members are
  // not told (see Reset).
  HookState Export() const { return *coordinator_->Snapshot()->State(); }
  absl::Status Import(const HookState& state);
  std::vector<ParameterReport> Report() const { return coordinator_->Snapshot()->Report(); }

  // As after a StateReset: the members are given the coordinator's state anew.
  void Reset();

  // The coordinator is gone with all that it knew. A fresh one takes its state from the member's
  // copy, and from what was its own after the last step.
  absl::Status LoseCoordinator(std::size_t rank);
  // The member is gone with its residuals; another one begins in its place.
  absl::Status ReplaceMember(std::size_t rank);

  // From now on this member's gradients lie apart, with elements between them that no hook may
  // touch.
  void Scatter(std::size_t rank) { scattered_[rank] = true; }

  // What rank 0's runs measured in the last step, by bucket.
  const std::vector<std::optional<BucketNorms>>& norms() const { return norms_; }

  // Bytes of all contributions of one member so far.
  std::size_t contributed() const { return contributed_; }

 private:
  struct OpenBucket;

  HookWorld(const HookSpec& spec, std::vector<ParameterSpec> manifest,
            std::vector<std::shared_ptr<Device>> devices, std::vector<std::unique_ptr<Hook>> hooks,
            std::unique_ptr<CoordinatorHook> coordinator);

  absl::Status Open(const std::vector<MemberGradients>& gradients,
                    const std::vector<std::size_t>& positions, OpenBucket& open);
  // One member's bucket, in memory of its device.
  absl::StatusOr<GradBucket> MakeBucket(std::size_t rank, const OpenBucket& open,
                                        const MemberGradients& gradients,
                                        DeviceVector<std::byte>& memory);
  absl::Status GiveSharedState(OpenBucket& open);
  absl::StatusOr<bool> RunRound(OpenBucket& open, std::uint32_t round, bool& finite);
  // What the member's hook encodes, or writes for it to decode, by way of its device.
  absl::Status Encode(std::size_t rank, HookRun& run, ElementRange range, std::span<std::byte> out);
  absl::Status Decode(std::size_t rank, HookRun& run, ElementRange range,
                      std::span<const std::byte> in);
  absl::Status CopyBack(const OpenBucket& open, std::vector<MemberGradients>& gradients);

  const HookSpec spec_;
  const std::vector<ParameterSpec> manifest_;
  const std::vector<std::shared_ptr<Device>> devices_;  // by rank
  std::vector<DeviceVector<std::byte>> staging_;        // by rank
  std::vector<bool> scattered_;                         // by rank
  std::vector<std::unique_ptr<Hook>> hooks_;
  std::unique_ptr<CoordinatorHook> coordinator_;
  HookState own_;  // of the coordinator's, after the last step
  std::uint64_t own_version_ = 0;
  std::vector<std::uint64_t> versions_;  // of the shared state that members have, by parameter
  std::vector<std::optional<BucketNorms>> norms_;
  std::size_t contributed_ = 0;
  std::int64_t step_ = 0;
};

}  // namespace gradwire::testing
