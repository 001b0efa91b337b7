// The address of a connection's other end, in a form that the kernel's and gRPC's agree in.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>

namespace gradwire::server {

struct PeerAddress {
  std::array<unsigned char, 16> ip{};  // IPv4 as "mapped" IPv6
  std::uint16_t port = 0;

  auto operator<=>(const PeerAddress&) const = default;
};

// Of a connected socket. nullopt: it is not TCP, or no longer connected.
std::optional<PeerAddress> PeerOf(int fd);

// As gRPC writes it: "ipv4:10.0.0.5:41234" or "ipv6:%5B::1%5D:41234". nullopt: neither of them.
std::optional<PeerAddress> ParsePeer(const std::string& text);

bool IsIpv4(const PeerAddress& peer);

// "10.0.0.5:41234" or "[::1]:41234".
std::string ToText(const PeerAddress& peer);

}  // namespace gradwire::server
