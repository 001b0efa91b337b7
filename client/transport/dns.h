// The system's resolver.
#pragma once

#include <functional>
#include <string>

#include "absl/time/time.h"
#include "client/addresses.h"

namespace gradwire::client {

// Looks up with getaddrinfo, whose own timeouts count for one lookup, and goes on for `timeout`.
// After 1 s without success `say` is called once, with the problem and how long this may take.
// Neither depends on the addresses of this host, so that all members find the same.
Dns SystemDns(absl::Duration timeout, std::function<void(const std::string& line)> say);

}  // namespace gradwire::client
