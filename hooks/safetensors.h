// A hook's state as the bytes of a safetensors file.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "gradwire/hooks/hook.h"

namespace gradwire {

// Larger headers are refused, as the format's own library does: about 300,000 parameters fit.
inline constexpr std::size_t kMaxSafetensorsHeader = 100'000'000;

// Tensors lie in the order of their names. Names and metadata are UTF-8; each tensor's data has the
// bytes that its dtype and shape say. The metadata gets a "digest" over all the rest: 16 hex digits
// of XXH3-64.
std::string WriteSafetensors(const HookState& state);

// What WriteSafetensors wrote, with or without it being meant well: InvalidArgument names what is
// wrong, before memory is taken for it. The digest is checked and left out.
absl::StatusOr<HookState> ReadSafetensors(std::string_view bytes);

}  // namespace gradwire
