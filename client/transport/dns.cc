#include "client/transport/dns.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace gradwire::client {
namespace {

constexpr std::chrono::milliseconds kBetweenLookups(250);
constexpr absl::Duration kSilentWait = absl::Seconds(1);

// Without AI_ADDRCONFIG, which leaves out what this host has no address of.
absl::StatusOr<std::vector<std::string>> LookUp(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  std::vector<std::string> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    std::array<char, INET6_ADDRSTRLEN> text{};
    const void* ip = nullptr;
    if (one->ai_family == AF_INET) {
      ip = &reinterpret_cast<const sockaddr_in*>(one->ai_addr)->sin_addr;
    } else if (one->ai_family == AF_INET6) {
      ip = &reinterpret_cast<const sockaddr_in6*>(one->ai_addr)->sin6_addr;
    }
    if (ip != nullptr && inet_ntop(one->ai_family, ip, text.data(), text.size()) != nullptr) {
      addresses.emplace_back(text.data());
    }
  }
  return addresses;
}

}  // namespace

Dns SystemDns(absl::Duration timeout, std::function<void(const std::string& line)> say) {
  const auto begin = std::chrono::steady_clock::now();
  const auto pause = [=, said = false](const std::string& problem) mutable {
    const absl::Duration waited = absl::FromChrono(std::chrono::steady_clock::now() - begin);
    if (waited + absl::FromChrono(kBetweenLookups) >= timeout) return false;
    if (!said && waited >= kSilentWait) {
      said = true;
      say(absl::StrCat("waits up to ", absl::FormatDuration(timeout), " for DNS: ", problem));
    }
    std::this_thread::sleep_for(kBetweenLookups);
    return true;
  };
  return {.lookup = LookUp, .pause = pause};
}

}  // namespace gradwire::client
