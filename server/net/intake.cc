#include "server/net/intake.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/net/read_guard.h"
#include "server/net/receive_buffer.h"

namespace gradwire::server {
namespace {

using std::chrono::milliseconds;

// A peer on this host can send some 20 MB in this time.
constexpr milliseconds kInterval(10);
// As long as a stranger holds something.
constexpr milliseconds kAlertInterval(2);
// Asking how long threads waited for a processor takes some 200 us.
constexpr milliseconds kWaitsInterval(5);
// A check takes some 256 us for so many connections. Further ones make the interval longer, up to
// the limit.
constexpr std::size_t kConnectionsPerInterval = 256;
constexpr milliseconds kLongestInterval(50);
// Settings, pings and a TLS handshake.
constexpr std::size_t kAllowance = std::size_t{64} << 10;

// What gRPC has read from the socket: what arrived without what still waits in the kernel. Asked
// for in this order, so that what arrives in between makes it less.
std::optional<std::uint64_t> BytesRead(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  int waiting = 0;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
      size < offsetof(tcp_info, tcpi_bytes_received) + sizeof info.tcpi_bytes_received ||
      ioctl(fd, SIOCINQ, &waiting) != 0) {
    return std::nullopt;
  }
  const std::uint64_t arrived = info.tcpi_bytes_received;
  return arrived - std::min<std::uint64_t>(arrived, static_cast<std::uint64_t>(waiting));
}

std::string Why(CutReason reason, const IntakeLimits& limits) {
  switch (reason) {
    case CutReason::kTooMuch:
      return absl::StrCat("allowed on one connection are ", limits.connection_bytes);
    case CutReason::kTooSlow:
      return absl::StrCat("allowed are ", limits.message_timeout.count(), " s for one message");
    case CutReason::kTooManyPeers:
      return absl::StrCat("allowed on all connections without a member are ",
                          limits.strangers_bytes, " together");
    case CutReason::kNoCall:
      return absl::StrCat("bytes must belong to a call within ", limits.call_timeout.count(),
                          " ms; calls that are reset at once do not");
    case CutReason::kTooManyCalls:
      return absl::StrCat("allowed on one connection are ", limits.calls_per_second,
                          " calls a second");
    case CutReason::kFrames:
      break;  // no choice of ChooseCuts
  }
  return "";
}

}  // namespace

std::vector<Cut> ChooseCuts(const std::vector<Held>& held, const IntakeLimits& limits) {
  std::vector<Cut> cuts;
  std::vector<std::size_t> strangers;
  std::size_t sum = 0;
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (held[i].bytes > limits.connection_bytes) {
      cuts.push_back({.index = i, .reason = CutReason::kTooMuch});
    } else if (held[i].calls_too_often) {
      cuts.push_back({.index = i, .reason = CutReason::kTooManyCalls});
    } else if (!held[i].member && held[i].bytes > 0 && held[i].without_call > limits.call_timeout) {
      cuts.push_back({.index = i, .reason = CutReason::kNoCall});
    } else if (!held[i].member && held[i].bytes > 0 && held[i].since > limits.message_timeout) {
      cuts.push_back({.index = i, .reason = CutReason::kTooSlow});
    } else if (!held[i].member) {
      strangers.push_back(i);
      sum += held[i].bytes;
    }
  }
  std::stable_sort(strangers.begin(), strangers.end(),
                   [&](std::size_t a, std::size_t b) { return held[a].bytes > held[b].bytes; });
  for (auto it = strangers.begin(); sum > limits.strangers_bytes; ++it) {
    cuts.push_back({.index = *it, .reason = CutReason::kTooManyPeers});
    sum -= held[*it].bytes;
  }
  return cuts;
}

std::size_t HeldBytes::Update(std::uint64_t read, std::uint64_t explained) {
  const std::int64_t ahead =
      static_cast<std::int64_t>(read) - static_cast<std::int64_t>(explained) - forgiven_;
  if (ahead < 0) forgiven_ += ahead;
  return ahead > static_cast<std::int64_t>(kAllowance)
             ? static_cast<std::size_t>(ahead) - kAllowance
             : 0;
}

bool Intake::Admit(const PeerAddress& peer, Clock::time_point now) {
  TakeOffences(now);
  const PeerAddress origin = AddressRates::Origin(peer);
  const auto found = newcomers_.find(origin);
  return (found == newcomers_.end() || found->second < limits_.newcomers) &&
         rates_.Take(origin, now);
}

void Intake::EndNewcomer(Connection& connection) {
  if (!std::exchange(connection.newcomer, false)) return;
  const auto found = newcomers_.find(AddressRates::Origin(connection.peer));
  if (--found->second == 0) newcomers_.erase(found);
}

void Intake::Add(int fd) {
  const std::optional<PeerAddress> peer = PeerOf(fd);
  if (!peer) return;
  auto meter = std::make_shared<TrafficMeter>();
  const auto now = Clock::now();
  if (connections_.empty()) next_ = now + kInterval;
  connections_.insert_or_assign(fd, Connection{.peer = *peer,
                                               .meter = meter,
                                               .last_message = now,
                                               .last_call = now,
                                               .call_tokens = limits_.calls_at_once,
                                               .narrow = Narrow(fd)});
  ++newcomers_[AddressRates::Origin(*peer)];
  MutexLock lock(mutex_);
  meters_.insert_or_assign(*peer, std::move(meter));
}

