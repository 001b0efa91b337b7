// The hooks' promises over a real daemon and the SDK.
#include "tests/conformance/daemon_carrier.h"

namespace gradwire::conformance {
namespace {

absl::StatusOr<std::unique_ptr<Carrier>> MakeCarrier(int world_size, const HookSpec& spec,
                                                     const std::vector<ParameterSpec>& parameters) {
  return MakeDaemonCarrier(world_size, spec, parameters);
}

INSTANTIATE_TEST_SUITE_P(Daemon, HookConformance,
                         ::testing::ValuesIn(AllCases("Daemon", MakeCarrier)), CaseName);
INSTANTIATE_TEST_SUITE_P(Daemon, PowerSgdConformance,
                         ::testing::ValuesIn(PowerSgdCases("Daemon", MakeCarrier)), CaseName);

}  // namespace
}  // namespace gradwire::conformance
