// A claimed roster as the text of its file.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "server/core/roster_claims.h"

namespace gradwire::server {

// `id` tells apart who has claimed it; the number is in the file's name.
std::string RosterText(const RosterClaim& claim, std::uint64_t id);

struct ReadRoster {
  RosterClaim claim{};
  std::uint64_t id = 0;
};
// DataLoss: it is none, and the error names the line.
absl::StatusOr<ReadRoster> ParseRoster(const std::string& text);

// Of exactly 16 hexadecimal digits, as the ids have.
std::string Hex16(std::uint64_t value);
bool ParseHex16(const std::string& text, std::uint64_t* value);

}  // namespace gradwire::server
