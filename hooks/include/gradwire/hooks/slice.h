// The part of each bucket that one of several shards reduces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace gradwire {

// One of `parts` consecutive ranges of a segment's elements.
struct Slice {
  std::uint32_t part = 0;
  std::uint32_t parts = 1;  // 1 to kMaxShards

  // Parts begin at multiples of so many elements. A small bucket is therefore a single shard's.
  static constexpr std::size_t kGrain = 1024;

  // [first, second) of a segment with `numel` elements, at most 2^48: the product fits.
  std::pair<std::size_t, std::size_t> Of(std::size_t numel) const {
    const auto boundary = [&](std::size_t at) {
      return at == parts ? numel : numel * at / parts / kGrain * kGrain;
    };
    return {boundary(part), boundary(std::size_t{part} + 1)};
  }

  bool operator==(const Slice&) const = default;
};

}  // namespace gradwire
