// Members of one or more real daemons as a carrier.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gradwire/client.h"
#include "gradwire/hooks/device_id.h"
#include "server/daemon/options.h"
#include "tests/conformance/hook_conformance.h"

namespace gradwire::conformance {

// Where one member keeps its gradients. Its buffers live as long as it, or until Clear.
class MemberMemory {
 public:
  virtual ~MemberMemory() = default;
  virtual DeviceId device() const = 0;
  virtual std::string library() const { return ""; }
  // What AllReduce is given. Put only enqueues the copy there.
  virtual void* stream() { return nullptr; }
  virtual void* Put(std::span<const std::byte> bytes) = 0;
  virtual void Get(const void* from, std::span<std::byte> bytes) = 0;
  virtual void Clear() = 0;
  // How its member joins.
  virtual absl::StatusOr<std::unique_ptr<Client>> Join(const ClientOptions& options) {
    return Client::Join(options);
  }
};

using MakeMemory = std::function<std::unique_ptr<MemberMemory>(std::size_t rank)>;

std::unique_ptr<MemberMemory> MakeHostMemory(std::size_t rank);

absl::StatusOr<std::unique_ptr<Carrier>> MakeDaemonCarrier(
    int world_size, const HookSpec& spec, const std::vector<ParameterSpec>& parameters,
    const MakeMemory& make_memory = MakeHostMemory, const server::ServerOptions& options = {},
    std::size_t daemons = 1);

}  // namespace gradwire::conformance
