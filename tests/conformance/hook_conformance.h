// What every hook promises, whatever carries its rounds. One suite; an instance names the carrier.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/hooks/grad_bucket.h"
#include "gradwire/hooks/hook.h"
#include "gradwire/hooks/hook_spec.h"
#include "gtest/gtest.h"

namespace gradwire {
class Device;
}

namespace gradwire::conformance {

// One training step of all members: for each rank, the bytes of every parameter's gradient.
using MemberGradients = std::vector<std::vector<std::byte>>;

struct StepResult {
  std::vector<MemberGradients> gradients;  // by rank, then parameter
  std::vector<Verdict> verdicts;           // by rank
};

// Carries the rounds of a group of members. Built anew for each test.
class Carrier {
 public:
  virtual ~Carrier() = default;

  // Reduces in one step. `buckets` lists parameters by position; rank r submits bucket
  // (i + r) % buckets.size() as its i-th.
  virtual absl::StatusOr<StepResult> RunStep(
      const std::vector<MemberGradients>& gradients,
      const std::vector<std::vector<std::size_t>>& buckets) = 0;
};

struct Case {
  std::string carrier;  // names the instance
  std::function<absl::StatusOr<std::unique_ptr<Carrier>>(
      int world_size, const HookSpec& spec, const std::vector<ParameterSpec>& parameters)>
      make;
  std::string spec;
  int world_size = 1;
  DType dtype = DType::kFloat32;
};

class HookConformance : public ::testing::TestWithParam<Case> {};

// The product of hooks, world sizes and dtypes for one carrier.
std::vector<Case> AllCases(const std::string& carrier, decltype(Case::make) make);

// What PowerSGD gives over a carrier: bit for bit what the same hooks give in one loop.
class PowerSgdConformance : public ::testing::TestWithParam<Case> {};

// Both forms, with one round and with two, and factors of several chunks of 4 KiB.
std::vector<Case> PowerSgdCases(const std::string& carrier, decltype(Case::make) make);

std::string CaseName(const ::testing::TestParamInfo<Case>& info);

// Rounds carried by a loop in this thread: no network, no daemon.
absl::StatusOr<std::unique_ptr<Carrier>> MakeInProcessCarrier(
    int world_size, const HookSpec& spec, const std::vector<ParameterSpec>& parameters);

// The same with each member's gradients on a device of its own.
absl::StatusOr<std::unique_ptr<Carrier>> MakeDeviceCarrier(
    int world_size, const HookSpec& spec, const std::vector<ParameterSpec>& parameters,
    const std::function<std::shared_ptr<Device>()>& make_device);

}  // namespace gradwire::conformance
