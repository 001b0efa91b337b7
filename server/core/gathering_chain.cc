// Whether the members have applied the same up to the step that goes on.
#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "proto/wire/step_chain.h"
#include "server/core/gathering.h"

namespace gradwire::server {
namespace {

// The member's chain when it has heard of the steps before `step`.
wire::StepChain ChainAt(const wire::MemberReport& report, std::span<const wire::StepDone> ended,
                        std::int64_t step) {
  wire::StepChain chain(report.step, report.chain);
  for (const wire::StepDone& done : ended) {
    if (done.step < step) chain.Advance(done);
  }
  return chain;
}

}  // namespace

// A newcomer may not know its chain, and members of an earlier version know none.
std::string Gathering::DecideChain(const Reporters& all, Outcome& outcome) {
  std::optional<Reporter> first;
  for (const Reporter& one : all) {
    if (!wire::StepChain(one.report->step, one.report->chain).known()) continue;
    if (!first) {
      first = one;
      outcome.chain = ChainAt(*one.report, outcome.ended, outcome.step).Before(outcome.step);
      continue;
    }
    const std::int64_t step = std::max(first->report->step, one.report->step);
    if (ChainAt(*first->report, outcome.ended, step) == ChainAt(*one.report, outcome.ended, step)) {
      continue;
    }
    return absl::StrCat("ranks ", first->rank, " and ", one.rank,
                        " have different digests of the steps before step ", step);
  }
  return "";
}

}  // namespace gradwire::server
