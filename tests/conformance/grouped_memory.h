// Members of a daemon that are in node groups, over the host's memory.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/daemon_carrier.h"
#include "tests/testing/host_communicator.h"

namespace gradwire::conformance {

// By rank, the name of its group; "": in none.
using Grouping = std::vector<std::string>;

// Memory of the host for members that join groups at `place`, which outlives them.
MakeMemory GroupedMemory(Grouping grouping, testing::HostMeetingPlace& place);

// Joins as a member of this group.
absl::StatusOr<std::unique_ptr<Client>> JoinGroup(const ClientOptions& options,
                                                  const std::string& group,
                                                  testing::HostMeetingPlace& place);

}  // namespace gradwire::conformance
