// How blocks lie in a segment of shared memory, for both sides and for what a session reserves.
#pragma once

#include <cstddef>

namespace gradwire::wire {

// Blocks begin so far into their first page. Between memory at equal places in a page, where most
// large allocations begin, copies stall on many processors.
inline constexpr std::size_t kContributionSkew = 1024;
inline constexpr std::size_t kResultSkew = 2048;

constexpr std::size_t WholePages(std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  return (bytes + kPage - 1) / kPage * kPage;
}

// From one block of `bytes` to the next: whole pages, and one for the skew.
constexpr std::size_t BlockStride(std::size_t bytes) { return WholePages(bytes) + WholePages(1); }

}  // namespace gradwire::wire
