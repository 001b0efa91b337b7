#include "server/net/acceptor.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/thread_name.h"
#include "proto/wire/memory_offer.h"

namespace gradwire::server {
namespace {

constexpr int kAcceptsAtOnce = 64;   // before ended connections are looked at again
constexpr int kPauseMs = 20;         // when not even the reserve helps
constexpr int kSilentCheckMs = 200;  // between looks at connections that say nothing
constexpr int kWaitingCheckMs = 20;  // between looks at connections that came too fast

absl::Status SystemError(const std::string& what) {
  return Coded(ErrorCode::kSystem,
               absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno))));
}

// Resets the connection (linger time 0): the peer notices at once, and no TIME_WAIT remains.
void Refuse(UniqueFd connection) {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  setsockopt(connection.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

// Reads, and drops, what is left in a socket that gets no more.
void Drain(int fd) {
  std::array<char, std::size_t{64} << 10> dropped;
  while (recv(fd, dropped.data(), dropped.size(), MSG_DONTWAIT) > 0) {
  }
}

// Whether the peer has closed it, or broken it.
bool Ended(int fd) {
  char first = 0;
  const ssize_t peeked = recv(fd, &first, 1, MSG_PEEK | MSG_DONTWAIT);
  return peeked == 0 || (peeked < 0 && errno != EAGAIN && errno != EINTR);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Make(std::vector<Listener> listeners,
                                                         const Options& options, Handler handler,
                                                         OfferHandler offer_handler) {
  std::unique_ptr<Acceptor> acceptor(
      new Acceptor(std::move(listeners), options, std::move(handler), std::move(offer_handler)));
  if (absl::Status status = acceptor->Prepare(); !status.ok()) return status;
  return acceptor;
}

void Acceptor::Serve() {
  thread_ = std::thread([this] {
    NameThread("gradwire-accept");
    Run();
  });
}

Acceptor::Acceptor(std::vector<Listener> listeners, const Options& options, Handler handler,
                   OfferHandler offer_handler)
    : listeners_(std::move(listeners)),
      max_connections_(options.max_connections),
      first_byte_timeout_(options.first_byte_timeout),
      intake_(options.intake),
      users_(options.users),
      handler_(std::move(handler)),
      offer_handler_(std::move(offer_handler)) {}

Acceptor::~Acceptor() { Stop(); }

absl::Status Acceptor::Prepare() {
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return SystemError("epoll_create1");
  stop_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_.valid()) return SystemError("eventfd");
  reserve_ = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!reserve_.valid()) return SystemError("/dev/null");
  if (absl::Status status = WatchFd(stop_.get(), EPOLLIN); !status.ok()) return status;
  for (const Listener& listener : listeners_) {
    if (absl::Status status = WatchFd(listener.fd(), EPOLLIN); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Acceptor::WatchFd(int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return SystemError("epoll_ctl");
  return absl::OkStatus();
}

void Acceptor::Stop() {
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  // An eventfd at 0 always has room for a 1.
  [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof one);
  thread_.join();
  listeners_.clear();
  for (const auto& [fd, open] : open_) {
    if (intake_ != nullptr) intake_->Remove(fd);
  }
  open_.clear();
  silent_.clear();
  waiting_.clear();
  connections_ = 0;
}

void Acceptor::Run() {
  std::array<epoll_event, 128> events{};
  while (true) {
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                 WaitMs(Clock::now()));
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<std::size_t>(i)].data.fd;
      // The eventfd wakes epoll_wait, which waits without a timeout while no connection is silent.
      if (fd == stop_.get()) return;
      OnEvent(fd);
    }
    const Clock::time_point now = Clock::now();
    CloseSilent(now);
    if (intake_ == nullptr) continue;
    intake_->Check(now);
    AdmitWaiting(now);
  }
}

int Acceptor::WaitMs(Clock::time_point now) const {
  int wait = silent_.empty() ? -1 : kSilentCheckMs;
  if (!waiting_.empty()) wait = kWaitingCheckMs;
  const auto check = intake_ == nullptr ? std::nullopt : intake_->next_check();
  if (!check) return wait;
  // Rounded up: a wait that ends too early would be followed by another one at once.
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*check - now).count();
  const int check_ms = static_cast<int>(std::max<std::int64_t>(left, 0));
  return wait < 0 ? check_ms : std::min(wait, check_ms);
}

void Acceptor::OnEvent(int fd) {
  if (silent_.contains(fd)) return OnFirstByte(fd);
  if (const auto ended = open_.find(fd); ended != open_.end()) {
    Open open = std::move(ended->second);
    open_.erase(ended);
    return OnEnd(fd, std::move(open));
  }
  const auto listener = std::find_if(listeners_.begin(), listeners_.end(),
                                     [fd](const Listener& one) { return one.fd() == fd; });
  if (listener != listeners_.end()) AcceptAll(*listener);
}

void Acceptor::OnEnd(int fd, Open open) {
  // Not implied by closing the duplicate: gRPC may still hold the same open file.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  if (intake_ != nullptr && !intake_->Remove(fd)) ++without_call_;
  // What a user has left must not be read when another one has the slot. Nothing comes after it,
  // because both directions are shut down.
  if (open.user && !users_->KeepsSlot(open.user->id)) Drain(fd);
  Leave(open.user);
  --connections_;
}

void Acceptor::Leave(const std::optional<User>& user) {
  if (user) users_->Leave(user->id, Clock::now());
}

