#include "server/net/peer_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace gradwire::server {
namespace {

constexpr std::array<unsigned char, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr auto kIpv4 = kMapped.size();  // where the address begins in a mapped one

void SetIpv4(const in_addr& from, PeerAddress& to) {
  std::copy(kMapped.begin(), kMapped.end(), to.ip.begin());
  std::memcpy(&to.ip[kIpv4], &from, sizeof from);
}

}  // namespace

bool IsIpv4(const PeerAddress& peer) {
  return std::equal(kMapped.begin(), kMapped.end(), peer.ip.begin());
}

std::optional<PeerAddress> PeerOf(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return std::nullopt;
  PeerAddress peer;
  if (storage.ss_family == AF_INET) {
    sockaddr_in ipv4{};
    std::memcpy(&ipv4, &storage, sizeof ipv4);
    SetIpv4(ipv4.sin_addr, peer);
    peer.port = ntohs(ipv4.sin_port);
    return peer;
  }
  if (storage.ss_family != AF_INET6) return std::nullopt;
  sockaddr_in6 ipv6{};
  std::memcpy(&ipv6, &storage, sizeof ipv6);
  std::memcpy(peer.ip.data(), &ipv6.sin6_addr, peer.ip.size());
  peer.port = ntohs(ipv6.sin6_port);
  return peer;
}

std::optional<PeerAddress> ParsePeer(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  PeerAddress peer;
  std::uint32_t port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(text.substr(colon + 1), &port) ||
      port > 65535) {
    return std::nullopt;
  }
  peer.port = static_cast<std::uint16_t>(port);
  absl::string_view host = absl::string_view(text).substr(0, colon);
  if (absl::ConsumePrefix(&host, "ipv4:")) {
    in_addr ipv4{};
    if (inet_pton(AF_INET, std::string(host).c_str(), &ipv4) != 1) return std::nullopt;
    SetIpv4(ipv4, peer);
    return peer;
  }
  if (!absl::ConsumePrefix(&host, "ipv6:")) return std::nullopt;
  // gRPC writes a URI, in which brackets are encoded, and so is the "%" before an interface's name.
  std::string ip = absl::StrReplaceAll(host, {{"%5B", ""}, {"%5D", ""}, {"[", ""}, {"]", ""}});
  ip = ip.substr(0, ip.find('%'));
  if (inet_pton(AF_INET6, ip.c_str(), peer.ip.data()) != 1) return std::nullopt;
  return peer;
}

std::string ToText(const PeerAddress& peer) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (IsIpv4(peer)) {
    inet_ntop(AF_INET, &peer.ip[kIpv4], text.data(), text.size());
    return absl::StrCat(text.data(), ":", peer.port);
  }
  inet_ntop(AF_INET6, peer.ip.data(), text.data(), text.size());
  return absl::StrCat("[", text.data(), "]:", peer.port);
}

}  // namespace gradwire::server
