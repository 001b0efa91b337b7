#include "server/rpc/call.h"

#include <grpc/grpc.h>

#include <cstddef>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "proto/wire/status.h"

namespace gradwire::server {
namespace {

// gRPC sends a status message as a header, and peers refuse headers above 8 KiB, so a long message
// is truncated.
grpc::Status ToShortGrpc(const absl::Status& status) {
  constexpr std::size_t kMaxMessage = 2048;
  if (status.message().size() <= kMaxMessage) return wire::ToGrpc(status);
  const std::string whole(status.message());
  const ErrorCode code = FindCode(whole).value_or(ErrorCode::kInternal);
  return wire::ToGrpc(absl::Status(
      status.code(), RecodedText(code, absl::StrCat(whole.substr(0, kMaxMessage), " …"))));
}

// For an answer whose message has no code of its own.
ErrorCode GeneralCode(const std::string& method) {
  const auto calls = [&method](const char* name) { return absl::EndsWith(method, name); };
  if (calls("/Join") || calls("/JoinInParts")) return ErrorCode::kJoin;
  if (calls("/Exchange") || calls("/ExchangeBulk") || calls("/Leave")) return ErrorCode::kTraining;
  if (calls("/ExportState") || calls("/ImportState")) return ErrorCode::kState;
  return ErrorCode::kDaemonCall;
}

}  // namespace

// gRPC wants AsyncNotifyWhenDone before the call is requested.
Call::Wire::Wire(RpcThreads& on)
    : threads(on),
      ended{.done =
                [](void* owner, bool ok) {
                  Call& its = *static_cast<Wire*>(owner)->call;
                  its.OnEnded(ok);
                  its.Settle();
                },
            .owner = this} {
  context.AsyncNotifyWhenDone(threads.Begin(ended));
}

template <void (Call::*end)(bool)>
RpcThreads::Operation Call::Operation() {
  const auto done = [](void* owner, bool ok) {
    auto& call = *static_cast<Call*>(owner);
    (call.*end)(ok);
    call.Settle();
  };
  return {.done = done, .owner = this};
}

Call::Call()
    : metadata_(Operation<&Call::OnSent>()),
      read_(Operation<&Call::OnRead>()),
      write_(Operation<&Call::OnWritten>()),
      finish_(Operation<&Call::OnSent>()) {}

void Call::Open(std::unique_ptr<Wire> wire, Caller caller, std::shared_ptr<TrafficMeter> meter,
                const OnDenied* on_denied, std::function<void()> closed) {
  self_ = shared_from_this();
  wire_ = std::move(wire);
  wire_->call = this;
  caller_ = std::move(caller);
  on_denied_ = on_denied;
  meter_ = std::move(meter);
  if (meter_ != nullptr) meter_->OnCall();
  closed_ = std::move(closed);
  {
    MutexLock lock(mutex_);
    under_way_ = 2;  // this function, and the notice of the call's end
  }
  OnStart();
  Settle();
}

void Call::SendInitialMetadata() {
  {
    MutexLock lock(mutex_);
    ++under_way_;
  }
  wire_->stream.SendInitialMetadata(wire_->threads.Begin(metadata_));
}

// No operation may begin after Finish. `under_way_` keeps the call alive until the operation's
// completion has come off the queue.
bool Call::Enter(bool write) {
  MutexLock lock(mutex_);
  if (outcome_) return false;
  ++under_way_;
  if (write) writing_ = true;
  return true;
}

void Call::StartRead() {
  if (!Enter(/*write=*/false)) return;
  wire_->stream.Read(&incoming_, wire_->threads.Begin(read_));
}

void Call::StartWrite(const grpc::ByteBuffer& message) {
  if (!Enter(/*write=*/true)) return;
  wire_->stream.Write(message, wire_->threads.Begin(write_));
}

void Call::WriteAndFinish(const grpc::ByteBuffer& message) {
  {
    MutexLock lock(mutex_);
    if (outcome_) return;
    outcome_ = grpc::Status::OK;
    finishing_ = true;
    ++under_way_;
  }
  wire_->stream.WriteAndFinish(message, grpc::WriteOptions(), grpc::Status::OK,
                               wire_->threads.Begin(finish_));
}

void Call::Finish(const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    if (outcome_) return;
    outcome_ = ToShortGrpc(status.ok() ? status : Coded(GeneralCode(method()), status));
  }
  if (on_denied_ != nullptr && absl::IsPermissionDenied(status)) {
    (*on_denied_)(method(), caller_, status);
  }
  MaybeFinish();
}

// gRPC allows one write at a time, and Finish writes the status: it waits for the write in flight.
void Call::MaybeFinish() {
  grpc::Status outcome;
  {
    MutexLock lock(mutex_);
    if (!outcome_ || writing_ || finishing_) return;
    finishing_ = true;
    ++under_way_;
    outcome = *outcome_;
  }
  wire_->stream.Finish(outcome, wire_->threads.Begin(finish_));
}

void Call::TryCancel() { wire_->context.TryCancel(); }

// After a read that is not ok, tells a broken call from one whose client has half-closed it.
bool Call::broken() const {
  return grpc_call_failed_before_recv_message(wire_->context.c_call()) != 0;
}

void Call::CountAsMember() {
  if (meter_ != nullptr && !is_member_.exchange(true)) meter_->BeginMember();
}

void Call::OnRead(bool ok) {
  if (ok && meter_ != nullptr) meter_->OnTaken(incoming_.Length());
  OnReadDone(ok);
}

void Call::OnWritten(bool ok) {
  if (meter_ != nullptr) meter_->OnSent();
  {
    MutexLock lock(mutex_);
    // Before OnWriteDone, which may begin the next write.
    writing_ = false;
  }
  OnWriteDone(ok);
  MaybeFinish();
}

// IsCancelled may be asked only after this notice.
void Call::OnEnded(bool /*ok*/) {
  if (!wire_->context.IsCancelled()) return;
  // Before Finish, so that the call can choose a status of its own.
  OnCancel();
  Finish(absl::CancelledError("the call was cancelled"));
}

void Call::Settle() {
  {
    MutexLock lock(mutex_);
    if (--under_way_ > 0) return;
  }
  // `closed` may let Shutdown destroy the queue, so the call with its gRPC objects goes first.
  std::shared_ptr<Call> self = std::move(self_);
  OnDone();
  if (is_member_) meter_->EndMember();
  if (meter_ != nullptr) meter_->OnCallEnd();
  const std::function<void()> closed = std::move(closed_);
  self.reset();
  closed();
}

}  // namespace gradwire::server
