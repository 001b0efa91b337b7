// Members of node groups are never late: these are of a member without a group.
#include "client/core/grouped_member.h"
#include "client/core/member.h"

namespace gradwire::client {

absl::StatusOr<bool> GroupedMember::TakePast(std::int64_t step, const GradBucket& bucket) {
  return member_->TakePast(step, bucket);
}

absl::Status GroupedMember::EndPast(std::int64_t step) { return member_->EndPast(step); }

bool GroupedMember::HasBegunPast(std::int64_t step) const { return member_->HasBegunPast(step); }

void GroupedMember::SetLossScale(double scale) { member_->SetLossScale(scale); }

void GroupedMember::DropLate() { member_->DropLate(); }

bool GroupedMember::has_late() const { return !member_->late().kept().empty(); }

std::int64_t GroupedMember::missed_steps() const { return member_->missed_steps(); }

}  // namespace gradwire::client
