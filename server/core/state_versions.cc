#include "server/core/state_versions.h"

#include <algorithm>

#include "base/mutants.h"

namespace gradwire::server {

StateVersions::StateVersions(std::size_t parameters, std::size_t members)
    : words_(Words(members)), group_of_(parameters, kNone) {}

std::uint32_t StateVersions::NewGroup() {
  if (!free_.empty()) {
    const std::uint32_t group = free_.back();
    free_.pop_back();
    return group;
  }
  groups_.emplace_back();
  bits_.resize(bits_.size() + words_);
  return static_cast<std::uint32_t>(groups_.size() - 1);
}

void StateVersions::Place(std::span<const std::uint32_t> bucket) {
  // A bucket names no parameter twice, so one common group of equal size is the same set. Usually
  // buckets do not change, and this is all that happens.
  const std::uint32_t first = group_of_[bucket.front()];
  const bool same = first != kNone && groups_[first].parameters == bucket.size() &&
                    std::all_of(bucket.begin(), bucket.end(),
                                [&](std::uint32_t p) { return group_of_[p] == first; });
  if (same) return;
  // A member has the new group's version only if it has that version of each parameter: the
  // intersection of the old groups' bits, where a group of another version has none.
  std::vector<std::uint64_t> common(words_, first == kNone ? 0 : ~std::uint64_t{0});
  const std::uint64_t version = first == kNone ? 0 : groups_[first].version;
  for (const std::uint32_t p : bucket) {
    const std::uint32_t old = group_of_[p];
    const bool fits = old != kNone && groups_[old].version == version;
    for (std::size_t w = 0; w < words_; ++w) common[w] &= fits ? bits(old)[w] : 0;
  }
  for (const std::uint32_t p : bucket) {
    const std::uint32_t old = group_of_[p];
    if (old != kNone && --groups_[old].parameters == 0) free_.push_back(old);
  }
  // This may reuse a group that was just freed; `common` is a copy of its bits.
  const std::uint32_t group = NewGroup();
  groups_[group] = {.version = version, .parameters = static_cast<std::uint32_t>(bucket.size())};
  std::copy(common.begin(), common.end(), bits(group).begin());
  for (const std::uint32_t p : bucket) group_of_[p] = group;
}

bool StateVersions::Has(int rank, std::uint32_t parameter, std::uint64_t version) const {
  const std::uint32_t group = group_of_[parameter];
  if (group == kNone) return false;
  if (groups_[group].version != version && !IsActive(Mutant::kOldStateCounts)) return false;
  const auto r = static_cast<std::size_t>(rank);
  return (bits(group)[r / 64] >> (r % 64) & 1) != 0;
}

// Only called for a bucket with a version, which Place has given a group.
void StateVersions::Set(int rank, std::uint32_t parameter, std::uint64_t version) {
  const std::uint32_t group = group_of_[parameter];
  if (groups_[group].version != version) {
    groups_[group].version = version;
    std::fill(bits(group).begin(), bits(group).end(), 0);
  }
  const auto r = static_cast<std::size_t>(rank);
  bits(group)[r / 64] |= std::uint64_t{1} << (r % 64);
}

void StateVersions::Clear() { std::fill(bits_.begin(), bits_.end(), 0); }

// Vectors grow by doubling. One group more than there are parameters may be needed for a moment.
std::size_t StateVersions::BytesFor(std::size_t parameters, std::size_t members) {
  const std::size_t each =
      sizeof(Group) + Words(members) * sizeof(std::uint64_t) + sizeof(std::uint32_t);
  return sizeof(StateVersions) + parameters * sizeof(std::uint32_t) + 2 * (parameters + 1) * each;
}

}  // namespace gradwire::server
