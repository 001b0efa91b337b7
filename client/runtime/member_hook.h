// A member's hook, and the device that it computes on.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/group/node_communicator.h"
#include "gradwire/client.h"
#include "hooks/cuda/library.h"
#include "hooks/device.h"

namespace gradwire::client {

struct MemberHook {
  std::optional<CudaLibrary> cuda;  // null: the device is the host
  std::shared_ptr<Device> device;
  std::unique_ptr<Hook> hook;
  // The name that the members of its node group have in common. Empty: it is in none.
  std::string node_group;
  std::shared_ptr<NodeCommunicators> communicators;  // null without a node group
};

// The hook and the device of these options. An error names the device and says what is missing.
absl::StatusOr<MemberHook> MakeMemberHook(const ClientOptions& options);

}  // namespace gradwire::client
