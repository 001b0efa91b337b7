// A member of a node group on a new stream, and with a further daemon.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_code.h"
#include "base/mutants.h"
#include "client/core/grouped_member.h"
#include "client/core/member.h"

namespace gradwire::client {
namespace {

std::string Describe(const std::optional<wire::NodeGroup>& group) {
  if (!group) return "no node groups";
  return absl::StrCat("this member in the node group of ranks ", absl::StrJoin(group->ranks, ", "),
                      ", one of ", group->groups, " with ", group->shares, " shares");
}

}  // namespace

// Buckets first: a share's announcement counts only where its bucket is known.
void GroupedMember::Resumed(Effects& effects) {
  if (grouped() && !IsAlone() && !failed() && !awaits_welcome()) {
    if (index_ == 0 && !id_.empty()) {
      effects.push_back(
          SendFrameEffect{wire::GroupId{.generation = options_.generation, .id = id_}});
    }
    for (const auto& [ticket, bucket] : buckets_) {
      if (done_ || IsActive(Mutant::kGroupBucketsNotResumed)) continue;
      effects.push_back(SendFrameEffect{FrameOf(bucket)});
    }
  }
  Effects inner;
  member_->Resumed(inner);
  Take(inner, effects);
}

// A bucket counts as contributed before any chunk of it: the group may have exchanged it.
wire::MemberReport GroupedMember::Report() const {
  wire::MemberReport report = member_->Report();
  report.has_contributed |= sent_;
  return report;
}

// Peers may have left calls of the old communicator already, or never make theirs. A member alone
// in its group waits for nobody.
void GroupedMember::Rejoined(std::uint64_t generation, Effects& effects) {
  options_.generation = generation;
  member_->Rejoined(generation);
  if (!grouped()) return;
  prepared_.reset();
  if (IsAlone()) return;
  id_.clear();
  next_order_ = 0;
  tasks_.clear();
  busy_ = false;
  users_ticket_.clear();
  for (auto& [ticket, bucket] : buckets_) {
    bucket.orders = 0;
    bucket.exchanged = false;
    bucket.open_shares = 0;
  }
  effects.push_back(AbortGroupEffect{});
}

absl::Status GroupedMember::On(const wire::Welcome& welcome, Effects& effects) {
  const bool is_first = !std::exchange(welcomed_, true);
  if (absl::Status same = is_first ? absl::OkStatus() : CheckSamePlace(welcome); !same.ok()) {
    return same;
  }
  const bool shrinks = welcome.recovery && welcome.recovery->roster;
  leaf_members_ =
      shrinks ? static_cast<int>(welcome.recovery->roster->ranks.size()) : options_.world_size;
  if (welcome.group && (is_first || !grouped())) Join(*welcome.group, effects);
  if (!welcome.group) leaf_groups_ = 0;
  return absl::OkStatus();
}

// Residuals and factors lie with the members by their shares. How many processes contribute, by
// which gradients have weights, changes only with the roster.
absl::Status GroupedMember::CheckSamePlace(const wire::Welcome& welcome) const {
  const std::optional<wire::NodeGroup>& group = welcome.group;
  const bool has_groups = group && group->shares > 1;
  const bool has_roster = this->shrinks() || (welcome.recovery && welcome.recovery->roster);
  const auto all = static_cast<std::uint32_t>(options_.world_size);
  const std::uint32_t processes = group ? group->groups : all;
  const std::uint32_t before = leaf_groups_ > 0 ? leaf_groups_ : all;
  if (!grouped() && !has_groups && !has_roster && processes != before) {
    return Coded(
        ErrorCode::kLeaf,
        absl::FailedPreconditionError(absl::StrCat(
            "the session goes on with ", processes, " leaf daemons and trainers; allowed: ", before,
            ", as before. In the place of a lost one must come one that stands for "
            "the same ranks")));
  }
  if (grouped() ? group == group_ : !has_groups) return absl::OkStatus();
  return Coded(ErrorCode::kNodeGroup,
               absl::FailedPreconditionError(absl::StrCat(
                   "the session goes on with ", Describe(group), "; allowed: ", Describe(group_),
                   ", as before. A process in the place of a lost member must run on that one's "
                   "node, or the processes of a whole node on another one")));
}

// Buckets that were begun since the report: of what was sent before, the step was dropped.
void GroupedMember::GoOn(Effects& effects) {
  effects.push_back(GroupEffect{.group = *group_, .names = !IsAlone() && index_ == 0});
  sent_ = !buckets_.empty();
  if (IsAlone()) return;
  for (const auto& [ticket, bucket] : buckets_) effects.push_back(SendFrameEffect{FrameOf(bucket)});
}

void GroupedMember::Drop(Effects& effects) {
  if (std::exchange(busy_, false)) effects.push_back(AbortGroupEffect{});
  for (const auto& [ticket, bucket] : buckets_) {
    effects.push_back(BucketDoneEffect{
        .ticket = ticket, .status = absl::OkStatus(), .bucket = bucket.parameters.front()});
  }
  buckets_.clear();
  by_id_.clear();
  tasks_.clear();
}

}  // namespace gradwire::client
