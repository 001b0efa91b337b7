// Members of a daemon that are in node groups, over the host's memory.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/grouped_conformance.h"
#include "tests/testing/host_communicator.h"

namespace gradwire::conformance {

// Memory of the host for members that join groups at `place`, which outlives them.
MakeMemory GroupedMemory(Grouping grouping, testing::HostMeetingPlace& place);

// Joins as a member of this group.
absl::StatusOr<std::unique_ptr<Client>> JoinGroup(const ClientOptions& options,
                                                  const std::string& group,
                                                  testing::HostMeetingPlace& place);

}  // namespace gradwire::conformance
