// A member that leaves before the others.
#include <algorithm>
#include <utility>

#include "client/core/grouped_member.h"
#include "client/core/member.h"

namespace gradwire::client {

void Member::HandOver(std::uint64_t id, std::vector<std::byte> file, Effects& effects) {
  std::vector<int> heirs;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    const bool is_here = roster() == nullptr || std::ranges::binary_search(roster()->ranks, rank);
    if (rank != options_.rank && is_here) heirs.push_back(rank);
  }
  // What came from now on would not be in the file.
  taking_.SetClosed(true);
  const std::size_t first = effects.size();
  giving_.Begin(id, std::move(file), std::move(heirs), effects);
  HoldBack(effects, first);
}

void GroupedMember::HandOver(std::uint64_t id, std::vector<std::byte> file, Effects& effects) {
  member_->HandOver(id, std::move(file), effects);
}

int GroupedMember::CancelHandOver() { return member_->CancelHandOver(); }

void GroupedMember::SetLeaving(bool leaving) { member_->SetLeaving(leaving); }

}  // namespace gradwire::client
