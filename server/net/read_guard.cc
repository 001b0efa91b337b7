#include "server/net/read_guard.h"

#include <dlfcn.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "server/net/frame_guard.h"

namespace gradwire::server {
namespace {

// One connection. Only gRPC's reads use it, of which there is one at a time.
class Guarded {
 public:
  Guarded(const GuardedPeer& peer, const ReadGuardOptions& options)
      : peer_(peer), frames_(options.most_held), listener_(options.listener) {}

  // False: gRPC must not get the bytes.
  bool Look(std::span<const std::uint8_t> bytes) {
    if (broken_) return false;
    const char* what = frames_.Look(bytes, FrameGuard::Clock::now());
    broken_ = what != nullptr;
    if (broken_ && listener_ != nullptr) listener_->Tell(peer_, what);
    return !broken_;
  }
  bool broken() const { return broken_; }

 private:
  const GuardedPeer peer_;
  FrameGuard frames_;
  const std::shared_ptr<BreachListener> listener_;
  bool broken_ = false;
};

// By descriptor, without a lock: close and recvmsg are called everywhere. Pages are never freed.
class GuardedTable {
 public:
  Guarded* Find(int fd) const {
    const std::atomic<Guarded*>* slot = SlotOf(fd);
    return slot == nullptr ? nullptr : slot->load(std::memory_order_acquire);
  }

  void Put(int fd, std::unique_ptr<Guarded> guarded) {
    if (fd < 0 || static_cast<std::size_t>(fd) >= kPages * kPageSize) return;
    std::atomic<Page*>& page = pages_[static_cast<std::size_t>(fd) / kPageSize];
    if (page.load(std::memory_order_acquire) == nullptr) {
      auto made = std::make_unique<Page>();
      Page* none = nullptr;
      if (page.compare_exchange_strong(none, made.get())) static_cast<void>(made.release());
    }
    delete SlotOf(fd)->exchange(guarded.release());
  }

  void Erase(int fd) {
    std::atomic<Guarded*>* slot = SlotOf(fd);
    if (slot != nullptr && slot->load(std::memory_order_relaxed) != nullptr) {
      delete slot->exchange(nullptr);
    }
  }

 private:
  static constexpr std::size_t kPageSize = 1024;
  static constexpr std::size_t kPages = 1024;
  using Page = std::array<std::atomic<Guarded*>, kPageSize>;

  std::atomic<Guarded*>* SlotOf(int fd) const {
    const auto at = static_cast<std::size_t>(fd);  // a negative one becomes too large
    if (at >= kPages * kPageSize) return nullptr;
    Page* page = pages_[at / kPageSize].load(std::memory_order_acquire);
    return page == nullptr ? nullptr : &(*page)[at % kPageSize];
  }

