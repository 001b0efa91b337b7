#include "client/core/shard_reports.h"

#include <utility>

#include "base/mutants.h"

namespace gradwire::client {

// A step can have ended only if every shard had contributions from everybody, and a bucket's
// results may be at one shard and not at another.
wire::MemberReport ReportOfAll(std::span<const wire::MemberReport> reports) {
  wire::MemberReport all = reports.front();
  if (IsActive(Mutant::kReportOfLeadOnly)) return all;
  for (const wire::MemberReport& one : reports.subspan(1)) {
    all.keeps_gradients &= one.keeps_gradients;
    // Shard 0 has ended the step since, and began the next one, of which this shard has nothing.
    if (one.step != all.step) continue;
    all.has_contributed |= one.has_contributed;
    all.may_have_results |= one.may_have_results;
    all.has_seen_results |= one.has_seen_results;
    all.in_collective |= one.in_collective;
  }
  return all;
}

wire::MemberReport ReportToFollow(wire::MemberReport own, std::optional<wire::Roster> roster) {
  own.has_contributed = own.may_have_results = own.has_seen_results = false;
  own.ready.reset();
  own.roster = std::move(roster);
  own.concluded.clear();
  return own;
}

}  // namespace gradwire::client
