#include "client/runtime/member_hook.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
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
  return member;
}

}  // namespace gradwire::client
