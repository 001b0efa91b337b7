#include "client/runtime/member_hook.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/group/nccl.h"
#include "client/group/this_node.h"
#include "client/options.h"
#include "hooks/cpu/host_device.h"
#include "hooks/device_hooks.h"

namespace gradwire::client {
namespace {

// For one transfer that the hook waits for: a GPU that is not hung takes far less.
constexpr std::chrono::seconds kDeviceWait(30);

absl::Status Open(const ClientOptions& options, MemberHook& member) {
  if (options.device.kind == DeviceKind::kCpu) {
    member.device = MakeHostDevice();
    return absl::OkStatus();
  }
  absl::StatusOr<CudaLibrary> library = options.cuda_library.empty()
                                            ? CudaLibrary::Global()
                                            : CudaLibrary::Open(options.cuda_library);
  if (!library.ok()) return library.status();
  auto device = library->MakeDevice(options.device.index, kDeviceWait);
  if (!device.ok()) return device.status();
  member.cuda = *std::move(library);
  member.device = *std::move(device);
  return absl::OkStatus();
}

// A hook that leaves gradients as they are needs nobody else's.
absl::Status JoinNodeGroup(const ClientOptions& options, MemberHook& member) {
  const bool wanted = !options.node_group.empty() && options.node_group != "off";
  if (!wanted || options.hook.comm_hook == "noop" || options.device.kind == DeviceKind::kCpu) {
    return absl::OkStatus();
  }
  auto communicators = OpenNccl(options.nccl_library, member.device);
  if (!communicators.ok()) return communicators.status();
  absl::StatusOr<std::string> node = options.node_group;
  if (options.node_group == "auto") node = ThisNode();
  if (!node.ok()) return node.status();
  member.node_group = *std::move(node);
  member.communicators = *std::move(communicators);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<MemberHook> MakeMemberHook(const ClientOptions& options) {
  MemberHook member;
  if (absl::Status open = Open(options, member); !open.ok()) {
    return absl::Status(open.code(),
                        absl::StrCat("device ", Name(options.device), ": ", open.message()));
  }
  auto hook = MakeHook(options.hook, member.device);
  if (!hook.ok()) return hook.status();
  member.hook = *std::move(hook);
  absl::Status grouped = JoinNodeGroup(options, member);
  // "auto" asks for what this machine has.
  if (!grouped.ok() && options.node_group == "auto") {
    SayWait(options.on_wait,
            absl::StrCat("node_group \"auto\": in no node group: ", grouped.message()));
  } else if (!grouped.ok()) {
    return absl::Status(grouped.code(), absl::StrCat("node_group \"", options.node_group,
                                                     "\": ", grouped.message()));
  }
  return member;
}

absl::Status GiveHookToLeaf(ClientOptions& options, MemberHook& member) {
  const bool noop = options.hook.comm_hook == "noop";
  member.residuals_at_leaf = !noop && !options.hook.OnlyCasts();
  options.hook = HookSpec();
  if (noop) options.hook.comm_hook = "noop";
  auto hook = MakeHook(options.hook, member.device);
  if (!hook.ok()) return hook.status();
  member.hook = *std::move(hook);
  return absl::OkStatus();
}

void KeepAccount(std::size_t rows, const ClientOptions& options, MemberHook& member) {
  const bool alike = rows > 0 && rows == LedgerRowsOf(options.parameters.size());
  if (!alike || options.device.kind != DeviceKind::kCpu) return;
  auto hook = std::make_unique<LedgerHook>(std::move(member.hook), options.parameters);
  member.ledger = hook.get();
  member.hook = std::move(hook);
}

}  // namespace gradwire::client
