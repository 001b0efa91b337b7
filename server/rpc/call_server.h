// A gRPC server whose calls all go through one queue.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/sync.h"
#include "server/access/access_control.h"
#include "server/rpc/call.h"
#include "server/rpc/methods.h"
#include "server/rpc/rpc_threads.h"

namespace gradwire::server {

// What the server asks about each call before it takes it.
struct Door {
  // Who may call the method with this proof, or why not. Null: everybody may call everything.
  std::function<absl::StatusOr<Caller>(const std::string& method, const Proof& proof)> admit =
      nullptr;
  // The meter of the connection of this peer, as gRPC names it; it and its result may be null.
  std::function<std::shared_ptr<TrafficMeter>(const std::string& peer)> meter_of = nullptr;
  // Told of calls that were admitted and then finished with PermissionDenied, for what they asked;
  // may be null.
  std::function<void(const std::string& method, const Caller& caller, const absl::Status& why)>
      on_denied = nullptr;
};

// Which threads serve the calls. Of two servers, the calls of one cannot delay those of the other.
struct Threads {
  std::size_t count = RpcThreads::Count();
  const char* name = "gradwire-rpc";  // at most 15 characters
  // How many connections are open, asked for after the first Wake. If it is there, threads poll
  // only while some are, or calls: who adds one calls Wake before gRPC has it. Of two servers, the
  // one that is used seldom should do so: see RpcThreads::Start.
  std::function<int()> connections = nullptr;
};

// Calls of unknown methods end with UNIMPLEMENTED.
class CallServer {
 public:
  // `builder` has the options and the ports, and no service.
  static absl::StatusOr<std::unique_ptr<CallServer>> Start(grpc::ServerBuilder& builder,
                                                           Methods methods, Door door = {},
                                                           const Threads& threads = {});

  // Calls Shutdown with a deadline of now.
  ~CallServer();

  // A connection comes: see Threads. Thread-safe.
  void Wake() { threads_.Wake(); }
  // Whether its threads wait for Wake. Thread-safe.
  bool asleep() const { return threads_.asleep(); }

  // Accepts no new call, lets running calls continue until `deadline`, then cancels them. Returns
  // when all threads have ended: a cancelled call ends by itself (see Call), and slow ones are
  // logged. Later calls of Shutdown do nothing.
  void Shutdown(std::chrono::system_clock::time_point deadline) GRADWIRE_EXCLUDES(mutex_);

 private:
  CallServer(std::unique_ptr<grpc::ServerCompletionQueue> queue, Methods methods, Door door);

  // Asks gRPC for the next call.
  void Accept();
  void OnAccepted(bool ok);
  // Calls, and the question for the next one: more or less of them.
  void Enter() GRADWIRE_EXCLUDES(mutex_);
  void Leave() GRADWIRE_EXCLUDES(mutex_);
  bool HasCalls() GRADWIRE_EXCLUDES(mutex_);
  // Waits until no call is left, at most for `patience`; returns how many are left.
  std::size_t WaitForCalls(std::chrono::seconds patience) GRADWIRE_EXCLUDES(mutex_);

  const Methods methods_;
  const Door door_;
  grpc::AsyncGenericService service_;
  RpcThreads threads_;
  std::unique_ptr<grpc::Server> grpc_;
  RpcThreads::Operation accepted_;
  std::unique_ptr<Call::Wire> next_;  // with gRPC, until accepted_ is done

  Mutex mutex_;
  CondVar left_;
  std::size_t inside_ GRADWIRE_GUARDED_BY(mutex_) = 0;
};

}  // namespace gradwire::server
