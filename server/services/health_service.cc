#include "server/services/health_service.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "server/rpc/messages.h"

namespace gradwire::server {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

namespace {

// A watch stores its service's name until it ends, so the length is limited.
constexpr std::size_t kLongestName = 200;

absl::Status CheckName(const HealthCheckRequest& request) {
  const std::size_t bytes = request.service().size();
  if (bytes <= kLongestName) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("service: has ", bytes, " bytes; allowed: at most ", kLongestName));
}

}  // namespace

// At most one write is in flight. A client that reads slowly skips states and gets the latest one.
class HealthWatch final : public RequestCall<HealthCheckRequest> {
 public:
  explicit HealthWatch(HealthService* health) : health_(*health) {}

  // The service's status may have changed.
  void Tell() GRADWIRE_EXCLUDES(mutex_) {
    HealthCheckResponse response;
    {
      MutexLock lock(mutex_);
      if (writing_) return;
      const HealthService::Status status = health_.StatusOf(service_);
      // The health protocol sends changes only.
      if (status == told_) return;
      told_ = status;
      writing_ = true;
      response.set_status(status);
    }
    StartWrite(ToBytes(response));
  }

  void End() {
    Finish(Coded(ErrorCode::kDraining, absl::UnavailableError("the daemon is shutting down")));
  }

 private:
  void OnRequest(const HealthCheckRequest& request) override {
    if (absl::Status status = CheckName(request); !status.ok()) return Finish(status);
    service_ = request.service();
    // Registers before it reads the status, so that no change falls between the two.
    if (!health_.Add(Self<HealthWatch>())) return End();
    Tell();
  }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(mutex_);
      writing_ = false;
    }
    if (!ok) return Finish(absl::CancelledError("the watcher is gone"));
    // The status may have changed during the write.
    Tell();
  }

  void OnDone() override { health_.Remove(this); }

  HealthService& health_;
  std::string service_;  // from OnRequest on

  Mutex mutex_;  // before the service's
  HealthService::Status told_ GRADWIRE_GUARDED_BY(mutex_) = HealthCheckResponse::UNKNOWN;
  bool writing_ GRADWIRE_GUARDED_BY(mutex_) = false;
};

HealthService::HealthService(const std::vector<std::string>& services)
    : services_{{"", HealthCheckResponse::SERVING}} {
  for (const std::string& service : services) services_[service] = HealthCheckResponse::SERVING;
}

void HealthService::AddTo(Methods& methods) {
  methods.AddUnary<HealthCheckRequest, HealthCheckResponse>(
      [this](const auto& request, auto& response) { return Check(request, response); });
  methods.Add<HealthCheckRequest, HealthCheckResponse, HealthWatch>(MethodKind::kServerStream,
                                                                    this);
}

// gRPC's health protocol: Check answers NOT_FOUND for an unknown service, while Watch reports
// SERVICE_UNKNOWN and goes on.
absl::Status HealthService::Check(const HealthCheckRequest& request,
                                  HealthCheckResponse& response) const {
  if (absl::Status name = CheckName(request); !name.ok()) return name;
  const Status status = StatusOf(request.service());
  if (status == HealthCheckResponse::SERVICE_UNKNOWN) {
    return absl::NotFoundError(absl::StrCat("no service is called '", request.service(), "'"));
  }
  response.set_status(status);
  return absl::OkStatus();
}

HealthService::Status HealthService::StatusOf(const std::string& service) const {
  MutexLock lock(mutex_);
  const auto found = services_.find(service);
  return found == services_.end() ? HealthCheckResponse::SERVICE_UNKNOWN : found->second;
}

// Tell takes a watch's lock before the service's, so it is called without the latter.
void HealthService::StopServing() {
  {
    MutexLock lock(mutex_);
    for (auto& [service, status] : services_) status = HealthCheckResponse::NOT_SERVING;
  }
  for (const auto& watch : watches()) watch->Tell();
}

void HealthService::EndWatches() {
  {
    MutexLock lock(mutex_);
    // Before the list is read: a watch that comes later is refused by Add and ends itself.
    ended_ = true;
  }
  for (const auto& watch : watches()) watch->End();
}

bool HealthService::Add(const std::shared_ptr<HealthWatch>& watch) {
  MutexLock lock(mutex_);
  if (ended_) return false;
  watches_[watch.get()] = watch;
  return true;
}

void HealthService::Remove(HealthWatch* watch) {
  MutexLock lock(mutex_);
  watches_.erase(watch);
}

std::vector<std::shared_ptr<HealthWatch>> HealthService::watches() const {
  std::vector<std::shared_ptr<HealthWatch>> live;
  MutexLock lock(mutex_);
  for (const auto& [key, watch] : watches_) {
    if (auto one = watch.lock()) live.push_back(std::move(one));
  }
  return live;
}

}  // namespace gradwire::server
