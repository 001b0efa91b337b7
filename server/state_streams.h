// The calls that carry a session's state: to an operator or a checkpoint, and back.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/v1/admin.pb.h"
#include "proto/wire/sync.h"
#include "server/hosted_session.h"
#include "server/registry.h"
#include "server/tick_list.h"

namespace gradwire::server {

inline constexpr std::size_t kStatePiece = std::size_t{1} << 20;
inline constexpr absl::Duration kStateCallTimeout = absl::Minutes(2);

// Cancels a call that takes too long: it holds a state's bytes.
class CallDeadline final : public Ticked {
 public:
  explicit CallDeadline(grpc::CallbackServerContext* context);

  void OnTick(absl::Time now) override GRADWIRE_EXCLUDES(mutex_);
  // gRPC is through with the call.
  void End() GRADWIRE_EXCLUDES(mutex_);

 private:
  const absl::Time deadline_;
  Mutex mutex_;
  grpc::CallbackServerContext* context_ GRADWIRE_GUARDED_BY(mutex_);
};

// Lives until gRPC is done with the call.
class ExportStream final : public grpc::ServerWriteReactor<v1::ExportStateResponse> {
 public:
  // Null: there is no such session.
  static ExportStream* Start(grpc::CallbackServerContext* context,
                             const std::shared_ptr<HostedSession>& session,
                             std::shared_ptr<TickList> ticks);

 private:
  ExportStream(grpc::CallbackServerContext* context, std::shared_ptr<TickList> ticks);

  void Send(absl::StatusOr<std::string> state);
  void WriteNext();
  void OnWriteDone(bool ok) override;
  void OnDone() override;

  const std::shared_ptr<CallDeadline> deadline_;
  const std::shared_ptr<TickList> ticks_;
  std::string bytes_;  // of the file; those before `written_` were handed to gRPC
  std::size_t written_ = 0;
  v1::ExportStateResponse response_;  // unchanged while it is written

  std::shared_ptr<ExportStream> self_;  // until OnDone
};

// Lives until gRPC is done with the call.
class ImportStream final : public grpc::ServerReadReactor<v1::ImportStateRequest> {
 public:
  static ImportStream* Start(grpc::CallbackServerContext* context,
                             v1::ImportStateResponse* response,
                             std::shared_ptr<const Registry> registry,
                             std::shared_ptr<TickList> ticks);

 private:
  ImportStream(grpc::CallbackServerContext* context, v1::ImportStateResponse* response,
               std::shared_ptr<const Registry> registry, std::shared_ptr<TickList> ticks);

  void OnReadDone(bool ok) override;
  void OnDone() override;
  absl::Status Take();
  absl::Status Import();

  grpc::CallbackServerContext* const context_;
  v1::ImportStateResponse* const response_;
  const std::shared_ptr<const Registry> registry_;
  const std::shared_ptr<CallDeadline> deadline_;
  const std::shared_ptr<TickList> ticks_;
  v1::ImportStateRequest request_;
  std::shared_ptr<HostedSession> session_;  // from the first message on
  std::size_t most_bytes_ = 0;
  std::string bytes_;

  std::shared_ptr<ImportStream> self_;  // until OnDone
};

}  // namespace gradwire::server
