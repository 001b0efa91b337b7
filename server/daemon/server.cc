#include "server/daemon/server.h"

#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "base/sync.h"
#include "base/thread_name.h"
#include "proto/wire/memory_offer.h"
#include "proto/wire/process_setup.h"
#include "server/daemon/memory_limit.h"
#include "server/net/acceptor.h"
#include "server/net/offer_threads.h"
#include "server/net/system_shares.h"
#include "server/rpc/call_server.h"
#include "server/rpc/clock.h"
#include "server/rpc/periodic_tasks.h"
#include "server/services/admin_service.h"
#include "server/services/aggregation_service.h"
#include "server/services/health_service.h"
#include "server/services/reflection_service.h"
#include "server/session/registry.h"

namespace gradwire::server {
namespace {

using grpc::experimental::ExternalConnectionAcceptor;

constexpr int kMiB = 1 << 20;
constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kPoll = absl::Milliseconds(10);
// A join carries the whole manifest, whatever the chunks' size.
constexpr std::size_t kLeastMessage = std::size_t{1} << 20;
constexpr std::size_t kMessageHeader = std::size_t{64} << 10;
// What gRPC may hold beside the sessions' reservations: partial messages, read buffers.
constexpr std::size_t kTransportBytes = std::size_t{256} << 20;
// Exchange, Watch and a few calls: a member needs no more on one connection.
constexpr int kStreamsPerConnection = 16;
constexpr int kIdleConnectionMs = 5 * 60 * 1000;
constexpr int kLeastPingMs = 10 * 1000;

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(
      std::clamp<std::int64_t>(absl::ToInt64Milliseconds(duration), 1, 1 << 30));
}

void SetArguments(const ServerOptions& options, grpc::ServerBuilder& builder) {
  const auto max_message =
      static_cast<int>(std::max(options.chunk_bytes, kLeastMessage) + kMessageHeader);
  builder.SetMaxReceiveMessageSize(max_message);
  builder.SetDefaultCompressionAlgorithm(GRPC_COMPRESS_NONE);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  const std::pair<const char*, int> arguments[] = {
      // A megabyte of zeros, compressed, becomes a gigabyte before any limit is looked at.
      {GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0},
      {GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0},
      {GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, Milliseconds(options.handshake_timeout)},
      {GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnection},
      {GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleConnectionMs},
      {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1},
      {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kLeastPingMs},
      {GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0},
      // For chunks of a megabyte; measured, and the same on the members' side.
      {GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kMiB},
      {GRPC_ARG_TCP_READ_CHUNK_SIZE, kMiB},
      {GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 4 * kMiB},
      {GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, 4 * kMiB},
      {GRPC_ARG_HTTP2_BDP_PROBE, 0},
  };
  for (const auto& [name, value] : arguments) builder.AddChannelArgument(name, value);
}

class ServerImpl final : public Server {
 public:
  ServerImpl(const ServerOptions& options, std::size_t memory_bytes, const SystemShares& shares)
      : options_(options),
        shares_(shares),
        registry_(std::make_shared<Registry>(
            Registry::Limits{.memory_bytes = memory_bytes,
                             .max_sessions = static_cast<std::size_t>(options.max_sessions),
                             .memory_segments = shares.segments,
                             .shared_sessions = shares.shared_sessions})),
        ticks_(std::make_shared<PeriodicTasks>()),
        aggregation_(options, registry_, ticks_, [this] { return HasRoom(); }),
        admin_(registry_, ticks_, [this] { return connections(); }),
        offers_({.max_pending = shares.pending_offers},
                [this](wire::MemoryRequest request, wire::GoOn go_on) {
                  return AttachMemory(std::move(request), go_on);
                }) {}

  ~ServerImpl() override { Shutdown(absl::ZeroDuration()); }

  absl::Status Serve();

  const std::vector<std::string>& addresses() const override { return addresses_; }
  std::size_t sessions() const override { return registry_->sessions(); }
  // However many join at once, most connections are left for those that members cannot do without.
  bool HasRoom() const {
    return acceptor_ != nullptr && acceptor_->connections() <= acceptor_->max_connections() / 4;
  }
  int connections() const override { return acceptor_ == nullptr ? 0 : acceptor_->connections(); }
  void BeginDrain() override;
  bool idle() const override { return registry_->idle(); }
  bool Drain(absl::Duration timeout) override;
  void Shutdown(absl::Duration timeout) override;

 private:
  Methods AllMethods();
  absl::StatusOr<wire::MemoryReply> AttachMemory(wire::MemoryRequest request,
                                                 wire::GoOn go_on) const;
  bool WaitIdle(absl::Duration timeout) const;
  void TickLoop();

  const ServerOptions options_;
  const SystemShares shares_;
  const std::shared_ptr<Registry> registry_;
  const std::shared_ptr<PeriodicTasks> ticks_;
  AggregationService aggregation_;
  AdminService admin_;
  OfferThreads offers_;
  std::unique_ptr<HealthService> health_;
  std::unique_ptr<ExternalConnectionAcceptor> connections_;
  std::vector<std::string> addresses_;
  std::unique_ptr<CallServer> calls_;
  std::unique_ptr<Acceptor> acceptor_;
  std::atomic<bool> shut_down_ = false;

