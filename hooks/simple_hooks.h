// The stateless built-in hooks and the casting wrapper.
#pragma once

#include <memory>
#include <optional>

#include "gradwire/hooks/hook.h"

namespace gradwire {

// One round, one segment: the bucket cast to `wire` (nullopt: left in its own dtype), divided by
// the world size in that dtype, summed, cast back. torch's allreduce, fp16_compress and
// bf16_compress.
std::unique_ptr<Hook> MakeCastingHook(std::optional<DType> wire);

// No round: every member keeps its own gradients.
std::unique_ptr<Hook> MakeNoopHook();

// Runs `inner` on the bucket cast to `wire`, and casts what it leaves there back into the bucket.
// `inner` is planned with, and its bucket's buffer has, the wire dtype.
std::unique_ptr<Hook> MakeWrapper(DType wire, std::unique_ptr<Hook> inner);

}  // namespace gradwire
