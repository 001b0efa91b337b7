#include "server/services/state_streams.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "server/access/permissions.h"
#include "server/rpc/clock.h"

namespace gradwire::server {
namespace {

absl::Status NoSession(const std::string& name) {
  constexpr std::size_t kShown = 200;
  return Coded(ErrorCode::kUnknownSession,
               absl::NotFoundError(absl::StrCat("session: none named \"", name.substr(0, kShown),
                                                "\" is running; only a running one has a state")));
}

}  // namespace

ExportStream::ExportStream(std::shared_ptr<const Registry> registry,
                           std::shared_ptr<PeriodicTasks> ticks)
    : registry_(std::move(registry)),
      ticks_(std::move(ticks)),
      deadline_(MonotonicNow() + kStateCallTimeout) {}

// Cancels instead of finishing: Finish would wait for a write that a reader who does not read never
// lets complete.
void ExportStream::OnTick(absl::Time now) {
  if (now >= deadline_) TryCancel();
}

void ExportStream::OnRequest(const v1::ExportStateRequest& request) {
  RpcThreads::YieldLeadership();
  // The deadline covers the wait for the file too.
  ticks_->Add(Self<ExportStream>());
  session_ = request.session();
  if (absl::Status may = CheckSession(caller(), request.session()); !may.ok()) return Refuse(may);
  const std::shared_ptr<SessionRunner> session = registry_->Get(request.session());
  if (session == nullptr) return Refuse(NoSession(request.session()));
  session->Export(
      [self = Self<ExportStream>()](absl::StatusOr<std::shared_ptr<const std::string>> bytes) {
        if (!bytes.ok()) return self->Refuse(bytes.status());
        self->Record(absl::OkStatus());  // the reader gets the first bytes now
        self->bytes_ = *std::move(bytes);
        self->WriteNext();
      });
}

void ExportStream::Record(const absl::Status& status) {
  if (AuditSink* const audit = registry_->audit(); audit != nullptr) {
    audit->Record(EventOf("export", caller(), session_, status));
  }
}

void ExportStream::Refuse(const absl::Status& why) {
  Record(why);
  Finish(why);
}

// One piece at a time: the next one is built when the reader has taken the last one, so a slow
// reader costs 1 MiB and not the whole state.
void ExportStream::WriteNext() {
  const std::size_t bytes = std::min(kStatePiece, bytes_->size() - written_);
  if (bytes == 0) {
    bytes_.reset();  // and with it the call's place: the reader may begin the next export at once
    return Finish(absl::OkStatus());
  }
  v1::ExportStateResponse response;
  response.set_data(bytes_->data() + written_, bytes);
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
  // The deadline begins with the call, because an unfinished import holds memory and a place.
  ticks_->Add(Self<ImportStream>());
  StartRead();
}

void ImportStream::OnReadDone(bool ok) {
  RpcThreads::YieldLeadership();
  if (!ok) return Import();
  v1::ImportStateRequest request;
  absl::Status status = FromBytes(method(), incoming(), request);
  if (status.ok()) status = Take(request);
  if (!status.ok()) {
    // Before the answer: the client may begin the next import at once.
    place_.reset();
    return Refuse(status);
  }
  StartRead();
}

absl::Status ImportStream::Take(const v1::ImportStateRequest& request) {
  if (session_ == nullptr) {
    name_ = request.session();
    shards_ = std::max<std::uint32_t>(request.shards(), 1);
    if (absl::Status may = CheckSession(caller(), request.session()); !may.ok()) return may;
    session_ = registry_->Get(request.session());
    if (session_ == nullptr) return NoSession(request.session());
    absl::StatusOr<StateFiles::Place> place = session_->BeginImport();
    if (!place.ok()) return place.status();
    place_ = *std::move(place);
    most_bytes_ = session_->state_file_bytes();
  } else if (!request.session().empty() || request.shards() != 0) {
    return absl::InvalidArgumentError("session, shards: only the first message has them");
  }
  const std::string& data = request.data();
  if (data.size() > kStatePiece) {
    return absl::InvalidArgumentError(
        absl::StrCat("data: ", data.size(), " bytes; allowed in one message: ", kStatePiece));
  }
  // The session's reservation covers imports of up to most_bytes_.
  if (data.size() > most_bytes_ - bytes_.size()) {
    return Coded(ErrorCode::kStateDiffers, absl::InvalidArgumentError(absl::StrCat(
                                               "state: has more than ", most_bytes_,
                                               " bytes; the session's cannot be larger")));
  }
  bytes_ += data;
  return absl::OkStatus();
}

// Only a complete state is installed: a call that broke off also ends its reads.
void ImportStream::Import() {
  if (broken()) return Finish(absl::CancelledError("the sender is gone"));
  if (session_ == nullptr) {
    return Refuse(absl::InvalidArgumentError("session: no message names it"));
  }
  session_->Import(std::move(bytes_), shards_,
                   [self = Self<ImportStream>()](const absl::StatusOr<std::int64_t>& iteration) {
                     // Before the answer: a client that has it may begin the next import at once.
                     self->place_.reset();
                     if (!iteration.ok()) return self->Refuse(iteration.status());
                     self->Record(absl::OkStatus());
                     v1::ImportStateResponse response;
                     response.set_iteration(*iteration);
                     self->WriteAndFinish(ToBytes(response));
                   });
}

void ImportStream::Record(const absl::Status& status) {
  if (AuditSink* const audit = registry_->audit(); audit != nullptr) {
    audit->Record(EventOf("import", caller(), name_, status));
  }
}

void ImportStream::Refuse(const absl::Status& why) {
  Record(why);
  Finish(why);
}

void ImportStream::OnDone() { ticks_->Remove(this); }

}  // namespace gradwire::server
