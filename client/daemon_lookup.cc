#include "client/daemon_lookup.h"

#include <algorithm>
#include <iterator>

namespace gradwire::client {

std::vector<std::string> DaemonLookup::Places(const std::vector<std::string>& found) const {
  std::vector<std::string> places = addresses_;
  if (found.size() != places.size()) return places;
  std::vector<std::string> fresh;
  std::ranges::copy_if(found, std::back_inserter(fresh), [&](const std::string& address) {
    return std::ranges::count(addresses_, address) == 0;
  });
  auto next = fresh.begin();
  for (std::string& place : places) {
    if (std::ranges::count(found, place) == 0) place = *next++;
  }
  return places;
}

std::string DaemonLookup::Next(std::uint32_t shard) {
  const auto found = look_up_();
  MutexLock lock(mutex_);
  if (!found.ok() || found->empty()) return addresses_[shard];
  if (addresses_.size() > 1) return Places(*found)[shard];
  const auto known = std::ranges::find(*found, addresses_.front());
  const auto first = known == found->end() ? 0 : static_cast<std::size_t>(known - found->begin());
  return (*found)[(first + tries_++) % found->size()];
}

void DaemonLookup::Took(std::uint32_t shard, const std::string& address) {
  MutexLock lock(mutex_);
  addresses_[shard] = address;
  tries_ = 0;
}

bool DaemonLookup::HasMoved(std::uint32_t shard) {
  const auto found = look_up_();
  MutexLock lock(mutex_);
  if (!found.ok() || found->empty()) return false;
  if (addresses_.size() > 1) return Places(*found)[shard] != addresses_[shard];
  return std::ranges::count(*found, addresses_.front()) == 0;
}

}  // namespace gradwire::client
