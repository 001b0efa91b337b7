#include "client/addresses.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/error_code.h"
#include "base/limits.h"
#include "client/daemon_lookup.h"
#include "proto/tls/channel_credentials.h"

namespace gradwire::client {
namespace {

constexpr char kName[] = "dns-all:";
constexpr std::size_t kMaxHostBytes = 253;

absl::Status Bad(const std::string& text, const std::string& why) {
  return Coded(ErrorCode::kOption, absl::InvalidArgumentError(absl::StrCat(
                                       "address \"", text.substr(0, 200), "\": ", why)));
}

template <class Number>
bool ParseNumber(const std::string& digits, Number& out) {
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out);
  return error == std::errc() && end == digits.data() + digits.size() && !digits.empty();
}

struct Range {
  unsigned first = 0;
  unsigned last = 0;
};

// "0..3".
std::optional<Range> ParseRange(const std::string& text) {
  const std::size_t dots = text.find("..");
  if (dots == std::string::npos) return std::nullopt;
  Range range;
  if (!ParseNumber(text.substr(0, dots), range.first) ||
      !ParseNumber(text.substr(dots + 2), range.last) || range.first > range.last) {
    return std::nullopt;
  }
  return range;
}

absl::Status Expand(const std::string& item, std::vector<std::string>& out) {
  const std::size_t open = item.find('{');
  const std::size_t close = item.find('}');
  if (open == std::string::npos && close == std::string::npos) {
    out.push_back(item);
    return absl::OkStatus();
  }
  std::optional<Range> range;
  if (open != std::string::npos && close != std::string::npos && open < close) {
    range = ParseRange(item.substr(open + 1, close - open - 1));
  }
  if (!range || range->last - range->first >= kMaxShards) {
    return Bad(item, absl::StrCat("in braces, allowed: a range such as {0..3}, of at most ",
                                  kMaxShards, " numbers"));
  }
  for (unsigned i = range->first; i <= range->last; ++i) {
    out.push_back(absl::StrCat(item.substr(0, open), i, item.substr(close + 1)));
  }
  return absl::OkStatus();
}

bool IsHost(const std::string& host) {
  return !host.empty() && host.size() <= kMaxHostBytes && host.front() != '.' &&
         std::all_of(host.begin(), host.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_';
         });
}

// "n=4&ip=6".
bool ParseQuery(const std::string& query, DaemonName& name) {
  const std::vector<std::string> settings = absl::StrSplit(query, '&');
  for (const std::string& one : settings) {
    if (absl::StartsWith(one, "n=") && name.count == 0) {
      if (!ParseNumber(one.substr(2), name.count) || name.count < 1 || name.count > kMaxShards) {
        return false;
      }
    } else if ((one == "ip=4" || one == "ip=6") && name.ip == 0) {
      name.ip = one.back() - '0';
    } else {
      return false;
    }
  }
  return true;
}

// An address as the network has it, which sorts by number. nullopt: it is none.
struct IpAddress {
  int version = 0;
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  bool operator<(const IpAddress& other) const {
    return std::tie(version, bytes) < std::tie(other.version, other.bytes);
  }
};

std::optional<IpAddress> ParseIp(const std::string& text) {
  IpAddress ip;
  if (inet_pton(AF_INET, text.c_str(), ip.bytes.data()) == 1) {
    ip.version = 4;
  } else if (inet_pton(AF_INET6, text.c_str(), ip.bytes.data()) == 1) {
    ip.version = 6;
  } else {
    return std::nullopt;
  }
  return ip;
}

// One spelling for all members.
std::string TextOf(const IpAddress& ip) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(ip.version == 4 ? AF_INET : AF_INET6, ip.bytes.data(), text.data(), text.size());
  return text.data();
}

std::vector<std::string> Sorted(const std::vector<std::string>& found, int version) {
  std::set<IpAddress> addresses;
  for (const std::string& text : found) {
    const auto ip = ParseIp(text);
    if (ip && (version == 0 || ip->version == version)) addresses.insert(*ip);
  }
  std::vector<std::string> sorted;
  for (const IpAddress& ip : addresses) sorted.push_back(TextOf(ip));
  return sorted;
}

std::vector<std::string> WithPort(const std::vector<std::string>& ips, std::uint16_t port) {
  std::vector<std::string> addresses;
  for (const std::string& ip : ips) {
    const bool six = ip.find(':') != std::string::npos;
    addresses.push_back(absl::StrCat(six ? "[" : "", ip, six ? "]" : "", ":", port));
  }
  return addresses;
}

// Why these are not the daemons yet; empty: they are.
std::string Problem(const DaemonName& name, const std::vector<std::string>& found) {
  const std::string kind = name.ip == 0 ? "" : absl::StrCat("IPv", name.ip, " ");
  if (found.empty()) return absl::StrCat(name.host, " has no ", kind, "address");
  if (name.count == 0 || name.count == found.size()) return "";
  return absl::StrCat(name.host, " has ", found.size(), " ", kind,
                      found.size() == 1 ? "address (" : "addresses (", absl::StrJoin(found, ", "),
                      "); n is ", name.count);
}

}  // namespace

