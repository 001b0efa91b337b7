// The daemons that ClientOptions::address names.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace gradwire::client {

// "a:1,b:2" names two, and "host-{0..3}:29610" four. InvalidArgument: more than kMaxShards, an
// empty one, one twice, or braces that hold no range.
absl::StatusOr<std::vector<std::string>> AddressesOf(const std::string& text);

}  // namespace gradwire::client
