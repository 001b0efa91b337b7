// Implements grpc.health.v1.Health: whether the daemon serves.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/sync.h"
#include "grpc/health/v1/health.pb.h"
#include "server/rpc/methods.h"

namespace gradwire::server {

class HealthWatch;

// Thread-safe. Outlives the calls of its methods.
class HealthService final {
 public:
  // All of `services` serve, and so does "", which means the daemon as a whole.
  explicit HealthService(const std::vector<std::string>& services);

  void AddTo(Methods& methods);

  // Reports NOT_SERVING for all services from now on, also to watchers.
  void StopServing() GRADWIRE_EXCLUDES(mutex_);
  // Ends all watches, and those that begin later.
  void EndWatches() GRADWIRE_EXCLUDES(mutex_);

 private:
  friend class HealthWatch;
  using Status = grpc::health::v1::HealthCheckResponse::ServingStatus;

  absl::Status Check(const grpc::health::v1::HealthCheckRequest& request,
                     grpc::health::v1::HealthCheckResponse& response) const;
  // SERVICE_UNKNOWN: there is no such service.
  Status StatusOf(const std::string& service) const GRADWIRE_EXCLUDES(mutex_);
  // False: End was called.
  bool Add(const std::shared_ptr<HealthWatch>& watch) GRADWIRE_EXCLUDES(mutex_);
  void Remove(HealthWatch* watch) GRADWIRE_EXCLUDES(mutex_);
  std::vector<std::shared_ptr<HealthWatch>> watches() const GRADWIRE_EXCLUDES(mutex_);

  mutable Mutex mutex_;
  std::map<std::string, Status> services_ GRADWIRE_GUARDED_BY(mutex_);
  std::map<HealthWatch*, std::weak_ptr<HealthWatch>> watches_ GRADWIRE_GUARDED_BY(mutex_);
  bool ended_ GRADWIRE_GUARDED_BY(mutex_) = false;
};

}  // namespace gradwire::server
