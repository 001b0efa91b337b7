// Newcomers that are refused when all are there.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "proto/wire/rank_names.h"
#include "server/core/rendezvous.h"
#include "server/core/session_core.h"

namespace gradwire::server {

// Another process may come for the rank. A daemon that does not know the groups leaves it to the
// members to compare.
bool SessionCore::DismissMisplaced(const NodeGroups& groups, const Gathering::Outcome& gathered,
                                   Effects& effects) {
  if (options_.node_groups.empty()) return false;
  bool any = false;
  for (const int rank : gathered.fresh) {
    std::vector<int> ranks;
    const std::vector<int>& firsts = options_.node_groups;
    for (int r = 0; r < options_.world_size; ++r) {
      const auto first = [&](int of) { return firsts[static_cast<std::size_t>(of)]; };
      if (first(r) == first(rank)) ranks.push_back(r);
    }
    const std::vector<int>& now = groups.RanksWith(rank);
    if (now == ranks) continue;
    const absl::Status refused = Coded(
        ErrorCode::kNodeGroup, absl::FailedPreconditionError(absl::StrCat(
                                   "session \"", options_.name, "\" has lost rank ", rank,
                                   ", which was in the node group of ", wire::RankNames(ranks),
                                   "; this process is in that of ", wire::RankNames(now),
                                   ". Allowed in its place: a process on the same node")));
    Dismiss(rank, refused, effects);
    any = true;
  }
  return any;
}

// Whoever came before the first member has reported, or before a trainer on a GPU.
bool SessionCore::DismissMisfits(Effects& effects) {
  std::vector<std::pair<int, absl::Status>> misfits = rendezvous_->Misfits();
  for (const int rank : misfits.empty() ? membership_.Reachable() : std::vector<int>()) {
    if (!membership_.IsLeaf(rank) || !rendezvous_->IsNewcomer(rank)) continue;
    absl::Status weighs = CheckWeights(membership_.NameOf(rank), membership_.ranks(rank));
    if (!weighs.ok()) misfits.emplace_back(rank, std::move(weighs));
  }
  for (const auto& [rank, refused] : misfits) Dismiss(rank, refused, effects);
  return !misfits.empty();
}

void SessionCore::Dismiss(int rank, const absl::Status& refused, Effects& effects) {
  effects.push_back(
      SendEffect{.rank = rank,
                 .frame = {.header = wire::Failure{.code = static_cast<int>(refused.code()),
                                                   .message = std::string(refused.message()),
                                                   .blamed_rank = rank}}});
  effects.push_back(
      LogEffect{.level = LogEffect::Level::kWarning, .message = std::string(refused.message())});
  rendezvous_->Leave(rank, effects);
}

}  // namespace gradwire::server
