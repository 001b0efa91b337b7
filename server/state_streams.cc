#include "server/state_streams.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "hooks/safetensors.h"
#include "server/answer.h"
#include "server/clock.h"

namespace gradwire::server {
namespace {

absl::Status NoSession() {
  return absl::NotFoundError(
      "no session of that name runs; a state can be read and replaced in a running one only");
}

absl::StatusOr<std::string> StateFile(const std::shared_ptr<HostedSession>& session) {
  if (session == nullptr) return NoSession();
  const absl::StatusOr<HookState> state = session->ExportState();
  if (!state.ok()) return state.status();
  return WriteSafetensors(*state);
}

}  // namespace

CallDeadline::CallDeadline(grpc::CallbackServerContext* context)
    : deadline_(MonotonicNow() + kStateCallTimeout), context_(context) {}

void CallDeadline::OnTick(absl::Time now) {
  if (now < deadline_) return;
  MutexLock lock(mutex_);
  if (context_ != nullptr) context_->TryCancel();
}

void CallDeadline::End() {
  MutexLock lock(mutex_);
  context_ = nullptr;
}

ExportStream* ExportStream::Start(grpc::CallbackServerContext* context,
                                  const std::shared_ptr<HostedSession>& session,
                                  std::shared_ptr<TickList> ticks) {
  const std::shared_ptr<ExportStream> stream(new ExportStream(context, std::move(ticks)));
  stream->self_ = stream;
  stream->ticks_->Add(stream->deadline_);
  stream->Send(StateFile(session));
  return stream.get();
}

ExportStream::ExportStream(grpc::CallbackServerContext* context, std::shared_ptr<TickList> ticks)
    : deadline_(std::make_shared<CallDeadline>(context)), ticks_(std::move(ticks)) {}

void ExportStream::Send(absl::StatusOr<std::string> state) {
  if (!state.ok()) return Finish(ToShortGrpc(state.status()));
  bytes_ = *std::move(state);
  WriteNext();
}

void ExportStream::WriteNext() {
  const std::size_t bytes = std::min(kStatePiece, bytes_.size() - written_);
  if (bytes == 0) return Finish(grpc::Status::OK);
  response_.set_data(bytes_.data() + written_, bytes);
  written_ += bytes;
  StartWrite(&response_);
}

void ExportStream::OnWriteDone(bool ok) {
  if (!ok) return Finish(ToShortGrpc(absl::CancelledError("the reader is gone")));
  WriteNext();
}

void ExportStream::OnDone() {
  deadline_->End();
  ticks_->Remove(deadline_.get());
  self_.reset();
}

ImportStream* ImportStream::Start(grpc::CallbackServerContext* context,
                                  v1::ImportStateResponse* response,
                                  std::shared_ptr<const Registry> registry,
                                  std::shared_ptr<TickList> ticks) {
  const std::shared_ptr<ImportStream> stream(
      new ImportStream(context, response, std::move(registry), std::move(ticks)));
  stream->self_ = stream;
  stream->ticks_->Add(stream->deadline_);
  stream->StartRead(&stream->request_);
  return stream.get();
}

ImportStream::ImportStream(grpc::CallbackServerContext* context, v1::ImportStateResponse* response,
                           std::shared_ptr<const Registry> registry,
                           std::shared_ptr<TickList> ticks)
    : context_(context),
      response_(response),
      registry_(std::move(registry)),
      deadline_(std::make_shared<CallDeadline>(context)),
      ticks_(std::move(ticks)) {}

void ImportStream::OnReadDone(bool ok) {
  if (!ok) return Finish(ToShortGrpc(Import()));
  if (absl::Status status = Take(); !status.ok()) return Finish(ToShortGrpc(status));
  StartRead(&request_);
}

absl::Status ImportStream::Take() {
  if (session_ == nullptr) {
    session_ = registry_->Get(request_.session());
    if (session_ == nullptr) return NoSession();
    most_bytes_ = session_->StateFileBytes();
  } else if (!request_.session().empty()) {
    return absl::InvalidArgumentError("session: only the first message names it");
  }
  const std::string& data = request_.data();
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

absl::Status ImportStream::Import() {
  if (context_->IsCancelled()) return absl::CancelledError("the sender is gone");
  if (session_ == nullptr) return absl::InvalidArgumentError("session: no message names it");
  const absl::StatusOr<HookState> state = ReadSafetensors(bytes_);
  if (!state.ok()) return state.status();
  const absl::StatusOr<std::int64_t> iteration = session_->ImportState(*state);
  if (!iteration.ok()) return iteration.status();
  response_->set_iteration(*iteration);
  return absl::OkStatus();
}

void ImportStream::OnDone() {
  deadline_->End();
  ticks_->Remove(deadline_.get());
  self_.reset();
}

}  // namespace gradwire::server
