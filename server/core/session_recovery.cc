// How a session goes on after the loss of its daemon, and what members must know for that.
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "server/core/collective_flow.h"
#include "server/core/session_core.h"
#include "server/core/step.h"

namespace gradwire::server {

// None where a fresh daemon would lack something: state of the coordinator's own, or an order that
// only it knows.
std::optional<wire::Recovery> SessionCore::RecoveryOf(const NodeGroups& groups) const {
  const CoordinatorHook* const hook = hook_state_.hook();
  const bool has_state = hook != nullptr && hook->StateBytes() > 0;
  bool has_leaves = groups.has_leaves();
  for (int r = 0; r < options_.world_size; ++r) has_leaves |= membership_.IsLeaf(r);
  if (options_.coordinator_grace <= absl::ZeroDuration() || options_.shard.count() > 1 ||
      options_.leaf.is_leaf() || groups.any() || has_leaves || has_state) {
    return std::nullopt;
  }
  constexpr std::int64_t kLongest = std::numeric_limits<std::uint32_t>::max();
  const std::int64_t grace = absl::ToInt64Milliseconds(options_.coordinator_grace);
  return wire::Recovery{.session_key = options_.session_key,
                        .lineage = options_.lineage,
                        .grace_milliseconds = static_cast<std::uint32_t>(
                            std::clamp(grace, std::int64_t{1}, kLongest))};
}

// The end of the last step comes before the Welcome, after which members announce what is left of
// the open one.
void SessionCore::GoOn(const Gathering::Outcome& gathered, Effects& effects) {
  step_->GoOnFrom(gathered.step, gathered.ended);
  collectives_->GoOnFrom(gathered.collectives, gathered.through);
  std::string how = "which nobody has a result of";
  if (gathered.ended) {
    effects.push_back(
        FanOutEffect{.ranks = membership_.Reachable(), .frame = {.header = *gathered.ended}});
    how = absl::StrCat("after step ", gathered.ended->step, ", which was ",
                       gathered.ended->verdict == Verdict::kApply ? "applied" : "skipped");
  }
  effects.push_back(LogEffect{.message = absl::StrCat("all members of a lost daemon are here; the "
                                                      "session goes on with step ",
                                                      gathered.step, ", ", how)});
}

void SessionCore::HandOver(Effects& effects) {
  const bool gathers = state_ == State::kJoining && options_.gathers;
  if (!gathers && (state_ != State::kRunning || !step_->outlives_daemon())) return;
  for (const int rank : membership_.Reachable()) {
    effects.push_back(CloseEffect{.rank = rank, .connection = membership_.connection(rank)});
  }
  effects.push_back(
      LogEffect{.message = gathers ? std::string("the daemon ends while members gather")
                                   : absl::StrCat("the daemon ends; members go on with the next "
                                                  "one in step ",
                                                  step_->number())});
  state_ = State::kClosed;
  membership_.End();
  step_->End();
  collectives_->End();
}

}  // namespace gradwire::server
