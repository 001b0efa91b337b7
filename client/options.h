#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gradwire/client.h"

namespace gradwire {

// Fills an empty address, session, cuda_library, nccl_library or node_group from GRADWIRE_ADDRESS,
// GRADWIRE_SESSION, GRADWIRE_CUDA_LIBRARY, GRADWIRE_NCCL_LIBRARY or GRADWIRE_NODE_GROUP.
ClientOptions WithEnvironment(ClientOptions options);

// What Client::SetDrawPlan takes, from a member of this rank whose model has so many parameters:
// FailedPrecondition for a rank other than 0, InvalidArgument for buckets that are no plan.
absl::Status CheckDrawPlan(const std::vector<std::vector<std::uint32_t>>& buckets, int rank,
                           std::size_t parameters);

// Hands a line about a wait to `on_wait`, or, where that is empty, writes it to standard error.
void SayWait(const std::function<void(const std::string& line)>& on_wait, const std::string& line);

}  // namespace gradwire
