// A member's own state between steps, with what says whose it is.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "client/runtime/runtime.h"

namespace gradwire::client {
namespace {

// Metadata keys of a member's state. Without node groups there is no group.
constexpr const char* kRankKey = "rank";
constexpr const char* kGroupKey = "node_group";

// Which parameters have residuals here depends on it, and on the rank. Who else is in the group may
// change while the session lasts.
std::string Describe(const std::optional<wire::NodeGroup>& group) {
  return group ? absl::StrCat(group->shares, " shares") : "";
}

std::string Shortened(const std::string& text) { return text.substr(0, 100); }

}  // namespace

// A step is dropped when a member is lost. It changed nothing here, and a member that has finished
// training never began it: it must be able to leave. Others may also have ended a step in which the
// member is late before its trainer has begun it.
absl::Status Runtime::BetweenSteps(const char* call) const {
  if (absl::Status open = Open(); !open.ok()) return open;
  const bool counts = std::any_of(over_.begin(), over_.end(), [this](const auto& over) {
    return !over.dropped && member_.HasBegunPast(over.step);
  });
  if (buckets_.empty() && end_step_ == nullptr && !counts && device_.idle()) {
    return absl::OkStatus();
  }
  return Coded(ErrorCode::kWrongMoment,
               absl::FailedPreconditionError(
                   absl::StrCat(call, " in the middle of step ", step(), "; call EndStep before")));
}

absl::Status Runtime::SetLossScale(double scale) {
  if (absl::Status may = BetweenSteps("SetLossScale"); !may.ok()) return may;
  hook_->SetLossScale(scale);
  member_.SetLossScale(scale);
  return absl::OkStatus();
}

absl::StatusOr<HookState> Runtime::State() const {
  if (absl::Status may = BetweenSteps("StateDict"); !may.ok()) return may;
  HookState state = hook_->State();
  state.metadata[kRankKey] = absl::StrCat(membership_.rank);
  if (member_.grouped()) state.metadata[kGroupKey] = Describe(member_.group());
  return state;
}

absl::Status Runtime::LoadState(const HookState& state) {
  if (absl::Status may = BetweenSteps("LoadStateDict"); !may.ok()) return may;
  const auto rank = state.metadata.find(kRankKey);
  const std::string own = absl::StrCat(membership_.rank);
  // An older state has no rank.
  if (rank != state.metadata.end() && rank->second != own) {
    return Coded(ErrorCode::kStateDiffers,
                 absl::FailedPreconditionError(
                     absl::StrCat("state: saved by rank ", Shortened(rank->second), "; rank ", own,
                                  " takes only its own: each rank has residuals of its own")));
  }
  const auto group = state.metadata.find(kGroupKey);
  const std::string saved = group == state.metadata.end() ? "" : group->second;
  if (const std::string now = Describe(member_.group()); saved != now) {
    const auto named = [](const std::string& text) {
      return text.empty() ? "without node groups" : absl::StrCat("in node groups with ", text);
    };
    return Coded(ErrorCode::kStateDiffers,
                 absl::FailedPreconditionError(
                     absl::StrCat("state: saved ", named(Shortened(saved)), "; this member is ",
                                  named(now), ", where residuals lie elsewhere")));
  }
  HookState without = state;
  without.metadata.erase(kRankKey);
  without.metadata.erase(kGroupKey);
  absl::Status loaded = hook_->LoadState(without, options_.parameters);
  if (loaded.ok()) member_.DropLate();
  return loaded;
}

}  // namespace gradwire::client
