// Offers of shared memory by hand, as a member's process could make them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/unique_fd.h"
#include "proto/wire/memory_offer.h"

namespace gradwire::testing {

// A memfd that a daemon takes: its size is sealed and all of it is there.
UniqueFd SealedFd(std::size_t bytes);

// A connection to the unix socket `path`.
UniqueFd ConnectTo(const std::string& path);

// One offer to the daemon at `socket` and its answer. `attachment` 0: a new one.
wire::MemoryReply OfferMemory(const std::string& socket, const std::string& token,
                              std::uint64_t start_id, UniqueFd segment,
                              std::uint64_t attachment = 0);

// The same over a connection that was made before.
wire::MemoryReply OfferMemoryOver(const UniqueFd& connection, const std::string& token,
                                  std::uint64_t start_id, UniqueFd segment,
                                  std::uint64_t attachment = 0);

// Mappings of this process whose memfd is one of SealedFd's.
std::size_t MappedOffers();

}  // namespace gradwire::testing
