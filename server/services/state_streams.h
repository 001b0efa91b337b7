// The calls that export and import a session's state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/v1/admin.pb.h"
#include "server/rpc/messages.h"
#include "server/rpc/periodic_tasks.h"
#include "server/session/registry.h"
#include "server/session/session_runner.h"

namespace gradwire::server {

inline constexpr std::size_t kStatePiece = std::size_t{1} << 20;
// A call that takes longer is cancelled, because it holds the bytes of a state.
inline constexpr absl::Duration kStateCallTimeout = absl::Minutes(2);

class ExportStream final : public RequestCall<v1::ExportStateRequest>, public PeriodicTask {
 public:
  ExportStream(std::shared_ptr<const Registry> registry, std::shared_ptr<PeriodicTasks> ticks);

  void OnTick(absl::Time now) override;

 private:
  void OnRequest(const v1::ExportStateRequest& request) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;
  void WriteNext();
  // Once: what came of the call, for the audit log.
  void Record(const absl::Status& status);
  void Refuse(const absl::Status& why);

  const std::shared_ptr<const Registry> registry_;
  const std::shared_ptr<PeriodicTasks> ticks_;
  const absl::Time deadline_;
  std::shared_ptr<const std::string> bytes_;  // of the file; once it is made
  std::size_t written_ = 0;                   // of those, handed to gRPC
  std::string session_;                       // as asked for
};

class ImportStream final : public Call, public PeriodicTask {
 public:
  ImportStream(std::shared_ptr<const Registry> registry, std::shared_ptr<PeriodicTasks> ticks);

  void OnTick(absl::Time now) override;

 private:
  void OnStart() override;
  void OnReadDone(bool ok) override;
  void OnDone() override;
  absl::Status Take(const v1::ImportStateRequest& request);
  void Import();
  // Once: what came of the call, for the audit log.
  void Record(const absl::Status& status);
  void Refuse(const absl::Status& why);

  const std::shared_ptr<const Registry> registry_;
  const std::shared_ptr<PeriodicTasks> ticks_;
  const absl::Time deadline_;
  std::shared_ptr<SessionRunner> session_;  // from the first message on
  std::string name_;                        // of the session, as asked for
  std::uint32_t shards_ = 1;                // that are given the state
  StateFiles::Place place_;
  std::size_t most_bytes_ = 0;
  std::string bytes_;
};

}  // namespace gradwire::server
