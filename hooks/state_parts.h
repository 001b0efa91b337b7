// The state of a session with several shards: each shard has a part of it, and the parts together
// are the state that the session would have with one daemon. So a saved state does not tell how
// many shards there were, and fits any number of them.
//
// Names of tensors and of some metadata end in a parameter's: "q/NAME", "version/NAME". Each
// parameter is one shard's. All else in a state is the same on all shards; what PowerSGD draws is,
// too, because each shard draws for the whole model. Only a shard without compressed parameters
// draws nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/hooks/hook.h"

namespace gradwire {

// Metadata that only a coordinator's part has: "1 of 4", and how many of the shard's parameters the
// hook compresses. An exported state also has the number of steps that it is after.
inline constexpr const char* kShardKey = "shard";
inline constexpr const char* kCompressedKey = "compressed";
inline constexpr const char* kStepKey = "step";

std::string ShardText(std::uint32_t shard, std::uint32_t shards);

// FailedPrecondition if the state is a part only, which would leave the rest of a session without.
absl::Status CheckIsWhole(const HookState& state);

// The coordinator's state from the parts of all shards, in any order; a state that is whole stays
// what it is. FailedPrecondition: a part is missing (kStateDiffers), the parts are after different
// steps (kStateInStep), or their shards have not drawn alike (kStateDiffers). InvalidArgument: they
// are no parts of one state.
absl::StatusOr<HookState> JoinSessionState(std::vector<HookState> parts);
// The same with files, as ReadSafetensors and WriteSafetensors have them.
absl::StatusOr<std::string> JoinSessionFiles(std::span<const std::string> parts);

// A member's state from its parts at all shards, in order. InvalidArgument: they differ in what
// they have in common.
absl::StatusOr<HookState> JoinMemberState(std::vector<HookState> parts);
// What of a member's state is about parameters that `owns` is true for, and all that is about none.
HookState MemberPart(const HookState& whole,
                     const std::function<bool(std::string_view parameter)>& owns);

}  // namespace gradwire