// Peeks, because the byte belongs to gRPC or to the offer's reader.
void Acceptor::OnFirstByte(int fd) {
  const auto found = silent_.find(fd);
  char first = 0;
  const ssize_t peeked = recv(fd, &first, 1, MSG_PEEK | MSG_DONTWAIT);
  if (peeked < 0 && (errno == EAGAIN || errno == EINTR)) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  Silent silent = std::move(found->second);
  silent_.erase(found);
  --connections_;
  // The peer has closed the connection, or it is broken; `silent` closes this end.
  if (peeked <= 0) return Leave(silent.user);
  // An HTTP/2 connection begins with the preface "PRI", so one byte tells the two apart.
  if (first == wire::kMemoryOfferByte) {
    Leave(silent.user);
    return offer_handler_(std::move(silent.connection));
  }
  HandOver(silent.listener_fd, silent.user, std::move(silent.connection));
}

// A connection that sends nothing holds a descriptor, and gRPC does not know of it yet.
void Acceptor::CloseSilent(Clock::time_point now) {
  for (auto it = silent_.begin(); it != silent_.end();) {
    if (now < it->second.deadline) {
      ++it;
      continue;
    }
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, it->first, nullptr);
    Leave(it->second.user);
    it = silent_.erase(it);
    --connections_;
    ++without_call_;
  }
}

// The listeners are level-triggered: what is left after kAcceptsAtOnce is reported again.
// ECONNABORTED is about a peer that is already gone.
void Acceptor::AcceptAll(const Listener& listener) {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    UniqueFd connection(accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (connection.valid()) {
      Take(listener, std::move(connection));
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      return RefuseOne(listener);
    }
    if (errno != EINTR && errno != ECONNABORTED) return;
  }
}

void Acceptor::Take(const Listener& listener, UniqueFd connection) {
  if (connections_ >= max_connections_) {
    ++refused_;
    return Refuse(std::move(connection));
  }
  // TCP carries no offers of memory, so gRPC gets the connection at once. Without TCP_NODELAY,
  // Nagle's algorithm holds small frames back until the peer's acknowledgement.
  if (!listener.is_unix()) {
    const int on = 1;
    setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return Enter(listener.fd(), std::move(connection));
  }
  TakeLocal(listener, std::move(connection));
}

void Acceptor::TakeLocal(const Listener& listener, UniqueFd connection) {
  const int fd = connection.get();
  std::optional<User> user;
  if (users_ != nullptr) {
    const std::optional<uid_t> id = PeerUser(fd);
    const auto slot = id ? users_->Enter(*id, Clock::now()) : std::nullopt;
    if (!slot) {
      ++refused_;
      return Refuse(std::move(connection));
    }
    user = {.id = *id, .slot = *slot};
  }
  if (!WatchFd(fd, EPOLLIN).ok()) {
    Leave(user);
    ++refused_;
    return Refuse(std::move(connection));
  }
  ++connections_;
  silent_.emplace(fd, Silent{.listener_fd = listener.fd(),
                             .user = user,
                             .connection = std::move(connection),
                             .deadline = Clock::now() + first_byte_timeout_});
}

void Acceptor::Enter(int listener_fd, UniqueFd connection) {
  const std::optional<PeerAddress> peer =
      intake_ == nullptr ? std::nullopt : PeerOf(connection.get());
  const Clock::time_point now = Clock::now();
  if (!peer) return HandOver(listener_fd, std::nullopt, std::move(connection));
  const PeerAddress origin = AddressRates::Origin(*peer);
  // In the order in which they came.
  if (!waiting_.contains(origin) && intake_->Admit(origin, now)) {
    return HandOver(listener_fd, std::nullopt, std::move(connection));
  }
  ++connections_;
  waiting_[origin].push_back({.listener_fd = listener_fd,
                              .connection = std::move(connection),
                              .deadline = now + first_byte_timeout_});
}

// One that has ended takes no other's turn.
void Acceptor::AdmitWaiting(Clock::time_point now) {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    std::deque<Waiting>& queue = it->second;
    while (!queue.empty()) {
      const bool late = now >= queue.front().deadline;
      const bool ended = late || Ended(queue.front().connection.get());
      if (!ended && !intake_->Admit(it->first, now)) break;
      Waiting first = std::move(queue.front());
      queue.pop_front();
      --connections_;
      if (late) {
        ++refused_;
        Refuse(std::move(first.connection));
      } else if (!ended) {
        HandOver(first.listener_fd, std::nullopt, std::move(first.connection));
      }
    }
    it = queue.empty() ? waiting_.erase(it) : std::next(it);
  }
}

// gRPC owns and closes the connection without telling anybody. The duplicate lets epoll report its
// end, so that connections can be counted.
void Acceptor::HandOver(int listener_fd, const std::optional<User>& user, UniqueFd connection) {
  UniqueFd duplicate(fcntl(connection.get(), F_DUPFD_CLOEXEC, 0));
  // Both directions shut down is the end, whoever ended it: gRPC shuts a socket down before it
  // closes its own descriptor.
  if (!duplicate.valid() || !WatchFd(duplicate.get(), EPOLLHUP).ok()) {
    Leave(user);
    ++refused_;
    return Refuse(std::move(connection));
  }
  const int key = duplicate.get();
  open_.emplace(key, Open{.duplicate = std::move(duplicate), .user = user});
  // Before gRPC has it, because calls look for their connection.
  if (intake_ != nullptr) intake_->Add(key);
  ++connections_;
  handler_(listener_fd, user ? std::optional(user->slot) : std::nullopt, std::move(connection));
}

// Without a free descriptor, accept fails and the connection stays in the backlog, so a
// level-triggered epoll would spin. Closing the reserve makes room to accept it and to refuse it.
void Acceptor::RefuseOne(const Listener& listener) {
  reserve_.Reset();
  UniqueFd connection(accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  const bool accepted = connection.valid();
  if (accepted) {
    ++refused_;
    Refuse(std::move(connection));
  }
  reserve_ = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!accepted) poll(nullptr, 0, kPauseMs);
}

}  // namespace gradwire::server