  std::array<std::atomic<Page*>, kPages> pages_{};
};

// Constant-initialised and never destroyed: close is called before main and after it.
constinit GuardedTable guarded_table;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

struct TlsSettings {
  Mutex mutex;
  std::optional<ReadGuardOptions> options GRADWIRE_GUARDED_BY(mutex);
};

TlsSettings& Tls() {
  static auto& settings = *new TlsSettings;
  return settings;
}

void DeleteGuarded(void* /*ssl*/, void* guarded, CRYPTO_EX_DATA* /*data*/, int /*index*/,
                   long /*number*/,  // NOLINT(google-runtime-int): OpenSSL's signature
                   void* /*more*/) {
  delete static_cast<Guarded*>(guarded);
}

int TlsIndex() {
  static const int index = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, DeleteGuarded);
  return index;
}

// Null: it is a client's, or nothing is registered.
Guarded* GuardedOf(SSL* ssl) {
  if (SSL_is_server(ssl) == 0) return nullptr;
  if (void* found = SSL_get_ex_data(ssl, TlsIndex())) return static_cast<Guarded*>(found);
  std::unique_ptr<Guarded> made;
  {
    MutexLock lock(Tls().mutex);
    if (!Tls().options) return nullptr;
    made = std::make_unique<Guarded>(GuardedPeer(), *Tls().options);
  }
  if (SSL_set_ex_data(ssl, TlsIndex(), made.get()) != 1) return nullptr;
  return made.release();
}

// The library's function that one of this program hides.
template <typename Function>
Function* Hidden(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

bool LookAt(Guarded& guarded, const msghdr& message, std::size_t size) {
  for (std::size_t i = 0; i < message.msg_iovlen && size > 0; ++i) {
    const iovec& part = message.msg_iov[i];
    const std::size_t bytes = std::min(part.iov_len, size);
    if (!guarded.Look({static_cast<const std::uint8_t*>(part.iov_base), bytes})) return false;
    size -= bytes;
  }
  return true;
}

// gRPC takes it for bytes that were damaged on their way.
int RefuseTls() {
  ERR_raise_data(ERR_LIB_USER, ERR_R_PASSED_INVALID_ARGUMENT, "frames that no gRPC client sends");
  return -1;
}

}  // namespace

void BreachListener::Tell(const GuardedPeer& peer, const char* what) {
  MutexLock lock(mutex_);
  if (on_breach_) on_breach_(peer, what);
}

void BreachListener::Close() {
  MutexLock lock(mutex_);
  on_breach_ = nullptr;
}

void GuardReads(int fd, const GuardedPeer& peer, const ReadGuardOptions& options) {
  guarded_table.Put(fd, std::make_unique<Guarded>(peer, options));
}

void GuardTlsReads(const ReadGuardOptions& options) {
  MutexLock lock(Tls().mutex);
  Tls().options = options;
}

bool ReadsAreGuarded() {
  const auto first = [](const char* name) { return dlsym(RTLD_DEFAULT, name); };
  return first("recvmsg") == reinterpret_cast<void*>(&::recvmsg) &&
         first("SSL_read") == reinterpret_cast<void*>(&::SSL_read) &&
         first("close") == reinterpret_cast<void*>(&::close);
}

// AF_UNSPEC dissolves a TCP connection: the peer gets a reset, and gRPC, which reads an error,
// frees what it holds. After a mere shutdown a gRPC client whose write does not fit its windows
// would hang, because it closes a connection only when its write has ended.
void Disconnect(int fd) {
  const sockaddr nobody{.sa_family = AF_UNSPEC, .sa_data = {}};
  if (connect(fd, &nobody, sizeof nobody) != 0) shutdown(fd, SHUT_RDWR);
}

}  // namespace gradwire::server

// Libraries find them only if they are exported.
#pragma GCC visibility push(default)
extern "C" {

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  using gradwire::server::guarded_table;
  static auto* const hidden = gradwire::server::Hidden<decltype(recvmsg)>("recvmsg");
  const ssize_t size = hidden(fd, message, flags);
  if (size <= 0 || (flags & (MSG_ERRQUEUE | MSG_PEEK)) != 0) return size;
  gradwire::server::Guarded* guarded = guarded_table.Find(fd);
  if (guarded == nullptr ||
      gradwire::server::LookAt(*guarded, *message, static_cast<std::size_t>(size))) {
    return size;
  }
  gradwire::server::Disconnect(fd);
  errno = ECONNRESET;
  return -1;
}

int close(int fd) {
  static auto* const hidden = gradwire::server::Hidden<decltype(close)>("close");
  // Before another thread can get the descriptor's number.
  gradwire::server::guarded_table.Erase(fd);
  return hidden(fd);
}

int SSL_read(SSL* ssl, void* buffer, int most) {
  static auto* const hidden = gradwire::server::Hidden<decltype(SSL_read)>("SSL_read");
  gradwire::server::Guarded* guarded = gradwire::server::GuardedOf(ssl);
  if (guarded != nullptr && guarded->broken()) return gradwire::server::RefuseTls();
  const int size = hidden(ssl, buffer, most);
  if (size <= 0 || guarded == nullptr ||
      guarded->Look({static_cast<const std::uint8_t*>(buffer), static_cast<std::size_t>(size)})) {
    return size;
  }
  return gradwire::server::RefuseTls();
}

}  // extern "C"
#pragma GCC visibility pop
