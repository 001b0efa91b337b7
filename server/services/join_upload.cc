#include "server/services/join_upload.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "server/rpc/clock.h"

namespace gradwire::server {

JoinUpload::JoinUpload(Handler join, Gate gate, std::shared_ptr<MemoryBudget> memory,
                       std::shared_ptr<PeriodicTasks> ticks)
    : join_(std::move(join)),
      gate_(std::move(gate)),
      memory_(std::move(memory)),
      ticks_(std::move(ticks)),
      deadline_(MonotonicNow() + kJoinUploadTimeout),
      parts_([this](std::size_t bytes) { return Reserve(bytes); }) {}

void JoinUpload::OnTick(absl::Time now) {
  if (now < deadline_) return;
  Refuse(absl::DeadlineExceededError(absl::StrCat("the join's parts were not here within ",
                                                  absl::FormatDuration(kJoinUploadTimeout))));
}

// Once: the ticker may come again before the call has ended.
void JoinUpload::Refuse(const absl::Status& why) {
  if (!refused_.exchange(true)) gate_.on_refused(caller(), why);
  Finish(why);
}

void JoinUpload::OnStart() {
  // Before its parts take memory that others wait for.
  if (absl::Status may = gate_.admit(caller()); !may.ok()) return Refuse(may);
  StartRead();
  ticks_->Add(Self<JoinUpload>());  // last: the ticker may end it
}

// A read that is not ok is either the end of the parts or a broken call; Join tells them apart.
void JoinUpload::OnReadDone(bool ok) {
  // A part has about 512 KiB to parse, and after the last one the join itself takes long.
  RpcThreads::YieldLeadership();
  if (!ok) {
    v1::JoinResponse response;
    const absl::Status status = Join(response);
    return status.ok() ? WriteAndFinish(ToBytes(response)) : Finish(status);
  }
  if (absl::Status status = Take(); !status.ok()) return Refuse(status);
  StartRead();
}

absl::Status JoinUpload::Take() {
  v1::JoinPart part;
  absl::Status status = FromBytes(method(), incoming(), part);
  incoming().Clear();
  if (status.ok()) status = parts_.Add(std::move(part));
  return status;
}

// A manifest that never fits is RESOURCE_EXHAUSTED; one that other uploads keep out for the moment
// is UNAVAILABLE, which members retry.
absl::Status JoinUpload::Reserve(std::size_t bytes) {
  std::optional<MemoryBudget::Share> share = memory_->Take(bytes);
  if (bytes > memory_->limit()) {
    return Coded(ErrorCode::kMemoryLimit,
                 absl::ResourceExhaustedError(absl::StrCat(
                     "JoinPart.parameters: the manifest takes ", bytes,
                     " bytes while it is read; allowed in this daemon: ", memory_->limit())));
  }
  if (!share) {
    return Coded(ErrorCode::kMemoryLimit, absl::UnavailableError(absl::StrCat(
                                              "unfinished joins in parts: hold ", memory_->taken(),
                                              " bytes and this one takes ", bytes,
                                              "; allowed: ", memory_->limit(), "; try again")));
  }
  share_ = *std::move(share);
  return absl::OkStatus();
}

absl::Status JoinUpload::Join(v1::JoinResponse& response) {
  if (broken()) return absl::CancelledError("the sender is gone");
  if (absl::Status status = parts_.CheckComplete(); !status.ok()) {
    gate_.on_refused(caller(), status);
    return status;
  }
  return join_(parts_.request(), parts_.TakeManifest(), response, caller());
}

void JoinUpload::OnDone() { ticks_->Remove(this); }

}  // namespace gradwire::server
