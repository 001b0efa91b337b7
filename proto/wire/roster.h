// Who is in a session that goes on without lost members, or with others in their place. No protobuf
// here.
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

// Lost members were replaced.
struct MembershipChange {
  std::vector<int> newcomers{};   // ranks, ascending
  int root = 0;                   // the lowest rank that has the model
  std::uint64_t collectives = 0;  // number of the next one; open ones are void
  std::int64_t iteration = 0;     // steps applied, as the hook counts
  std::vector<int> ranks{};       // of the next roster; empty: all
  bool operator==(const MembershipChange&) const = default;
};

}  // namespace gradwire::wire
