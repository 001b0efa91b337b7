#include "proto/wire/share_owners.h"

#include <algorithm>

namespace gradwire::wire {

std::vector<std::size_t> ShareOwners(std::span<const int> ranks, std::uint32_t shares) {
  const std::size_t nobody = ranks.size();
  std::vector<std::size_t> owners(shares, nobody);
  std::vector<std::size_t> has(ranks.size());  // by position: how many
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    std::size_t& owner = owners[static_cast<std::uint32_t>(ranks[i]) % shares];
    if (owner != nobody) continue;
    owner = i;
    ++has[i];
  }
  for (std::size_t& owner : owners) {
    if (owner != nobody) continue;
    owner = static_cast<std::size_t>(std::ranges::min_element(has) - has.begin());
    ++has[owner];
  }
  return owners;
}

}  // namespace gradwire::wire
