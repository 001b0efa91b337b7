#include "client/core/shard_losses.h"

#include <algorithm>

#include "client/core/shard_reports.h"

namespace gradwire::client {

ShardLosses::Next ShardLosses::OnLost(std::uint32_t shard, const ShardLoss& loss) {
  Next next{.number = number_};
  const bool is_old = loss.asked && *loss.asked != number_;
  if (is_old || lost_[shard]) return next;
  const bool first =
      std::none_of(lost_.begin(), lost_.end(), [](const auto& one) { return one.has_value(); });
  lost_[shard] = loss;
  for (std::uint32_t i = 0; i < lost_.size(); ++i) {
    if (!lost_[i]) next.ask.push_back(i);
  }
  if (!next.ask.empty()) {
    if (!first) next.ask.clear();  // they have been asked
    return next;
  }
  std::vector<wire::MemberReport> reports;
  for (std::uint32_t i = 0; i < lost_.size(); ++i) {
    if (lost_[i]->report) {
      reports.push_back(*lost_[i]->report);
    } else if (!next.ends_with) {
      next.ends_with = i;
    }
    lost_[i].reset();
  }
  ++number_;
  if (!next.ends_with) next.report = ReportOfAll(reports);
  return next;
}

}  // namespace gradwire::client
