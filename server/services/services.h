// All that the daemon's clients and operators can call.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gradwire/v1/admin.pb.h"
#include "proto/wire/memory_offer.h"
#include "proto/wire/memory_segment.h"
#include "server/daemon/options.h"
#include "server/rpc/methods.h"
#include "server/rpc/periodic_tasks.h"
#include "server/services/join_refusals.h"

namespace gradwire::server {

class Registry;
struct LocalSocket;

// Thread-safe. Outlives the calls of its methods.
class Services {
 public:
  // The unix socket to which members on this host are invited; null: there is none. An error is
  // getrandom's.
  static absl::StatusOr<std::shared_ptr<const LocalSocket>> FindLocalSocket(
      const ServerOptions& options);

  // What the owner tells.
  struct Owner {
    std::function<int()> connections;  // the number of live ones
    std::function<bool()> has_room;    // whether members may have some besides their first
    // Adds what only the owner knows.
    std::function<void(v1::GetDiagnosticsResponse&)> diagnose;
    std::shared_ptr<const LocalSocket> local_socket;
  };

  Services(const ServerOptions& options, const std::shared_ptr<Registry>& registry,
           const std::shared_ptr<PeriodicTasks>& tasks, Owner owner);
  ~Services();

  // Of all services, with health and reflection. Once, before MakeAdminMethods.
  Methods MakeMethods();
  // For addresses that serve nothing else: admin calls, with health and reflection.
  Methods MakeAdminMethods();

  // What AdminService.GetServer answers.
  v1::GetServerResponse DescribeServer() const;

  // Of joins, by the reason.
  const JoinRefusals& refused_joins() const;

  // The proof for a member that asks whose unix socket this is (LocalSocket).
  absl::StatusOr<std::string> ProveSocket(std::uint64_t start_id, const std::string& probe) const;

  // Takes a member's offer of shared memory, if the member has this identity. It may take long;
  // `go_on` says when to give up.
  absl::StatusOr<wire::MemoryReply> AttachMemory(wire::MemoryRequest request,
                                                 const std::string& identity,
                                                 wire::GoOn go_on) const;

  // Health says NOT_SERVING from here on.
  void StopServing();
  // Ends the calls that watch the health.
  void EndWatches();

 private:
  struct Parts;

  const std::shared_ptr<Registry> registry_;
  const std::shared_ptr<const LocalSocket> local_socket_;
  const std::unique_ptr<Parts> parts_;
};

}  // namespace gradwire::server
