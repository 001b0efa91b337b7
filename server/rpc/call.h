// One call of a peer, as a base class: gRPC's operations and the handlers of their completions.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "base/sync.h"
#include "server/access/caller.h"
#include "server/net/traffic_meter.h"
#include "server/rpc/rpc_threads.h"

namespace gradwire::server {

// Derive from it and override the handlers. They run on RpcThreads: OnStart first, OnDone last,
// after the others have returned; between them different handlers may run concurrently. From
// OnStart on, any thread may call the operations, but not under a lock that a handler takes,
// because a write copies its bytes into the socket before it returns.
//
// Every call ends. A cancelled call finishes itself if nobody else finishes it. After Finish, reads
// and writes no longer begin: requests for them are dropped and call no handler.
//
// It lives until OnDone has returned and the last reference is gone.
class Call : public std::enable_shared_from_this<Call> {
 public:
  Call();
  virtual ~Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 protected:
  // The peer has called.
  virtual void OnStart() = 0;
  // Not ok: the peer has finished sending, or the call is broken.
  virtual void OnReadDone(bool /*ok*/) {}
  // Not ok: the call is broken.
  virtual void OnWriteDone(bool /*ok*/) {}
  // The call is broken: by the peer, the connection, its deadline, TryCancel or the server's end.
  // May come after Finish.
  virtual void OnCancel() {}
  // Nothing is in flight any more.
  virtual void OnDone() {}

  // Who calls; the same until the call ends.
  const Caller& caller() const { return caller_; }
  // The call is a member's stream from now on, until it ends: see Intake.
  void CountAsMember();
  // Whether the caller's connection is on a unix socket.
  bool is_local() const { return wire_->context.peer().rfind("unix", 0) == 0; }
  // "/package.Service/Method".
  const std::string& method() const { return wire_->context.method(); }

  // Sends the initial metadata at once, not with the first message. Call it only in OnStart.
  void SendInitialMetadata();
  // One read, and one write, may be in flight. The message stays in incoming() until the next read.
  void StartRead() GRADWIRE_EXCLUDES(mutex_);
  // When it returns, gRPC has its own reference to the bytes.
  void StartWrite(const grpc::ByteBuffer& message) GRADWIRE_EXCLUDES(mutex_);
  // Writes the last message and finishes with OK. No write may be in flight. No OnWriteDone
  // follows.
  void WriteAndFinish(const grpc::ByteBuffer& message) GRADWIRE_EXCLUDES(mutex_);
  // Takes effect after the write in flight. The first status counts; long messages are truncated.
  void Finish(const absl::Status& status) GRADWIRE_EXCLUDES(mutex_);
  // Breaks the call.
  void TryCancel();

  grpc::ByteBuffer& incoming() { return incoming_; }

  // In an OnReadDone that is not ok: whether the call is broken, not just complete.
  bool broken() const;

  // A reference of the derived class's type.
  template <class Derived>
  std::shared_ptr<Derived> Self() {
    return std::static_pointer_cast<Derived>(shared_from_this());
  }

 private:
  friend class CallServer;

  // gRPC's part. It is there before anybody calls: gRPC is asked for a call with it.
  struct Wire {
    explicit Wire(RpcThreads& on);

    RpcThreads& threads;
    grpc::GenericServerContext context;
    grpc::GenericServerAsyncReaderWriter stream{&context};
    RpcThreads::Operation ended;
    Call* call = nullptr;  // from Open on
  };

  // Told of a call that is finished with PermissionDenied.
  using OnDenied =
      std::function<void(const std::string& method, const Caller& caller, const absl::Status& why)>;

  // OnStart. `closed` is called after OnDone; the last thing that is done with the server. `meter`
  // is the connection's, or null. `on_denied` may be null and outlives the call.
  void Open(std::unique_ptr<Wire> wire, Caller caller, std::shared_ptr<TrafficMeter> meter,
            const OnDenied* on_denied, std::function<void()> closed) GRADWIRE_EXCLUDES(mutex_);

  // The operations' ends.
  void OnRead(bool ok);
  void OnWritten(bool ok) GRADWIRE_EXCLUDES(mutex_);
  void OnEnded(bool ok);
  void OnSent(bool /*ok*/) {}
  template <void (Call::*end)(bool)>
  RpcThreads::Operation Operation();

  // False: the call is being finished.
  bool Enter(bool write) GRADWIRE_EXCLUDES(mutex_);
  void MaybeFinish() GRADWIRE_EXCLUDES(mutex_);
  // One operation or handler has ended.
  void Settle() GRADWIRE_EXCLUDES(mutex_);

  std::unique_ptr<Wire> wire_;
  Caller caller_;
  const OnDenied* on_denied_ = nullptr;
  std::shared_ptr<TrafficMeter> meter_;
  std::atomic<bool> is_member_ = false;
  std::function<void()> closed_;
  std::shared_ptr<Call> self_;  // until nothing is under way any more
  grpc::ByteBuffer incoming_;   // of the read in flight
  RpcThreads::Operation metadata_;
  RpcThreads::Operation read_;
  RpcThreads::Operation write_;
  RpcThreads::Operation finish_;

  Mutex mutex_;
  int under_way_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  bool writing_ GRADWIRE_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> outcome_ GRADWIRE_GUARDED_BY(mutex_);  // once asked for
  bool finishing_ GRADWIRE_GUARDED_BY(mutex_) = false;
};

}  // namespace gradwire::server
