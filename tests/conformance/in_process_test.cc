#include "tests/conformance/hook_conformance.h"

namespace gradwire::conformance {
namespace {

INSTANTIATE_TEST_SUITE_P(InProcess, HookConformance,
                         testing::ValuesIn(AllCases("InProcess", MakeInProcessCarrier)), CaseName);

}  // namespace
}  // namespace gradwire::conformance