  Mutex tick_mutex_;
  CondVar tick_changed_;
  bool stop_ticking_ GRADWIRE_GUARDED_BY(tick_mutex_) = false;
  std::thread ticker_;
};

absl::Status ServerImpl::Serve() {
  std::vector<Listener> listeners;
  for (const std::string& address : options_.listen) {
    absl::StatusOr<std::vector<Listener>> opened = Listener::Open(address);
    if (!opened.ok()) return opened.status();
    for (Listener& listener : *opened) {
      addresses_.push_back(listener.address());
      listeners.push_back(std::move(listener));
    }
  }
  wire::KeepGrpc();
  grpc::ServerBuilder builder;
  SetArguments(options_, builder);
  grpc::ResourceQuota quota("gradwired");
  quota.Resize(registry_->limits().memory_bytes + kTransportBytes);
  builder.SetResourceQuota(quota);
  connections_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      grpc::InsecureServerCredentials());
  absl::StatusOr<std::unique_ptr<CallServer>> calls = CallServer::Start(builder, AllMethods());
  if (!calls.ok()) return calls.status();
  calls_ = *std::move(calls);
  ticker_ = std::thread([this] {
    NameThread("gradwire-tick");
    TickLoop();
  });
  auto acceptor = Acceptor::Make(
      std::move(listeners),
      {.max_connections = shares_.connections,
       .first_byte_timeout = absl::ToChronoMilliseconds(options_.handshake_timeout)},
      [this](int listener_fd, UniqueFd connection) {
        ExternalConnectionAcceptor::NewConnectionParameters parameters;
        parameters.listener_fd = listener_fd;
        parameters.fd = connection.Release();
        connections_->HandleNewConnection(&parameters);
      },
      [this](UniqueFd connection) { offers_.Submit(std::move(connection)); });
  if (!acceptor.ok()) return acceptor.status();
  acceptor_ = *std::move(acceptor);
  acceptor_->Serve();
  return absl::OkStatus();
}

Methods ServerImpl::AllMethods() {
  Methods methods;
  aggregation_.AddTo(methods);
  admin_.AddTo(methods);
  health_ = std::make_unique<HealthService>(methods.services());
  health_->AddTo(methods);
  AddReflection(methods);
  return methods;
}

absl::StatusOr<wire::MemoryReply> ServerImpl::AttachMemory(wire::MemoryRequest request,
                                                           wire::GoOn go_on) const {
  const absl::StatusOr<MemberHandle> seat = registry_->Find(request.token, request.start_id);
  if (!seat.ok()) return seat.status();
  return seat->session->memory().Attach(seat->rank, std::move(request), MonotonicNow, go_on);
}

void ServerImpl::TickLoop() {
  const std::chrono::nanoseconds interval = absl::ToChronoNanoseconds(kTick);
  absl::Time next_heartbeat = MonotonicNow();
  while (true) {
    const absl::Time now = MonotonicNow();
    registry_->Tick(now);
    ticks_->Tick(now);
    if (now >= next_heartbeat) {
      registry_->SendHeartbeats();
      next_heartbeat = now + options_.heartbeat_interval;
    }
    const auto wake = std::chrono::steady_clock::now() + interval;
    MutexLock lock(tick_mutex_);
    while (!stop_ticking_ && tick_changed_.WaitUntil(tick_mutex_, wake)) {
    }
    if (stop_ticking_) return;
  }
}

void ServerImpl::BeginDrain() {
  health_->StopServing();
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
    registry_->FailAll(absl::UnavailableError("the daemon is shutting down"));
    WaitIdle(timeout);
  }
  if (acceptor_ != nullptr) acceptor_->Stop();
  offers_.Stop();
  registry_->StopWork();
  if (calls_ != nullptr) {
    health_->EndWatches();
    const absl::Duration left = std::max(deadline - MonotonicNow(), absl::ZeroDuration());
    // The ticker ends streams that this waits for, so it goes after them.
    calls_->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(left));
  }
  if (ticker_.joinable()) {
    {
      MutexLock lock(tick_mutex_);
      stop_ticking_ = true;
    }
    tick_changed_.NotifyAll();
    ticker_.join();
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  if (absl::Status status = options.Validate(); !status.ok()) return status;
  const absl::StatusOr<std::size_t> memory =
      ParseMemoryLimit(options.memory_limit, AvailableMemory());
  if (!memory.ok()) return memory.status();
  auto server = std::make_unique<ServerImpl>(
      options, *memory,
      ShareOut(ReadSystemLimits(), options.max_connections, options.max_sessions));
  if (absl::Status status = server->Serve(); !status.ok()) return status;
  for (const std::string& address : server->addresses()) spdlog::info("listening on {}", address);
  return server;
}

}  // namespace gradwire::server
