// All that the daemon's clients and operators can call.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "gradwire/v1/admin.pb.h"
#include "proto/wire/memory_offer.h"
#include "proto/wire/memory_segment.h"
#include "server/daemon/options.h"
#include "server/rpc/methods.h"
#include "server/rpc/periodic_tasks.h"

namespace gradwire::server {

class Registry;
struct LocalSocket;

// Thread-safe. Outlives the calls of its methods.
class Services {
 public:
  struct Connections {
    std::function<int()> count;      // of the live ones
    std::function<bool()> has_room;  // whether members may have some besides their first
    std::shared_ptr<const LocalSocket> local_socket = nullptr;  // null: there is none
  };

  Services(const ServerOptions& options, const std::shared_ptr<Registry>& registry,
           const std::shared_ptr<PeriodicTasks>& tasks, Connections connections);
  ~Services();

  // Once. Of all services, with health and reflection.
  Methods MakeMethods();

  // What AdminService.GetServer answers.
  v1::GetServerResponse DescribeServer() const;

  // Takes a member's offer of shared memory. It may take long; `go_on` says when to give up.
  absl::StatusOr<wire::MemoryReply> AttachMemory(wire::MemoryRequest request,
                                                 wire::GoOn go_on) const;

  // Health says NOT_SERVING from here on.
  void StopServing();
  // Ends the calls that watch the health.
  void EndWatches();

 private:
  struct Parts;

  const std::shared_ptr<Registry> registry_;
  const std::unique_ptr<Parts> parts_;
};

}  // namespace gradwire::server
