// Who is in a session that goes on without lost members. No protobuf here.
#pragma once

#include <cstdint>
#include <vector>

namespace gradwire::wire {

// Each gathering makes the next one, with a higher number.
struct Roster {
  std::uint64_t number = 0;
  std::vector<int> ranks{};  // ascending
  bool operator==(const Roster&) const = default;
};

}  // namespace gradwire::wire
