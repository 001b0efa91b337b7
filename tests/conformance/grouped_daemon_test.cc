// Node groups over a real daemon and the SDK, in the host's memory.
#include "hooks/cpu/host_device.h"
#include "tests/conformance/grouped_conformance.h"
#include "tests/conformance/grouped_memory.h"

namespace gradwire::conformance {
namespace {

MakeMemory InHostMemory(const Grouping& grouping) {
  static testing::HostMeetingPlace place;
  return GroupedMemory(grouping, place);
}

INSTANTIATE_TEST_SUITE_P(HostMemory, NodeGroups,
                         ::testing::ValuesIn(GroupedCases(InHostMemory, MakeHostDevice, true)),
                         GroupedCaseName);

}  // namespace
}  // namespace gradwire::conformance