bool Intake::Remove(int fd) {
  const auto found = connections_.find(fd);
  if (found == connections_.end()) return true;
  const bool explained = found->second.cut || found->second.meter->calls() > 0;
  {
    MutexLock lock(mutex_);
    // A new connection may have the same address already.
    const auto meter = meters_.find(found->second.peer);
    if (meter != meters_.end() && meter->second == found->second.meter) meters_.erase(meter);
  }
  EndNewcomer(found->second);
  connections_.erase(found);
  return explained;
}

std::shared_ptr<TrafficMeter> Intake::Find(const std::string& grpc_peer) const {
  const std::optional<PeerAddress> peer = ParsePeer(grpc_peer);
  if (!peer) return nullptr;
  MutexLock lock(mutex_);
  const auto found = meters_.find(*peer);
  return found == meters_.end() ? nullptr : found->second;
}

void Intake::OnOffence(const PeerAddress& peer) {
  MutexLock lock(mutex_);
  offenders_.push_back(AddressRates::Origin(peer));
}

void Intake::TakeOffences(Clock::time_point now) {
  std::vector<PeerAddress> offenders;
  {
    MutexLock lock(mutex_);
    offenders.swap(offenders_);
  }
  for (const PeerAddress& origin : offenders) rates_.OnOffence(origin, now);
}

std::optional<Intake::Clock::time_point> Intake::next_check() const {
  if (connections_.empty()) return std::nullopt;
  return next_;
}

Held Intake::Look(Connection& connection, std::uint64_t read, Clock::time_point now) const {
  const TrafficMeter& meter = *connection.meter;
  const std::size_t bytes = connection.held.Update(read, meter.explained());
  const std::uint64_t taken = meter.taken();
  if (std::exchange(connection.taken, taken) != taken || bytes == 0) connection.last_message = now;
  if (meter.has_call() || bytes == 0) {
    connection.last_call = now;
    connection.waited = waited_;
  }
  const std::chrono::nanoseconds excused = std::min<std::chrono::nanoseconds>(
      waited_ - connection.waited, (limits_.call_timeout_with_waits - 1) * limits_.call_timeout);
  const std::uint64_t calls = meter.calls();
  const double seconds = std::chrono::duration<double>(now - checked_).count();
  connection.call_tokens =
      std::min(limits_.calls_at_once, connection.call_tokens + seconds * limits_.calls_per_second) -
      static_cast<double>(calls - std::exchange(connection.calls, calls));
  return {.bytes = bytes,
          .member = meter.has_member(),
          .since = now - connection.last_message,
          .without_call = now - connection.last_call - excused,
          .calls_too_often = connection.call_tokens < 0};
}

// Only while a stranger holds something. What was waited before is no excuse for it.
void Intake::UpdateWaits(bool alert, Clock::time_point now) {
  const bool begins = alert && !std::exchange(alert_, alert);
  if (!alert || (!begins && now < waits_updated_ + kWaitsInterval)) return;
  const std::chrono::nanoseconds waited = waits_();
  if (!begins) waited_ += waited;
  waits_updated_ = now;
}

void Intake::Check(Clock::time_point now) {
  if (connections_.empty() || now < next_) return;
  UpdateWaits(alert_, now);
  std::vector<Held> held;
  std::vector<int> fds;
  for (auto& [fd, connection] : connections_) {
    if (connection.cut) continue;
    const std::optional<std::uint64_t> read = BytesRead(fd);
    if (!read) continue;  // it ends
    held.push_back(Look(connection, *read, now));
    fds.push_back(fd);
    if (connection.taken > 0 || connection.meter->has_member()) EndNewcomer(connection);
    if (connection.narrow && connection.taken > 0) {
      Widen(fd);
      connection.narrow = false;
    }
  }
  checked_ = now;
  for (const Cut& cut : ChooseCuts(held, limits_)) {
    const int fd = fds[cut.index];
    CutOne(fd, connections_.at(fd), held[cut.index], cut.reason);
  }
  const bool alert = std::any_of(held.begin(), held.end(),
                                 [](const Held& one) { return one.bytes > 0 && !one.member; });
  UpdateWaits(alert, now);
  const milliseconds interval = alert ? kAlertInterval : kInterval;
  const auto times = static_cast<int>(1 + connections_.size() / kConnectionsPerInterval);
  next_ = Clock::now() + std::min(interval * times, kLongestInterval);
}

void Intake::CutOne(int fd, Connection& connection, const Held& held, CutReason reason) {
  connection.cut = true;
  Disconnect(fd);
  rates_.OnOffence(AddressRates::Origin(connection.peer), Clock::now());
  const std::string peer = ToText(connection.peer);
  on_cut_(reason, peer,
          absl::StrCat("cut the connection of ", peer, ": it brought ", held.bytes,
                       " bytes that no complete message explains; ", Why(reason, limits_)));
}

}  // namespace gradwire::server
