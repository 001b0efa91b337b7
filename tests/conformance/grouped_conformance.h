// What node groups promise, wherever their members keep gradients: the bits are those of the same
// hooks in one loop, with one member for each group whose gradient is the group's sum times
// groups / members.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/conformance/daemon_carrier.h"

namespace gradwire::conformance {

// By rank, the name of its group; "": in none.
using Grouping = std::vector<std::string>;
using MakeGroupedMemory = std::function<MakeMemory(const Grouping& grouping)>;

struct GroupedCase {
  std::string name;  // of the grouping
  Grouping grouping;
  std::string spec;
  DType dtype = DType::kFloat32;
  MakeGroupedMemory memory;
  std::function<std::shared_ptr<Device>()> device;  // what the loop computes on
  // Also in steps of one bucket. On a GPU the bits of low-rank products depend on which matrices
  // are multiplied together, and a share has fewer of them than the bucket.
  bool one_bucket = true;
};

class NodeGroups : public ::testing::TestWithParam<GroupedCase> {};

// The product of groupings, hooks and dtypes. The bits of low-rank products are those of a device:
// `low_rank` where all members have the same kind.
std::vector<GroupedCase> GroupedCases(const MakeGroupedMemory& memory,
                                      const std::function<std::shared_ptr<Device>()>& device,
                                      bool low_rank);
std::string GroupedCaseName(const ::testing::TestParamInfo<GroupedCase>& info);

}  // namespace gradwire::conformance
