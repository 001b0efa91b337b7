#include "server/services/state_streams.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "hooks/safetensors.h"
#include "server/rpc/clock.h"

namespace gradwire::server {
namespace {

absl::Status NoSession() {
  return absl::NotFoundError(
      "no session of that name runs; a state can be read and replaced in a running one only");
}

absl::StatusOr<std::string> StateFile(const std::shared_ptr<SessionRunner>& session) {
  if (session == nullptr) return NoSession();
  const absl::StatusOr<HookState> state = session->ExportState();
  if (!state.ok()) return state.status();
  return WriteSafetensors(*state);
}

}  // namespace

ExportStream::ExportStream(std::shared_ptr<const Registry> registry,
                           std::shared_ptr<PeriodicTasks> ticks)
    : registry_(std::move(registry)),
      ticks_(std::move(ticks)),
      deadline_(MonotonicNow() + kStateCallTimeout) {}

void ExportStream::OnTick(absl::Time now) {
  if (now >= deadline_) TryCancel();
}

void ExportStream::OnRequest(const v1::ExportStateRequest& request) {
  RpcThreads::YieldLeadership();
  ticks_->Add(Self<ExportStream>());
  absl::StatusOr<std::string> state = StateFile(registry_->Get(request.session()));
  if (!state.ok()) return Finish(state.status());
  bytes_ = *std::move(state);
  WriteNext();
}

void ExportStream::WriteNext() {
  const std::size_t bytes = std::min(kStatePiece, bytes_.size() - written_);
  if (bytes == 0) return Finish(absl::OkStatus());
  v1::ExportStateResponse response;
  response.set_data(bytes_.data() + written_, bytes);
  written_ += bytes;
  StartWrite(ToBytes(response));
}

void ExportStream::OnWriteDone(bool ok) {
  RpcThreads::YieldLeadership();
  if (!ok) return Finish(absl::CancelledError("the reader is gone"));
  WriteNext();
}

void ExportStream::OnDone() { ticks_->Remove(this); }

ImportStream::ImportStream(std::shared_ptr<const Registry> registry,
                           std::shared_ptr<PeriodicTasks> ticks)
    : registry_(std::move(registry)),
      ticks_(std::move(ticks)),
      deadline_(MonotonicNow() + kStateCallTimeout) {}

void ImportStream::OnTick(absl::Time now) {
  if (now >= deadline_) TryCancel();
}

void ImportStream::OnStart() {
  ticks_->Add(Self<ImportStream>());
  StartRead();
}

void ImportStream::OnReadDone(bool ok) {
  RpcThreads::YieldLeadership();
  if (!ok) {
    const absl::StatusOr<v1::ImportStateResponse> response = Import();
    return response.ok() ? WriteAndFinish(ToBytes(*response)) : Finish(response.status());
  }
  v1::ImportStateRequest request;
  absl::Status status = FromBytes(method(), incoming(), request);
  if (status.ok()) status = Take(request);
  if (!status.ok()) return Finish(status);
  StartRead();
}

absl::Status ImportStream::Take(const v1::ImportStateRequest& request) {
  if (session_ == nullptr) {
    session_ = registry_->Get(request.session());
    if (session_ == nullptr) return NoSession();
    most_bytes_ = session_->StateFileBytes();
  } else if (!request.session().empty()) {
    return absl::InvalidArgumentError("session: only the first message names it");
  }
  const std::string& data = request.data();
  if (data.size() > kStatePiece) {
    return absl::InvalidArgumentError(
        absl::StrCat("data: ", data.size(), " bytes; allowed in one message: ", kStatePiece));
  }
  if (data.size() > most_bytes_ - bytes_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("state: has more than ", most_bytes_,
                                                   " bytes; the session's cannot be larger"));
  }
  bytes_ += data;
  return absl::OkStatus();
}

absl::StatusOr<v1::ImportStateResponse> ImportStream::Import() const {
  if (broken()) return absl::CancelledError("the sender is gone");
  if (session_ == nullptr) return absl::InvalidArgumentError("session: no message names it");
  const absl::StatusOr<HookState> state = ReadSafetensors(bytes_);
  if (!state.ok()) return state.status();
  const absl::StatusOr<std::int64_t> iteration = session_->ImportState(*state);
  if (!iteration.ok()) return iteration.status();
  v1::ImportStateResponse response;
  response.set_iteration(*iteration);
  return response;
}

void ImportStream::OnDone() { ticks_->Remove(this); }

}  // namespace gradwire::server
