#include "server/core/bucket_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/mutants.h"
#include "proto/wire/digest.h"
#include "server/core/plan_checks.h"

namespace gradwire::server {

BucketTable::BucketTable(Manifest manifest, std::uint32_t open_buckets, ShardPlace shard)
    : manifest_(std::move(manifest)),
      open_buckets_(open_buckets),
      shard_(std::move(shard)),
      owner_(manifest_.size(), kNoBucket) {}

absl::Status BucketTable::CheckAnnouncement(const wire::Announce& announce) const {
  if (announce.parameters.empty()) return absl::InvalidArgumentError("announced an empty bucket");
  // The positions come from the wire and are checked before one indexes `owner_`. A duplicate would
  // count twice in ProgressOf, which could end the step too early.
  std::vector<std::uint32_t> sorted = announce.parameters;
  std::sort(sorted.begin(), sorted.end());
  if (sorted.back() >= manifest_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("announced parameter ", sorted.back(),
                                                   "; the manifest has ", manifest_.size()));
  }
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "announced bucket ", manifest_.BucketName(announce.parameters), " with a parameter twice"));
  }
  for (const std::uint32_t p : announce.parameters) {
    if (shard_.Owns(p)) continue;
    return Coded(ErrorCode::kShards,
                 absl::InvalidArgumentError(absl::StrCat(
                     "announced parameter ", manifest_[p].name, " to shard ", shard_.number, " of ",
                     shard_.count(), ", which does not reduce it")));
  }
  // Buckets of a step are disjoint. An owner with the same id is the bucket as another member
  // announced it. `at` finds every owner, because buckets of the open step are never dropped.
  const std::uint32_t id = announce.parameters.front();
  for (const std::uint32_t p : announce.parameters) {
    if (owner_[p] == kNoBucket || owner_[p] == id) continue;
    const Bucket& other = buckets_.at({step_, owner_[p]});
    return Coded(
        ErrorCode::kBucketsDiffer,
        absl::InvalidArgumentError(absl::StrCat(
            "announced bucket ", manifest_.BucketName(announce.parameters), " in step ", step_,
            ", but parameter ", manifest_[p].name, " is in bucket ", other.name(), " already")));
  }
  return CheckSameAsOthers(announce);
}

// Order matters: it is the layout of the members' buffers, so the sum of two permutations would add
// unlike elements. Both sides cut chunks by the plans, so these must be equal too.
absl::Status BucketTable::CheckSameAsOthers(const wire::Announce& announce) const {
  const auto found = buckets_.find({step_, announce.parameters.front()});
  if (found == buckets_.end()) return absl::OkStatus();
  const Bucket& other = found->second;
  if (other.parameters() != announce.parameters) {
    return Coded(ErrorCode::kBucketsDiffer,
                 absl::InvalidArgumentError(
                     absl::StrCat("announced bucket ", manifest_.BucketName(announce.parameters),
                                  " in step ", step_, "; another member's is ", other.name())));
  }
  if (other.share() != announce.share) {
    return Coded(ErrorCode::kBucketsDiffer,
                 absl::InvalidArgumentError(
                     absl::StrCat("announced bucket ", other.name(), " as share ", announce.share,
                                  "; another member's is share ", other.share())));
  }
  if (other.plans() != announce.rounds) {
    return Coded(ErrorCode::kBucketsDiffer,
                 absl::InvalidArgumentError(absl::StrCat(
                     "announced rounds ", PlanText(announce.rounds), " for bucket ", other.name(),
                     "; another member's are ", PlanText(other.plans()))));
  }
  return absl::OkStatus();
}

Bucket& BucketTable::Add(Bucket bucket) {
  for (const std::uint32_t p : bucket.parameters()) owner_[p] = bucket.id();
  const Key key{bucket.step(), bucket.id()};
  return buckets_.emplace(key, std::move(bucket)).first->second;
}

Bucket* BucketTable::Find(std::int64_t step, std::uint32_t id) {
  const auto found = buckets_.find({step, id});
  return found == buckets_.end() ? nullptr : &found->second;
}

// A bucket whose rounds have no chunks needs no grant. One that awaits the draw plan has no state
// version yet, so the state that its members need cannot be sent.
std::vector<Bucket*> BucketTable::Waiting() {
  std::vector<Bucket*> waiting;
  for (auto& [key, bucket] : buckets_) {
    if (!bucket.is_open() && !bucket.reduced() && !bucket.awaits_draw_plan() &&
        bucket.has_rounds() && !bucket.round().finished() && bucket.WaitsForGrant()) {
      waiting.push_back(&bucket);
    }
  }
  std::sort(waiting.begin(), waiting.end(),
            [](const Bucket* a, const Bucket* b) { return a->order() < b->order(); });
  return waiting;
}

