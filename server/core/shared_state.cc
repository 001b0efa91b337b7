#include "server/core/shared_state.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/mutants.h"
#include "proto/wire/joined_payload.h"
#include "proto/wire/owned_payload.h"
#include "server/core/bucket.h"

namespace gradwire::server {

SharedState::SharedState(CoordinatorHook* hook, Manifest manifest, std::size_t members,
                         std::size_t chunk_bytes)
    : hook_(hook),
      manifest_(std::move(manifest)),
      members_(members),
      chunk_bytes_(chunk_bytes),
      replaced_(members) {}

std::uint64_t SharedState::Place(const std::vector<std::uint32_t>& parameters) {
  if (hook_ == nullptr) return 0;
  // The draw rule: only rank 0's first announcement settles which plan is in effect, and so the
  // version.
  if (hook_->AwaitsDrawPlan(parameters) && !IsActive(Mutant::kDrawsBeforePlan)) {
    return Bucket::kAwaitsDrawPlan;
  }
  const std::uint64_t version = hook_->SharedVersion(parameters);
  if (version == 0) return 0;
  if (!versions_) versions_.emplace(manifest_.size(), members_);
  versions_->Place(parameters);
  return version;
}

// Later rounds follow from the first one's, which the member had the state for.
bool SharedState::Send(Bucket& bucket, int rank, Effects& effects, bool late) {
  if (bucket.state_version() == 0 || (bucket.round_number() > 0 && !late)) return true;
  if (versions_->Has(rank, bucket.id(), bucket.state_version())) return true;
  // Computed once for all members, outside the core; Step::OnComputed grants the bucket then.
  if (bucket.shared() == nullptr) {
    if (bucket.is_computing()) return false;
    bucket.BeginComputing();
    effects.push_back(
        ComputeEffect{.id = bucket.CurrentId(), .work = hook_->SharedState(bucket.parameters())});
    return false;
  }
  std::uint64_t total = 0;
  for (const wire::PayloadRef& piece : *bucket.shared()) total += piece->bytes();
  std::uint64_t offset = 0;
  for (const wire::PayloadRef& piece : *bucket.shared()) {
    effects.push_back(SendEffect{
        .rank = rank,
        .frame = {.header =
                      wire::SharedState{.id = bucket.CurrentId(), .offset = offset, .bytes = total},
                  .payload = piece},
        .keeper = bucket.shared()});
    offset += piece->bytes();
  }
  return true;
}

void SharedState::SetComputed(Bucket& bucket, std::vector<std::byte> bytes) {
  const std::size_t total = bytes.size();
  const wire::PayloadRef whole = wire::OwnedPayload::Make(std::move(bytes));
  // A frame's payload has at most `chunk_bytes`.
  SharedBlock pieces;
  for (std::size_t at = 0; at < total; at += chunk_bytes_) {
    pieces.push_back(wire::Part(whole, at, std::min(chunk_bytes_, total - at)));
  }
  bucket.SetShared(std::make_shared<const SharedBlock>(std::move(pieces)));
}

void SharedState::Has(int rank, const Bucket& bucket) {
  if (bucket.state_version() == 0) return;
  versions_->Set(rank, bucket.id(), bucket.state_version());
}

void SharedState::Replace() {
  if (versions_) versions_->Clear();
  std::fill(replaced_.begin(), replaced_.end(), !IsActive(Mutant::kResetNotRepeated));
}

}  // namespace gradwire::server
