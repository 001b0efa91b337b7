#include "gradwire/hooks/hook.h"

#include <string>

#include "base/error_code.h"

namespace gradwire {

std::size_t RoundPlan::bytes() const {
  std::size_t total = 0;
  for (const Segment& segment : segments) total += segment.bytes();
  return total;
}

absl::Status HookRunBase::DecodeInPlace(ElementRange /*range*/) {
  return absl::UnimplementedError("this hook's results have no place in the bucket");
}

absl::Status HookRunBase::Import(std::span<const std::byte> /*shared*/) {
  return absl::UnimplementedError("this hook shares no state with the coordinator");
}

absl::Status HookBase::LoadState(const HookState& state,
                                 std::span<const ParameterSpec> /*manifest*/) {
  if (state.tensors.empty()) return absl::OkStatus();
  return Coded(
      ErrorCode::kStateDiffers,
      absl::InvalidArgumentError("this hook keeps no state between steps; the state given has " +
                                 std::to_string(state.tensors.size()) + " tensors"));
}

}  // namespace gradwire
