#include "server/daemon/server.h"

#include <grpcpp/server_builder.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/daemon/audit_log.h"
#include "server/daemon/grpc_settings.h"
#include "server/daemon/make_registry.h"
#include "server/daemon/ports.h"
#include "server/daemon/status_source.h"
#include "server/daemon/ticker.h"
#include "server/net/offer_threads.h"
#include "server/rpc/call_server.h"
#include "server/services/services.h"

namespace gradwire::server {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
// One polls while the other lists sessions or reads a state.
constexpr std::size_t kAdminThreads = 2;
constexpr absl::Duration kPoll = absl::Milliseconds(10);

// What keeps strangers out of an address: "TLS, client certificates required, tokens". A unix
// socket has no TLS.
std::string ProtectionOf(const ServerOptions& options, const std::string& address) {
  const char* const tokens = options.tokens.empty() ? "no tokens" : "tokens";
  if (IsUnixAddress(address)) return tokens;
  if (options.tls.cert.empty()) return absl::StrCat("no TLS, ", tokens);
  return absl::StrCat("TLS, ", options.tls.ca.empty() ? "" : "client certificates required, ",
                      tokens);
}

class ServerImpl final : public Server {
 public:
  ServerImpl(const ServerOptions& options, const MemoryShares& memory, const SystemShares& shares,
             std::shared_ptr<Registry> registry, std::shared_ptr<AuditLog> audit,
             const std::shared_ptr<const LocalSocket>& local)
      : options_(options),
        memory_(memory),
        shares_(shares),
        audit_(std::move(audit)),
        registry_(std::move(registry)),
        tasks_(std::make_shared<PeriodicTasks>()),
        services_(options, registry_, tasks_,
                  {.connections = [this] { return connections(); },
                   .has_room = [this] { return ports_->HasRoom(); },
                   .diagnose = [this](auto& response) { diagnostics_.Fill(*this, response); },
                   .local_socket = local}),
        offers_(
            {.max_pending = shares.pending_offers},
            [this](wire::MemoryRequest request, uid_t user, wire::GoOn go_on) {
              return services_.AttachMemory(std::move(request), LocalIdentity(user), go_on);
            },
            [this](std::uint64_t start_id, const std::string& probe) {
              return services_.ProveSocket(start_id, probe);
            }) {}

  ~ServerImpl() override { Shutdown(absl::ZeroDuration()); }

  absl::Status Serve();
  void RecordStart() {
    Record("daemon_started", absl::OkStatus(),
           absl::StrCat("version ", GRADWIRE_VERSION, ", ", absl::StrJoin(addresses(), ", ")));
  }

  const std::vector<std::string>& addresses() const override {
    return ports_->addresses(Ports::Side::kMembers);
  }
  std::vector<std::string> admin_addresses() const override {
    if (!ports_->has_admin()) return {};
    return ports_->addresses(Ports::Side::kAdmin);
  }
  std::vector<std::string> http_addresses() const override {
    return http_ == nullptr ? std::vector<std::string>() : http_->addresses();
  }
  std::size_t sessions() const override { return registry_->sessions(); }
  int connections() const override { return ports_->connections(); }
  void SetMaxSessions(int max_sessions) override {
    registry_->SetMaxSessions(static_cast<std::size_t>(max_sessions));
  }
  void SetQuotas(const QuotaLimits& identity, const QuotaLimits& session) override {
    registry_->ledger().SetLimits(identity, session);
  }
  void OnReload(const absl::Status& status, const std::string& changes) override;
  void SetConfigurationText(std::string text) override {
    diagnostics_.SetConfiguration(std::move(text));
  }
  void BeginDrain() override;
  bool idle() const override { return registry_->idle(); }
  std::uint64_t connections_cut() const override { return ports_->connections_cut(); }
  bool Drain(absl::Duration timeout) override;
  void Shutdown(absl::Duration timeout) override;

 private:
  void Record(const std::string& event, const absl::Status& status = absl::OkStatus(),
              const std::string& reason = "");
  absl::StatusOr<std::unique_ptr<CallServer>> ServeCalls(Ports::Side side, Methods methods,
                                                         const Threads& threads);
  bool WaitIdle(absl::Duration timeout) const;
  void Tick(absl::Time now);

  const ServerOptions options_;
  const MemoryShares memory_;
  const SystemShares shares_;
  const std::shared_ptr<AuditLog> audit_;  // null: there is none
  const std::shared_ptr<Registry> registry_;
  const std::shared_ptr<PeriodicTasks> tasks_;
  Services services_;
  OfferThreads offers_;
  std::unique_ptr<Ports> ports_;
  std::unique_ptr<CallServer> calls_;
  std::unique_ptr<CallServer> admin_calls_;  // null: `calls_` has them
  Heart heart_;
  Diagnostics diagnostics_;
  std::unique_ptr<HttpServer> http_;  // null: off
  std::atomic<bool> shut_down_ = false;
  std::atomic<bool> drain_begun_ = false;

