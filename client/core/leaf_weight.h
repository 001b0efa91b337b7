// The weight of members in a session with leaf daemons, of which each stands for several ranks.
#pragma once

#include <cstdint>

#include "gradwire/hooks/grad_bucket.h"

namespace gradwire::client {

// Contributions count the same at the coordinator. So who stands for `ranks` of the session's
// `members` multiplies its gradient by this, and the mean of all `groups` is the mean of all
// members. Exactly 1 if all groups are equal.
double LeafWeight(int ranks, std::uint32_t groups, int members);

// Multiplies the elements, which lie in the host's memory, in fp64 and rounds each once.
void Weigh(const TensorView& gradients, double weight);

}  // namespace gradwire::client
