// A member of a node group on a new stream, and with a further daemon.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_code.h"
#include "base/mutants.h"
#include "client/core/grouped_member.h"
#include "client/core/member.h"
#include "proto/wire/share_owners.h"

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
  report.shares = grouped() ? group_->shares : 0;
  return report;
}

// Peers may have left calls of the old communicator already, or never make theirs. A member alone
// in its group waits for nobody, and what it has begun is dropped with the step, or has ended.
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
  const bool shrinks =
      welcome.recovery && welcome.recovery->roster && !IsActive(Mutant::kMeanOfAllRanks);
  members_ =
      shrinks ? static_cast<int>(welcome.recovery->roster->ranks.size()) : options_.world_size;
  if (!welcome.group) {
    leaf_groups_ = 0;
    return absl::OkStatus();
  }
  if (absl::Status joined = Join(*welcome.group); !joined.ok()) return joined;
  if (is_first && grouped()) {
    effects.push_back(GroupEffect{.group = *group_, .names = !IsAlone() && index_ == 0});
  }
  return absl::OkStatus();
}

// The codec has checked that ranks ascend. A coordinator that leaves this member out would give it
// no share.
absl::Status GroupedMember::Join(const wire::NodeGroup& group) {
  const auto own = std::ranges::find(group.ranks, options_.rank);
  if (own == group.ranks.end()) {
    return Coded(ErrorCode::kBadAnswer,
                 absl::InternalError("the coordinator sent a node group without this member"));
  }
  member_->SetGroup(static_cast<int>(group.group), static_cast<int>(group.groups));
  if (group.shares == 1) {  // nobody here has a group of several: the session has leaves
    leaf_groups_ = group.groups;
    return absl::OkStatus();
  }
  if (!shares_) shares_.emplace(options_.manifest, group.shares, whole_buckets_);
  group_ = group;
  const std::size_t index = static_cast<std::size_t>(own - group.ranks.begin());
  const std::size_t index_before = std::exchange(index_, index);
  const std::vector<std::size_t> before =
      std::exchange(owners_, wire::ShareOwners(group.ranks, group.shares));
  NoteShares(before, index_before);
  member_->SetInNodeGroup();
  return absl::OkStatus();
}

void GroupedMember::NoteShares(std::span<const std::size_t> owners_before,
                               std::size_t index_before) {
  for (std::uint32_t p = 0; p < options_.manifest.size() && !owners_before.empty(); ++p) {
    const std::uint32_t share = shares_->ShareOf(p);
    const bool had = owners_before[share] == index_before;
    const bool has = owners_[share] == index_;
    if (had && !has) leaving_.insert(options_.manifest[p].name);
    if (has) leaving_.erase(options_.manifest[p].name);
  }
}

// Nobody sends this member the next factors of a share that is another one's. It would have old
// ones when it has the share again.
void GroupedMember::ForgetShares() {
  if (leaving_.empty() || IsActive(Mutant::kSharesNotForgotten)) return;
  hook_->Forget(std::vector<std::string>(leaving_.begin(), leaving_.end()));
  leaving_.clear();
}

// Residuals and factors lie with the members by their shares. Groups, and how many processes
// contribute, by which gradients have weights, change only with the roster; how many shares there
// are, never.
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
  const bool may_move = has_roster && awaits_welcome();
  const bool is_same = may_move && group ? group->shares == group_->shares : group == group_;
  if (grouped() ? is_same : !has_groups) return absl::OkStatus();
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
  for (auto& [ticket, bucket] : buckets_) Begin(ticket, bucket, effects);
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
