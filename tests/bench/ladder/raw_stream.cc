// Raw sockets: one way into a server that drops, or there and back.
#include <poll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

#include "tests/bench/ladder/child_settings.h"
#include "tests/bench/ladder/latency.h"
#include "tests/bench/ladder/raw_socket.h"
#include "tests/bench/process_group.h"

namespace gradwire::bench {
namespace {

constexpr std::size_t kBlock = 64 * kKiB;
constexpr std::size_t kBlocks = kMiB / kBlock;

// Where received bytes go: one buffer that stays, or as in gRPC a new block for every 64 KiB, which
// goes when the MiB that it belongs to is complete.
class Receiver {
 public:
  explicit Receiver(const ChildSettings& settings) : fresh_(settings.fresh_memory), buffer_(kMiB) {}
  Receiver(const Receiver&) = delete;
  ~Receiver() {
    for (const std::vector<void*>& blocks : {empty_, full_}) {
      for (void* block : blocks) std::free(block);
    }
  }

  // Waits for bytes; 0 when no more come.
  std::size_t Receive(int fd) {
    const ssize_t got = fresh_ ? ReceiveIntoBlocks(fd) : read(fd, buffer_.data(), buffer_.size());
    if (got < 0) SocketDies("nothing comes");
    return static_cast<std::size_t>(got);
  }
  // What came, unless it is in blocks.
  const std::byte* buffer() const { return buffer_.data(); }

 private:
  ssize_t ReceiveIntoBlocks(int fd) {
    while (empty_.size() < kBlocks) empty_.push_back(std::malloc(kBlock));
    std::array<iovec, kBlocks> parts;
    for (std::size_t i = 0; i < kBlocks; ++i) parts[i] = {.iov_base = empty_[i], .iov_len = kBlock};
    const ssize_t got = readv(fd, parts.data(), static_cast<int>(kBlocks));
    if (got <= 0) return got;
    const auto used = (got + static_cast<ssize_t>(kBlock) - 1) / static_cast<ssize_t>(kBlock);
    full_.insert(full_.end(), empty_.begin(), empty_.begin() + used);
    empty_.erase(empty_.begin(), empty_.begin() + used);
    if (full_.size() < kBlocks) return got;
    for (void* block : full_) std::free(block);
    full_.clear();
    return got;
  }

  const bool fresh_;
  std::vector<std::byte> buffer_;
  std::vector<void*> empty_;
  std::vector<void*> full_;
};

void SendOneWay(int fd, const ChildSettings& settings, const std::vector<std::byte>& source) {
  for (std::size_t sent = 0; sent < settings.bytes; sent += source.size()) {
    SendAll(fd, std::span(source).first(std::min(source.size(), settings.bytes - sent)));
  }
  std::byte acknowledged;
  ReceiveAll(fd, {&acknowledged, 1});
}

// Sends and receives `bytes` at once, no more than `in_flight` messages ahead of what came back.
// Buffers that are shorter are used again and again.
class DuplexClient {
 public:
  DuplexClient(const ChildSettings& settings, std::size_t buffer_bytes)
      : settings_(settings),
        fd_(ConnectTo(settings.address, settings.send_buffer)),
        source_(buffer_bytes / sizeof(float), 1.0F + static_cast<float>(settings.rank)),
        target_(source_.size()) {}

  int fd() const { return fd_.get(); }
  const std::vector<float>& target() const { return target_; }

  void Run() {
    sent_ = received_ = 0;
    while (received_ < settings_.bytes) {
      const std::size_t chunk = settings_.message_bytes;
      const std::size_t limit =
          std::min(settings_.bytes, (received_ / chunk + settings_.in_flight) * chunk);
      std::size_t moved = 0;
      if (sent_ < limit) {
        const auto part = Part(std::as_writable_bytes(std::span(source_)), sent_);
        moved = SendSome(fd(), part.first(std::min(part.size(), limit - sent_)));
        sent_ += moved;
      }
      const auto part = Part(std::as_writable_bytes(std::span(target_)), received_);
      const std::size_t got = ReceiveSome(fd(), part);
      received_ += got;
      if (moved + got == 0) Wait(sent_ < limit);
    }
  }

 private:
  std::span<std::byte> Part(std::span<std::byte> buffer, std::size_t position) const {
    const std::span<std::byte> rest = buffer.subspan(position % buffer.size());
    return rest.first(std::min(rest.size(), settings_.bytes - position));
  }

  void Wait(bool to_send) const {
    const auto events = static_cast<short>(POLLIN | (to_send ? POLLOUT : 0));
    pollfd ready{.fd = fd(), .events = events, .revents = 0};
    if (poll(&ready, 1, kSocketTimeoutMs) <= 0) SocketDies("nothing moves");
  }

  const ChildSettings settings_;
  const UniqueFd fd_;
  std::vector<float> source_;
  std::vector<float> target_;
  std::size_t sent_ = 0;
  std::size_t received_ = 0;
};

void Introduce(int fd, const ChildSettings& settings) {
  const auto rank = static_cast<std::byte>(settings.rank);
  SendAll(fd, {&rank, 1});
}

// Every element is the sum of 1 + rank over the ranks.
void CheckSum(const std::vector<float>& sum, std::size_t members) {
  const auto expected = static_cast<float>(members * (members + 1) / 2);
  if (sum.front() != expected || sum.back() != expected) SocketDies("a wrong sum came back");
}

}  // namespace

int ServeRaw(const ChildSettings& settings) {
  const UniqueFd fd = std::move(AcceptAll(settings.address, 1, settings.send_buffer)[0]);
  Receiver receiver(settings);
  std::size_t received = 0;
  while (const std::size_t got = receiver.Receive(fd.get())) {
    if (settings.duplex) {
      SendAll(fd.get(), {receiver.buffer(), got});
      continue;
    }
    received += got;
    if (received < settings.bytes) continue;
    received -= settings.bytes;
    const std::byte acknowledged{1};
    SendAll(fd.get(), {&acknowledged, 1});
  }
  return 0;
}

int RunRawClient(const ChildSettings& settings) {
  if (!settings.duplex) {
    const UniqueFd fd = ConnectTo(settings.address, settings.send_buffer);
    const std::vector<std::byte> source(settings.message_bytes, std::byte{1});
    AnswerParent([&] {
      SendOneWay(fd.get(), settings, source);
      return "";
    });
    return 0;
  }
  const bool aggregated = settings.members > 1;
  DuplexClient client(settings, aggregated ? settings.bytes : settings.message_bytes);
  if (aggregated) Introduce(client.fd(), settings);
  AnswerParent([&] {
    for (std::size_t round = 0; round < settings.rounds; ++round) client.Run();
    if (aggregated) CheckSum(client.target(), settings.members);
    return "";
  });
  return 0;
}

int RunRawLatency(const ChildSettings& settings) {
  const UniqueFd fd = ConnectTo(settings.address, settings.send_buffer);
  Introduce(fd.get(), settings);
  const std::vector<float> source(settings.bytes / sizeof(float),
                                  1.0F + static_cast<float>(settings.rank));
  std::vector<float> target(source.size());
  AnswerParent([&] {
    // All members make the same number of rounds.
    const std::string percentiles = SampleLatency(
        [&] {
          SendAll(fd.get(), std::as_bytes(std::span(source)));
          ReceiveAll(fd.get(), std::as_writable_bytes(std::span(target)));
        },
        kSamples, std::chrono::milliseconds(kSocketTimeoutMs));
    CheckSum(target, settings.members);
    return percentiles;
  });
  return 0;
}

}  // namespace gradwire::bench
