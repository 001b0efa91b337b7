// One call of a peer: gRPC's operations on one side, what the daemon does about it on the other.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "base/sync.h"
#include "server/rpc/rpc_threads.h"

namespace gradwire::server {

// Derive from it and say what to do by overriding the reactions. They run on RpcThreads: OnStart
// first, OnDone last and after the others have returned; between them each may run beside another.
// The operations may be called from any thread from OnStart on, but under no lock that a reaction
// takes: a write copies its bytes into the socket before it returns.
//
// Every call ends. One that is cancelled, for whatever reason, is finished here if nobody else does
// it. Once Finish was called no read and no write begins any more: those that are asked for are
// forgotten, without a reaction.
//
// Lives until OnDone has returned, and as long as somebody refers to it.
class Call : public std::enable_shared_from_this<Call> {
 public:
  Call();
  virtual ~Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 protected:
  // The peer has called.
  virtual void OnStart() = 0;
  // Not ok: the peer has said all, or the call is broken.
  virtual void OnReadDone(bool /*ok*/) {}
  // Not ok: the call is broken.
  virtual void OnWriteDone(bool /*ok*/) {}
  // The call is broken: by the peer, the connection, its deadline, TryCancel or the server's end.
  // May come after Finish.
  virtual void OnCancel() {}
  // Nothing is in flight any more.
  virtual void OnDone() {}

  // "/package.Service/Method".
  const std::string& method() const { return wire_->context.method(); }

  // The peer learns at once that somebody is there, not with the first message. Only in OnStart.
  void SendInitialMetadata();
  // One at a time, as is the write. The message is in incoming() until the next read begins.
  void StartRead() GRADWIRE_EXCLUDES(mutex_);
  // gRPC has its own reference to the bytes when this returns.
  void StartWrite(const grpc::ByteBuffer& message) GRADWIRE_EXCLUDES(mutex_);
  // The last message, with OK; no write is in flight. Without OnWriteDone.
  void WriteAndFinish(const grpc::ByteBuffer& message) GRADWIRE_EXCLUDES(mutex_);
  // After the write in flight. The first status counts; a message that is too long is cut.
  void Finish(const absl::Status& status) GRADWIRE_EXCLUDES(mutex_);
  // Breaks the call.
  void TryCancel();

  grpc::ByteBuffer& incoming() { return incoming_; }

  // In OnReadDone that is not ok: whether the call is broken, and not just all said.
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

  // OnStart. `closed` is called after OnDone; the last thing that is done with the server.
  void Open(std::unique_ptr<Wire> wire, std::function<void()> closed) GRADWIRE_EXCLUDES(mutex_);

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
  // One operation or reaction less under way.
  void Settle() GRADWIRE_EXCLUDES(mutex_);

  std::unique_ptr<Wire> wire_;
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