bool IsDaemonName(const std::string& address) { return absl::StartsWith(address, kName); }

absl::StatusOr<DaemonName> ParseDaemonName(const std::string& address) {
  const auto bad = [&] {
    return Bad(address, absl::StrCat("after dns-all:, allowed: ///NAME:PORT, then ?n=N, the number "
                                     "of daemons, 1 to ",
                                     kMaxShards, ", and ip=4 or ip=6, with & between them"));
  };
  DaemonName name;
  std::string rest = address.substr(std::min(address.size(), sizeof(kName) - 1));
  if (!absl::StartsWith(rest, "///")) return bad();
  rest.erase(0, 3);
  const std::size_t question = rest.find('?');
  if (question != std::string::npos) {
    if (!ParseQuery(rest.substr(question + 1), name)) return bad();
    rest.resize(question);
  }
  const std::size_t colon = rest.find(':');
  name.host = rest.substr(0, colon);
  if (colon == std::string::npos || !IsHost(name.host) ||
      !ParseNumber(rest.substr(colon + 1), name.port) || name.port == 0) {
    return bad();
  }
  return name;
}

bool IsAddress(const std::string& address) {
  if (tls::IsUnixSocket(address)) return true;
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos) return false;
  const std::string host = address.substr(0, colon);
  int port = 0;
  const bool has_port =
      absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 1 && port <= 65535;
  const bool resolver =
      host.starts_with("dns:") || host.starts_with("ipv4:") || host.starts_with("ipv6:");
  const bool plain = host.find('/') == std::string::npos &&
                     (host.find(':') == std::string::npos || host.starts_with("["));
  return has_port && !host.empty() && (resolver || plain);
}

absl::StatusOr<std::vector<std::string>> AddressesOf(const std::string& text) {
  std::vector<std::string> addresses;
  const std::vector<std::string> items = absl::StrSplit(text, ',');
  for (const std::string& padded : items) {
    const std::string item(absl::StripAsciiWhitespace(padded));
    if (!IsDaemonName(item)) continue;
    if (items.size() > 1)
      return Bad(text, absl::StrCat(item, " names all daemons; allowed: alone"));
    if (const auto name = ParseDaemonName(item); !name.ok()) return name.status();
    return std::vector<std::string>{item};
  }
  for (const std::string& padded : items) {
    const std::string item(absl::StripAsciiWhitespace(padded));
    if (item.empty()) return Bad(text, "names an empty address");
    if (absl::Status status = Expand(item, addresses); !status.ok()) return status;
    if (addresses.size() > kMaxShards) {
      return Bad(text, absl::StrCat("names more than ", kMaxShards, " daemons"));
    }
  }
  std::set<std::string> known;
  for (const std::string& address : addresses) {
    if (!known.insert(address).second) return Bad(text, absl::StrCat("names ", address, " twice"));
  }
  return addresses;
}

absl::StatusOr<Daemons> Resolve(const std::string& text, const Dns& dns) {
  absl::StatusOr<std::vector<std::string>> given = AddressesOf(text);
  if (!given.ok()) return given.status();
  if (!IsDaemonName(given->front())) return Daemons{.addresses = *std::move(given)};
  const DaemonName name = *ParseDaemonName(given->front());
  std::vector<std::string> found;
  for (std::string problem = "?"; !problem.empty();) {
    const auto looked_up = dns.lookup(name.host);
    found = looked_up.ok() ? Sorted(*looked_up, name.ip) : std::vector<std::string>();
    problem = looked_up.ok() ? Problem(name, found)
                             : absl::StrCat("looking up ", name.host, ": ",
                                            std::string(looked_up.status().message()));
    if (problem.empty() || dns.pause(problem)) continue;
    return Coded(ErrorCode::kNoDaemon,
                 absl::UnavailableError(absl::StrCat(problem, "; are the daemons running?")));
  }
  if (found.size() > kMaxShards) {
    return Bad(given->front(), absl::StrCat("the name has ", found.size(),
                                            " addresses; allowed: up to ", kMaxShards));
  }
  Daemons daemons{.addresses = WithPort(found, name.port)};
  daemons.lookup = std::make_shared<DaemonLookup>(
      daemons.addresses, [name, lookup = dns.lookup]() -> absl::StatusOr<std::vector<std::string>> {
        const auto ips = lookup(name.host);
        if (!ips.ok()) return ips.status();
        return WithPort(Sorted(*ips, name.ip), name.port);
      });
  // A certificate has the name without the dot that ends a search.
  daemons.host = name.host.substr(0, name.host.find_last_not_of('.') + 1);
  return daemons;
}

std::string NameOf(const Daemons& daemons, std::size_t shard) {
  const std::string& address = daemons.addresses[shard];
  return daemons.host.empty() ? address : absl::StrCat(address, ", resolved from ", daemons.host);
}

}  // namespace gradwire::client
