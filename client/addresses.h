// The daemons that ClientOptions::address names.
//
// One DNS name can stand for all of them: "dns-all:///gradwired.gradwire:29610?n=4". It is resolved
// at the join, and again while a member looks for a daemon that it has lost. gRPC's own
// "dns:///host:port" is one daemon: gRPC tries the name's addresses in turn until one answers,
// which for several daemons would be any of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace gradwire::client {

class DaemonLookup;

// Whether it names one daemon: host:port with a port from 1 to 65535, gRPC's dns:///host:port and
// the like, or unix:/path. http://host:port would be looked up as a host's name.
bool IsAddress(const std::string& address);

// "a:1,b:2" names two, and "host-{0..3}:29610" four; "dns-all:///…" stays as it is, and is the only
// one. InvalidArgument: more than kMaxShards, an empty one, one twice, braces that hold no range,
// or what follows "dns-all:".
absl::StatusOr<std::vector<std::string>> AddressesOf(const std::string& text);

bool IsDaemonName(const std::string& address);

// Of "dns-all:///host:port?n=4&ip=6".
struct DaemonName {
  std::string host;
  std::uint16_t port = 0;
  std::size_t count = 0;  // n, that the name is to have; 0: any number
  int ip = 0;             // 4 or 6: of this version only; 0: all
};
absl::StatusOr<DaemonName> ParseDaemonName(const std::string& address);

// How a name is looked up, again and again while it has too few addresses.
struct Dns {
  // A host's addresses in any order, such as "10.0.0.1" and "fd00::1", or why there are none.
  // Thread-safe, and called as long as Daemons::lookup is there.
  std::function<absl::StatusOr<std::vector<std::string>>(const std::string& host)> lookup;
  // Waits before the next lookup; false: there is to be none. `problem` is for the user.
  std::function<bool(const std::string& problem)> pause;
};

struct Daemons {
  std::vector<std::string> addresses;  // in the order of the session's shards; one or more
  // What their addresses were resolved from, and what their certificates are for. Empty: they were
  // given one by one, and each certificate is for the host in the address.
  std::string host{};
  // Where they are from then on. Null: they were given one by one.
  std::shared_ptr<DaemonLookup> lookup{};
};

// Those of AddressesOf; of a name all its addresses, IPv4 before IPv6 and then by number, so that
// all members have the same order. Unavailable: the name has none, or not `count`, when `dns` does
// not go on. InvalidArgument: AddressesOf's, or it has more than kMaxShards.
absl::StatusOr<Daemons> Resolve(const std::string& text, const Dns& dns);

// For errors: "10.0.0.1:29610, resolved from gradwired.gradwire".
std::string NameOf(const Daemons& daemons, std::size_t shard);

}  // namespace gradwire::client
