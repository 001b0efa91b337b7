// The hooks' promises in sessions over several daemons: the same bits as over one.
#include "tests/conformance/daemon_carrier.h"

namespace gradwire::conformance {
namespace {

decltype(Case::make) Over(std::size_t daemons) {
  return [daemons](int world_size, const HookSpec& spec,
                   const std::vector<ParameterSpec>& parameters) {
    return MakeDaemonCarrier(world_size, spec, parameters, MakeHostMemory, {}, daemons);
  };
}

// Those whose buckets can be divided.
std::vector<Case> Divisible(std::vector<Case> cases) {
  std::erase_if(cases, [](const Case& one) { return one.spec.starts_with("batched_power_sgd"); });
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Two, HookConformance,
                         ::testing::ValuesIn(Divisible(AllCases("Two", Over(2)))), CaseName);
INSTANTIATE_TEST_SUITE_P(Two, PowerSgdConformance,
                         ::testing::ValuesIn(Divisible(PowerSgdCases("Two", Over(2)))), CaseName);
INSTANTIATE_TEST_SUITE_P(Three, PowerSgdConformance,
                         ::testing::ValuesIn(Divisible(PowerSgdCases("Three", Over(3)))), CaseName);

}  // namespace
}  // namespace gradwire::conformance