// Grants the oldest buckets, in the order of their first announcement, and the same ones to all
// members. Members may announce in opposite orders. If each were granted its own oldest buckets,
// these could differ until no place is left, and none would ever complete: a deadlock.
std::vector<BucketTable::Granted> BucketTable::OpenNext() {
  if (IsActive(Mutant::kGrantDeadlock)) return OpenForEachMember();
  auto open = static_cast<std::size_t>(std::count_if(
      buckets_.begin(), buckets_.end(), [](const auto& entry) { return entry.second.is_open(); }));
  std::vector<Granted> granted;
  for (Bucket* bucket : Waiting()) {
    if (open >= open_buckets_) break;
    ++open;
    bucket->set_open(true);
    // A member that announces the bucket later gets its grant then (Step::TakeAnnouncement).
    for (int r = 0; r < bucket->world_size(); ++r) {
      if (bucket->IsAnnouncedBy(r)) granted.push_back({.bucket = bucket, .rank = r});
    }
  }
  return granted;
}

// A seeded bug: each member its own oldest bucket, as a naive server would.
std::vector<BucketTable::Granted> BucketTable::OpenForEachMember() {
  const std::vector<Bucket*> waiting = Waiting();
  std::vector<Granted> granted;
  for (int r = 0; !waiting.empty() && r < waiting.front()->world_size(); ++r) {
    const bool busy = std::any_of(waiting.begin(), waiting.end(),
                                  [r](const Bucket* bucket) { return bucket->IsGrantedTo(r); });
    const auto first = std::find_if(waiting.begin(), waiting.end(),
                                    [r](const Bucket* bucket) { return bucket->IsAnnouncedBy(r); });
    if (!busy && first != waiting.end()) granted.push_back({.bucket = *first, .rank = r});
  }
  return granted;
}

// A bucket gives its place to another when all members have acknowledged its results: until then
// the daemon keeps them. A bucket of an earlier step is then no longer needed at all.
std::vector<std::shared_ptr<const SharedBlock>> BucketTable::CloseAcknowledged(std::int64_t step) {
  std::vector<std::shared_ptr<const SharedBlock>> dropped;
  for (auto it = buckets_.begin(); it != buckets_.end();) {
    Bucket& bucket = it->second;
    const bool over = bucket.IsAcknowledged();
    if (over && !IsActive(Mutant::kBucketStaysOpen)) bucket.set_open(false);
    if (!over || bucket.step() >= step) {
      ++it;
      continue;
    }
    if (auto shared = bucket.TakeShared()) dropped.push_back(std::move(shared));
    it = buckets_.erase(it);
  }
  return dropped;
}

// Slots of contributions only tell repeated chunks from changed ones. Chunks of a step that is over
// are ignored without comparison (Step::CurrentBucket).
void BucketTable::EndStep(std::int64_t step) {
  for (auto& [key, bucket] : buckets_) {
    if (bucket.step() == step) bucket.ForgetContributions();
  }
  std::fill(owner_.begin(), owner_.end(), kNoBucket);
  step_ = step + 1;
}

BucketTable::Progress BucketTable::ProgressOf(std::int64_t step) const {
  Progress progress;
  for (const auto& [key, bucket] : buckets_) {
    if (bucket.step() != step) continue;
    progress.parameters += bucket.parameters().size();
    const bool early = IsActive(Mutant::kCommitAnnouncedEarly) && bucket.IsReducingAll();
    if (!bucket.reduced() && !early) progress.all_reduced = false;
  }
  return progress;
}

// Combines the buckets' digests in the order of their ids, so that the order of arrival does not
// matter. Nothing of the session is in it: two runs of the same job are compared by it.
std::uint64_t BucketTable::DigestOf(std::int64_t step) const {
  auto digest = static_cast<std::uint64_t>(step);
  for (const auto& [key, bucket] : buckets_) {
    if (bucket.step() == step) digest = wire::CombineDigests(digest, bucket.digest());
  }
  return digest;
}

std::size_t BucketTable::held_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [key, bucket] : buckets_) bytes += bucket.held_bytes();
  return bytes;
}

std::vector<ResultRef> BucketTable::Clear() {
  std::vector<ResultRef> results;
  for (auto& [key, bucket] : buckets_) bucket.TakeResults(results);
  buckets_.clear();
  return results;
}

}  // namespace gradwire::server
