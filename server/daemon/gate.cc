#include "server/daemon/gate.h"

#include <grpcpp/security/server_credentials.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/access/caller.h"
#include "server/rpc/user_credentials.h"

namespace gradwire::server {

// One user of the host other than the daemon's own and root leaves most connections to the others.
Gate::Gate(const GateOptions& options, Intake::OnCut on_cut, LocalUsers::OnRefused on_refused_user)
    : options_(options),
      on_cut_(std::move(on_cut)),
      intake_(options.intake, on_cut_, [this] { return waits_.Longest(); }),
      users_({.connections = std::max(options.max_connections / 4, 1)}, options.own_users,
             std::move(on_refused_user)) {
  read_guard_.most_held = options.intake.connection_bytes;
  read_guard_.listener = std::make_shared<BreachListener>(
      [this](const GuardedPeer& peer, const char* what) { OnBreach(peer, what); });
}

Gate::~Gate() {
  Stop();
  read_guard_.listener->Close();
}

absl::StatusOr<std::unique_ptr<Gate>> Gate::Open(const GateOptions& options, Intake::OnCut on_cut,
                                                 LocalUsers::OnRefused on_refused_user) {
  std::unique_ptr<Gate> gate(new Gate(options, std::move(on_cut), std::move(on_refused_user)));
  for (const std::string& address : options.listen) {
    absl::StatusOr<std::vector<Listener>> opened = Listener::Open(address, options.socket_mode);
    if (!opened.ok()) return opened.status();
    for (Listener& listener : *opened) {
      gate->addresses_.push_back(listener.address());
      gate->listeners_.push_back(std::move(listener));
    }
  }
  return gate;
}

void Gate::AddTo(grpc::ServerBuilder& builder,
                 const std::shared_ptr<CertificateStore>& certificates) {
  using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  const auto add = [&](std::shared_ptr<grpc::ServerCredentials> credentials) {
    return builder.experimental().AddExternalConnectionAcceptor(Type::FROM_FD,
                                                                std::move(credentials));
  };
  if (std::any_of(listeners_.begin(), listeners_.end(),
                  [](const Listener& listener) { return listener.is_unix(); })) {
    for (LocalUsers::SlotUser& user : users_.SlotUsers()) {
      local_.push_back(add(MakeUserCredentials(std::move(user))));
    }
  }
  has_tls_ = certificates != nullptr;
  tcp_ = add(certificates == nullptr ? grpc::InsecureServerCredentials()
                                     : CertificateStore::MakeCredentials(certificates));
}

absl::Status Gate::Serve(Acceptor::OfferHandler take_offer, std::function<void()> on_connection) {
  if (!ReadsAreGuarded()) {
    spdlog::warn("gRPC's reads cannot be checked: hostile peers may use any amount of memory");
  }
  if (has_tls_) GuardTlsReads(read_guard_);
  hand_over_ = std::make_unique<HandOver>(
      [this](HandOver::Connection connection) { Give(std::move(connection)); });
  if (take_offer == nullptr) take_offer = [](const UniqueFd& /*connection*/) {};
  auto acceptor = Acceptor::Make(
      std::move(listeners_),
      {.max_connections = options_.max_connections,
       .first_byte_timeout = options_.first_byte_timeout,
       .intake = &intake_,
       .users = &users_},
      [this, on_connection = std::move(on_connection)](
          int listener_fd, std::optional<std::size_t> slot, UniqueFd connection) {
        if (on_connection) on_connection();
        hand_over_->Add({.listener_fd = listener_fd, .slot = slot, .fd = std::move(connection)});
      },
      std::move(take_offer));
  if (!acceptor.ok()) return acceptor.status();
  acceptor_ = *std::move(acceptor);
  // Last: calls come from here on, and ask for connections().
  acceptor_->Serve();
  return absl::OkStatus();
}

void Gate::Stop() {
  if (acceptor_ != nullptr) acceptor_->Stop();
  if (hand_over_ != nullptr) hand_over_->Stop();
}

void Gate::Give(HandOver::Connection connection) {
  const int fd = connection.fd.get();
  // With TLS the bytes have to be decrypted first.
  if (connection.slot || !has_tls_) {
    GuardReads(fd, {.address = PeerOf(fd), .user = PeerUser(fd)}, read_guard_);
  }
  FromOutside::NewConnectionParameters parameters;
  parameters.listener_fd = connection.listener_fd;
  // gRPC closes the descriptor from here on.
  parameters.fd = connection.fd.Release();
  (connection.slot ? local_[*connection.slot] : tcp_)->HandleNewConnection(&parameters);
}

void Gate::OnBreach(const GuardedPeer& peer, const char* what) {
  if (peer.address) intake_.OnOffence(*peer.address);
  const std::string name = peer.address ? ToText(*peer.address)
                           : peer.user  ? LocalIdentity(*peer.user)
                                        : "";
  on_cut_(
      CutReason::kFrames, name,
      absl::StrCat(
          "cut ", name.empty() ? "a connection with TLS" : absl::StrCat("the connection of ", name),
          ": it sent ", what));
}

}  // namespace gradwire::server
