// Who in a node group has which share of the parameters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gradwire::wire {

// By share: the position in the group of the member that has it. `ranks` are the group's,
// ascending, one or more. The rule is that of NodeGroup in gradwire/v1/aggregation.proto. When a
// member is lost, or comes back, few shares but its own change hands.
std::vector<std::size_t> ShareOwners(std::span<const int> ranks, std::uint32_t shares);

}  // namespace gradwire::wire