  absl::Time next_heartbeat_ = absl::InfinitePast();  // the ticker's
  std::optional<Ticker> ticker_;
};

absl::StatusOr<std::unique_ptr<CallServer>> ServerImpl::ServeCalls(Ports::Side side,
                                                                   Methods methods,
                                                                   const Threads& threads) {
  grpc::ServerBuilder builder;
  SetUpGrpc(options_, memory_, builder);
  ports_->AddTo(side, builder);
  return CallServer::Start(builder, std::move(methods), ports_->DoorOf(side), threads);
}

absl::Status ServerImpl::Serve() {
  auto ports =
      Ports::Open(options_, IntakeLimitsOf(options_, memory_), shares_.connections, audit_);
  if (!ports.ok()) return ports.status();
  ports_ = *std::move(ports);
  auto calls = ServeCalls(Ports::Side::kMembers, services_.MakeMethods(), {});
  if (!calls.ok()) return calls.status();
  calls_ = *std::move(calls);
  if (ports_->has_admin()) {
    auto admin =
        ServeCalls(Ports::Side::kAdmin, services_.MakeAdminMethods(),
                   {.count = kAdminThreads, .name = "gradwire-admin", .connections = [this] {
                      return ports_->admin_connections();
                    }});
    if (!admin.ok()) return admin.status();
    admin_calls_ = *std::move(admin);
  }
  // Before connections arrive, because it checks the deadlines of their streams.
  ticker_.emplace(kTick, [this](absl::Time now) { Tick(now); });
  auto http =
      ServeStatus(options_, MakeStatusSource(*registry_, services_, *ports_, heart_, audit_.get()));
  if (!http.ok()) return http.status();
  http_ = *std::move(http);
  return ports_->Serve([this](UniqueFd connection) { offers_.Submit(std::move(connection)); },
                       [this] { admin_calls_->Wake(); });
}

void ServerImpl::Tick(absl::Time now) {
  heart_.Beat(now);
  registry_->Tick(now);
  tasks_->Tick(now);
  if (now < next_heartbeat_) return;
  registry_->SendHeartbeats();
  next_heartbeat_ = now + options_.heartbeat_interval;
}

void ServerImpl::Record(const std::string& event, const absl::Status& status,
                        const std::string& reason) {
  if (audit_ == nullptr) return;
  audit_->Record(
      {.event = event,
       .outcome = status.ok() ? AuditEvent::Outcome::kDone : AuditEvent::Outcome::kRefused,
       .reason = status.ok() ? reason : std::string(status.message())});
}

void ServerImpl::OnReload(const absl::Status& status, const std::string& changes) {
  Record("configuration_reloaded", status, changes);
  if (audit_ != nullptr) audit_->Reopen();
}

void ServerImpl::BeginDrain() {
  if (!drain_begun_.exchange(true)) Record("drain_begun");
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
    const auto end = std::chrono::system_clock::now() + absl::ToChronoMilliseconds(left);
    calls_->Shutdown(end);
    if (admin_calls_ != nullptr) admin_calls_->Shutdown(end);
  }
  if (ticker_) ticker_->Stop();
  http_.reset();
  if (audit_ == nullptr) return;
  Record("daemon_stopped");
  audit_->Stop();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  if (absl::Status status = options.Validate(); !status.ok()) return status;
  const absl::StatusOr<std::size_t> memory = options.MemoryBytes();
  if (!memory.ok()) return memory.status();
  const SystemShares shares =
      ShareOut(ReadSystemLimits(), options.AllConnections(), options.max_sessions);
  const MemoryShares memory_shares = ShareMemory(*memory);
  std::shared_ptr<AuditLog> audit;
  if (!options.audit_log.empty()) {
    auto opened = AuditLog::Open(options.audit_log);
    if (!opened.ok()) return opened.status();
    audit = *std::move(opened);
  }
  auto registry = MakeRegistry(options, memory_shares.sessions, shares, audit);
  if (!registry.ok()) return registry.status();
  const auto local = Services::FindLocalSocket(options);
  if (!local.ok()) return local.status();
  auto server = std::make_unique<ServerImpl>(options, memory_shares, shares, *std::move(registry),
                                             std::move(audit), *local);
  if (absl::Status status = server->Serve(); !status.ok()) return status;
  server->RecordStart();
  for (const std::string& address : server->addresses()) {
    spdlog::info("listening on {} ({})", address, ProtectionOf(options, address));
  }
  for (const std::string& address : server->admin_addresses()) {
    spdlog::info("listening on {} for admin calls ({})", address, ProtectionOf(options, address));
  }
  if (options.is_leaf()) spdlog::info("a leaf of the daemon at {}", options.upstream);
  return server;
}

}  // namespace gradwire::server
