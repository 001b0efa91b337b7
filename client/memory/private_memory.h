// Whether memory consists of ordinary private pages, as the kernel describes them.
#pragma once

#include <cstddef>
#include <istream>
#include <span>

#include "absl/status/status.h"

namespace gradwire::client {

// Ok if all mappings that `smaps`, a text in the form of /proc/self/smaps, has for the memory are
// anonymous, private, readable and writable, and have no properties but those that the pages of an
// allocator have. FailedPrecondition names what is different, or that the text does not cover the
// memory. Reads no further than the memory's end.
absl::Status CheckPrivateMemory(std::span<const std::byte> memory, std::istream& smaps);

}  // namespace gradwire::client
