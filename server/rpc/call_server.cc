#include "server/rpc/call_server.h"

#include <spdlog/spdlog.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/net/peer_address.h"
#include "server/rpc/user_credentials.h"

namespace gradwire::server {
namespace {

// Interval between two warnings about calls that do not end.
constexpr std::chrono::seconds kPatience(5);

// Ends at once.
class RefusedCall final : public Call {
 public:
  explicit RefusedCall(absl::Status why) : why_(std::move(why)) {}

 private:
  void OnStart() override { Finish(why_); }

  const absl::Status why_;
};

std::string ToText(const grpc::string_ref& text) { return {text.data(), text.size()}; }

Proof ProofOf(const grpc::GenericServerContext& context) {
  Proof proof;
  if (const auto peer = ParsePeer(context.peer())) proof.peer = ToText(*peer);
  const auto& headers = context.client_metadata();
  if (const auto found = headers.find("authorization"); found != headers.end()) {
    proof.authorization = ToText(found->second);
  }
  const auto authenticated = context.auth_context();
  if (authenticated == nullptr) return proof;
  proof.user = UserOf(*authenticated);
  if (proof.user || !authenticated->IsPeerAuthenticated()) return proof;
  // Its name as a workload, its common name, or an alternative name: the first that it has. An
  // alternative name may be an address only.
  for (const std::vector<grpc::string_ref>& names :
       {authenticated->FindPropertyValues(GRPC_PEER_SPIFFE_ID_PROPERTY_NAME),
        authenticated->FindPropertyValues(GRPC_X509_CN_PROPERTY_NAME),
        authenticated->GetPeerIdentity()}) {
    if (names.empty() || names.front().empty()) continue;
    proof.certificate = ToText(names.front());
    break;
  }
  return proof;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CallServer>> CallServer::Start(grpc::ServerBuilder& builder,
                                                              Methods methods, Door door,
                                                              const Threads& threads) {
  std::unique_ptr<CallServer> server(
      new CallServer(builder.AddCompletionQueue(), std::move(methods), std::move(door)));
  builder.RegisterAsyncGenericService(&server->service_);
  server->grpc_ = builder.BuildAndStart();
  if (server->grpc_ == nullptr) return absl::InternalError("gRPC could not start a server");
  // The pending RequestCall counts as a call, so that Shutdown waits for its end too.
  server->Enter();
  server->Accept();
  std::function<bool()> is_unused;
  if (threads.connections) {
    is_unused = [calls = server.get(), connections = threads.connections] {
      return connections() == 0 && !calls->HasCalls();
    };
  }
  server->threads_.Start(threads.count, threads.name, std::move(is_unused));
  return server;
}

CallServer::CallServer(std::unique_ptr<grpc::ServerCompletionQueue> queue, Methods methods,
                       Door door)
    : methods_(std::move(methods)),
      door_(std::move(door)),
      threads_(std::move(queue)),
      accepted_{
          .done = [](void* owner, bool ok) { static_cast<CallServer*>(owner)->OnAccepted(ok); },
          .owner = this} {}

CallServer::~CallServer() { Shutdown(std::chrono::system_clock::now()); }

void CallServer::Accept() {
  next_ = std::make_unique<Call::Wire>(threads_);
  grpc::ServerCompletionQueue* const queue = threads_.queue();
  service_.RequestCall(&next_->context, &next_->stream, queue, queue, threads_.Begin(accepted_));
}

// Requests the next call before it opens this one, so that another thread can accept meanwhile.
void CallServer::OnAccepted(bool ok) {
  std::unique_ptr<Call::Wire> wire = std::move(next_);
  // A call that never began gets no notice from AsyncNotifyWhenDone, so it is simply destroyed.
  if (!ok) {  // the server is shut down
    wire.reset();
    return Leave();
  }
  Enter();
  Accept();
  const std::string& method = wire->context.method();
  absl::StatusOr<Caller> caller = Caller();
  if (door_.admit) caller = door_.admit(method, ProofOf(wire->context));
  std::shared_ptr<TrafficMeter> meter;
  if (door_.meter_of) meter = door_.meter_of(wire->context.peer());
  std::shared_ptr<Call> call = caller.ok() ? methods_.Make(method) : nullptr;
  if (call == nullptr) {
    call = std::make_shared<RefusedCall>(
        caller.ok() ? absl::UnimplementedError(absl::StrCat("unknown method ", method))
                    : caller.status());
  }
  // One that was not admitted has been counted.
  const bool tell = caller.ok() && door_.on_denied != nullptr;
  call->Open(std::move(wire), caller.ok() ? *std::move(caller) : Caller(), std::move(meter),
             tell ? &door_.on_denied : nullptr, [this] { Leave(); });
}

void CallServer::Enter() {
  MutexLock lock(mutex_);
  ++inside_;
}

void CallServer::Leave() {
  MutexLock lock(mutex_);
  if (--inside_ == 0) left_.NotifyAll();
}

bool CallServer::HasCalls() {
  MutexLock lock(mutex_);
  // Besides the question for the next one.
  return inside_ > 1;
}

std::size_t CallServer::WaitForCalls(std::chrono::seconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  MutexLock lock(mutex_);
  while (inside_ > 0 && left_.WaitUntil(mutex_, deadline)) {
  }
  return inside_;
}

void CallServer::Shutdown(std::chrono::system_clock::time_point deadline) {
  if (grpc_ == nullptr) return threads_.Stop();
  threads_.StayAwake();
  // Ends the pending RequestCall now, and cancels calls that are left at the deadline.
  grpc_->Shutdown(deadline);
  // gRPC allows no new operation on a queue that is shut down, so all calls have to end first.
  while (const std::size_t calls = WaitForCalls(kPatience)) {
    spdlog::warn("shutting down waits for {} calls that were cancelled", calls);
  }
  threads_.Stop();
  grpc_.reset();
}

}  // namespace gradwire::server
