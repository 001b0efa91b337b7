#include "server/daemon/server.h"

#include <grpcpp/server_builder.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "server/daemon/grpc_settings.h"
#include "server/daemon/make_registry.h"
#include "server/daemon/ports.h"
#include "server/daemon/status_source.h"
#include "server/daemon/ticker.h"
#include "server/net/local_socket.h"
#include "server/net/offer_threads.h"
#include "server/net/system_shares.h"
#include "server/rpc/call_server.h"
#include "server/services/services.h"

namespace gradwire::server {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kPoll = absl::Milliseconds(10);

OfferThreads::Prover ProverOf(const std::shared_ptr<const LocalSocket>& local) {
  if (local == nullptr) return nullptr;
  return [local](std::uint64_t start_id, const std::string& probe) {
    return local->secret.Answer(start_id, probe);
  };
}

class ServerImpl final : public Server {
 public:
  ServerImpl(const ServerOptions& options, const MemoryShares& memory, const SystemShares& shares,
             std::shared_ptr<Registry> registry, const std::shared_ptr<const LocalSocket>& local)
      : options_(options),
        memory_(memory),
        shares_(shares),
        registry_(std::move(registry)),
        tasks_(std::make_shared<PeriodicTasks>()),
        services_(options, registry_, tasks_,
                  {.count = [this] { return connections(); },
                   .has_room = [this] { return ports_->HasRoom(); },
                   .local_socket = local}),
        offers_(
            {.max_pending = shares.pending_offers},
            [this](wire::MemoryRequest request, wire::GoOn go_on) {
              return services_.AttachMemory(std::move(request), go_on);
            },
            ProverOf(local)) {}

  ~ServerImpl() override { Shutdown(absl::ZeroDuration()); }

  absl::Status Serve();

  const std::vector<std::string>& addresses() const override { return ports_->addresses(); }
  std::vector<std::string> http_addresses() const override {
    return http_ == nullptr ? std::vector<std::string>() : http_->addresses();
  }
  std::size_t sessions() const override { return registry_->sessions(); }
  int connections() const override { return ports_->connections(); }
  void SetMaxSessions(int max_sessions) override {
    registry_->SetMaxSessions(static_cast<std::size_t>(max_sessions));
  }
  void BeginDrain() override;
  bool idle() const override { return registry_->idle(); }
  std::uint64_t connections_cut() const override { return ports_->connections_cut(); }
  bool Drain(absl::Duration timeout) override;
  void Shutdown(absl::Duration timeout) override;

 private:
  bool WaitIdle(absl::Duration timeout) const;
  void Tick(absl::Time now);

  const ServerOptions options_;
  const MemoryShares memory_;
  const SystemShares shares_;
  const std::shared_ptr<Registry> registry_;
  const std::shared_ptr<PeriodicTasks> tasks_;
  Services services_;
  OfferThreads offers_;
  std::unique_ptr<Ports> ports_;
  std::unique_ptr<CallServer> calls_;
  Heart heart_;
  std::unique_ptr<HttpServer> http_;  // null: off
  std::atomic<bool> shut_down_ = false;

  absl::Time next_heartbeat_ = absl::InfinitePast();  // the ticker's
  std::optional<Ticker> ticker_;
};

absl::Status ServerImpl::Serve() {
  auto ports = Ports::Open(options_, IntakeLimitsOf(options_, memory_), shares_.connections);
  if (!ports.ok()) return ports.status();
  ports_ = *std::move(ports);
  grpc::ServerBuilder builder;
  SetUpGrpc(options_, memory_, builder);
  ports_->AddTo(builder);
  absl::StatusOr<std::unique_ptr<CallServer>> calls = CallServer::Start(
      builder, services_.MakeMethods(),
      {.admit = [this](const std::string& method,
                       const Proof& proof) { return ports_->Admit(method, proof); },
       .meter_of = [this](const std::string& peer) { return ports_->MeterOf(peer); }});
  if (!calls.ok()) return calls.status();
  calls_ = *std::move(calls);
  // Before connections arrive, because it checks the deadlines of their streams.
  ticker_.emplace(kTick, [this](absl::Time now) { Tick(now); });
  auto http = ServeStatus(options_, MakeStatusSource(*registry_, services_, *ports_, heart_));
  if (!http.ok()) return http.status();
  http_ = *std::move(http);
  return ports_->Serve([this](UniqueFd connection) { offers_.Submit(std::move(connection)); });
}

void ServerImpl::Tick(absl::Time now) {
  heart_.Beat(now);
  registry_->Tick(now);
  tasks_->Tick(now);
  if (now < next_heartbeat_) return;
  registry_->SendHeartbeats();
  next_heartbeat_ = now + options_.heartbeat_interval;
}

void ServerImpl::BeginDrain() {
  services_.StopServing();
  registry_->BeginDrain();
}

bool ServerImpl::WaitIdle(absl::Duration timeout) const {
  const absl::Time deadline = MonotonicNow() + timeout;
  while (!registry_->idle()) {
    if (MonotonicNow() >= deadline) return false;
    std::this_thread::sleep_for(absl::ToChronoNanoseconds(kPoll));
  }
  return true;
}

bool ServerImpl::Drain(absl::Duration timeout) {
  BeginDrain();
  return WaitIdle(timeout);
}

void ServerImpl::Shutdown(absl::Duration timeout) {
  if (shut_down_.exchange(true)) return;
  const absl::Time deadline = MonotonicNow() + timeout;
  if (calls_ != nullptr) {
    BeginDrain();
    // Members learn the reason from a Failure, and WaitIdle leaves it time to reach them.
    registry_->FailAll(absl::UnavailableError("the daemon is shutting down"));
    WaitIdle(timeout);
  }
  // What begins work ends before what serves it: connections, offers, tasks, and then the calls.
  if (ports_ != nullptr) ports_->Stop();
  offers_.Stop();
  registry_->StopWork();
  if (calls_ != nullptr) {
    services_.EndWatches();
    const absl::Duration left = std::max(deadline - MonotonicNow(), absl::ZeroDuration());
    // The ticker ends streams that this waits for, so it goes after them.
    calls_->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(left));
  }
  if (ticker_) ticker_->Stop();
  http_.reset();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  if (absl::Status status = options.Validate(); !status.ok()) return status;
  const absl::StatusOr<std::size_t> memory = options.MemoryBytes();
  if (!memory.ok()) return memory.status();
  const SystemShares shares =
      ShareOut(ReadSystemLimits(), options.max_connections, options.max_sessions);
  const MemoryShares memory_shares = ShareMemory(*memory);
  auto registry = MakeRegistry(options, memory_shares.sessions, shares);
  if (!registry.ok()) return registry.status();
  const auto local = LocalSocket::Of(options.listen);
  if (!local.ok()) return local.status();
  auto server =
      std::make_unique<ServerImpl>(options, memory_shares, shares, *std::move(registry), *local);
  if (absl::Status status = server->Serve(); !status.ok()) return status;
  for (const std::string& address : server->addresses()) spdlog::info("listening on {}", address);
  return server;
}

}  // namespace gradwire::server
