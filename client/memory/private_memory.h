// What the kernel says about the pages of memory: whether they are ordinary private ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <istream>
#include <span>

#include "absl/status/status.h"

namespace gradwire::client {

// The memfds that shared_pages.h makes; their pages may be private again.
inline constexpr char kSharedPagesName[] = "gradwire-buckets";

// Ok if all mappings that `smaps`, a text in the form of /proc/self/smaps, has for the memory are
// anonymous (or left from SharedPages), private, readable and writable, and have no properties but
// those that the pages of an allocator have. FailedPrecondition names what is different, or that
// the text does not cover the memory. Reads no further than the memory's end.
absl::Status CheckPrivateMemory(std::span<const std::byte> memory, std::istream& smaps);

// Whether all of the memory is mapped shared from the memfd with this inode, in `smaps` or in the
// form of /proc/self/maps.
bool IsSharedFrom(std::span<const std::byte> memory, std::uint64_t inode, std::istream& maps);

}  // namespace gradwire::client
