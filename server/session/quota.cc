#include "server/session/quota.h"

#include "absl/strings/str_cat.h"
#include "base/error_code.h"

namespace gradwire::server {

absl::StatusOr<Quota::Share> Quota::Take(std::shared_ptr<Quota> quota, Need need) {
  if (absl::Status counted = quota->Count(need); !counted.ok()) return counted;
  return Share(std::move(quota));
}

// The last quarter is reserved for first segments, without which a member shares no memory at all.
// The nested quota counts too; if it is exhausted, this one is given back.
absl::Status Quota::Count(Need need) {
  const std::size_t allowed = need == Need::kFirst ? limit_ : limit_ - limit_ / 4;
  std::size_t taken = taken_.load(std::memory_order_relaxed);
  do {
    if (taken >= allowed) {
      return Coded(ErrorCode::kQuota,
                   absl::ResourceExhaustedError(
                       absl::StrCat(whose_, " has ", taken, " ", what_, "; allowed: ", allowed)));
    }
  } while (!taken_.compare_exchange_weak(taken, taken + 1, std::memory_order_relaxed));
  if (whole_ == nullptr) return absl::OkStatus();
  absl::Status counted = whole_->Count(need);
  if (!counted.ok()) taken_.fetch_sub(1, std::memory_order_relaxed);
  return counted;
}

void Quota::Return() {
  taken_.fetch_sub(1, std::memory_order_relaxed);
  if (whole_ != nullptr) whole_->Return();
}

}  // namespace gradwire::server
