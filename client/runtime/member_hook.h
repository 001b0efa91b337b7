// A member's hook, and the device that it computes on.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/group/node_communicator.h"
#include "gradwire/client.h"
#include "hooks/cuda/library.h"
#include "hooks/device.h"
#include "hooks/ledger_hook.h"

namespace gradwire::client {

struct MemberHook {
  std::optional<CudaLibrary> cuda;  // null: the device is the host
  std::shared_ptr<Device> device;
  std::unique_ptr<Hook> hook;
  bool residuals_at_leaf = false;
  LedgerHook* ledger = nullptr;  // `hook`, if it keeps the member's account
  // The name that the members of its node group have in common. Empty: it is in none.
  std::string node_group;
  std::shared_ptr<NodeCommunicators> communicators;  // null without a node group
};

// The daemon is a leaf, which runs the hook: this member sends its gradients as they are, with the
// hook "no" ("noop" stays). Notes whether its own would have kept residuals.
absl::Status GiveHookToLeaf(ClientOptions& options, MemberHook& member);

// The session has a ledger of so many rows, or none: the hook keeps the member's account, if it
// computes on the host. Members with other hooks send none.
void KeepAccount(std::size_t rows, const ClientOptions& options, MemberHook& member);

// The hook and the device of these options. An error names the device and says what is missing.
absl::StatusOr<MemberHook> MakeMemberHook(const ClientOptions& options);

}  // namespace gradwire::client
