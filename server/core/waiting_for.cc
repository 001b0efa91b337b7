#include "server/core/waiting_for.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/core/collective_flow.h"
#include "server/core/membership.h"
#include "server/core/step.h"

namespace gradwire::server {
namespace {

class Sentence {
 public:
  Sentence(const Step& step, const Membership& membership, absl::Time now)
      : step_(step), membership_(membership), now_(now) {}

  std::string OfStep() const;

 private:
  std::string Names(const std::vector<int>& ranks) const { return membership_.Names(ranks, now_); }
  const Bucket* OldestOpen() const;
  // A bucket that keeps others from being granted.
  const Bucket* Holder() const;
  std::string OfBucket(const Bucket& bucket) const;
  std::string OfRound(const Bucket& bucket) const;

  const Step& step_;
  const Membership& membership_;
  const absl::Time now_;
};

const Bucket* Sentence::OldestOpen() const {
  const Bucket* oldest = nullptr;
  for (const auto& [key, bucket] : step_.buckets().all()) {
    if (bucket.step() != step_.number() || bucket.reduced()) continue;
    if (oldest == nullptr || bucket.order() < oldest->order()) oldest = &bucket;
  }
  return oldest;
}

const Bucket* Sentence::Holder() const {
  const Bucket* holder = nullptr;
  for (const auto& [key, bucket] : step_.buckets().all()) {
    if (bucket.is_open() && (holder == nullptr || (bucket.reduced() && !holder->reduced()))) {
      holder = &bucket;
    }
  }
  return holder;
}

std::string Sentence::OfStep() const {
  if (!step_.began()) {
    return absl::StrCat("waits for ", Names(membership_.Staying()), " to begin step ",
                        step_.number());
  }
  if (std::string group = step_.groups().WaitingFor(now_); !group.empty()) return group;
  const Bucket* const oldest = OldestOpen();
  const bool needs_grant = oldest != nullptr && !oldest->is_open() && oldest->has_rounds() &&
                           oldest->WaitsForGrant() && oldest->IsAnnouncedByAll();
  if (needs_grant) {  // one that somebody has not acknowledged, or not finished, is in its way
    if (const Bucket* const holder = Holder()) return OfBucket(*holder);
  }
  if (oldest != nullptr) return OfBucket(*oldest);
  if (std::string shares = step_.groups().WaitingForShares(); !shares.empty()) return shares;
  for (const auto& [key, bucket] : step_.buckets().all()) {
    if (bucket.is_open() && bucket.step() < step_.number()) return OfBucket(bucket);
  }
  std::vector<int> missing;
  for (int r = 0; r < membership_.world_size(); ++r) {
    if (!step_.HasEnded(r)) missing.push_back(r);
  }
  return absl::StrCat("step ", step_.number(),
                      " waits for further buckets, or the end of the step, from ", Names(missing));
}

std::string Sentence::OfBucket(const Bucket& bucket) const {
  const std::string name = absl::StrCat("bucket ", bucket.name());
  if (!bucket.IsAnnouncedByAll()) {
    return absl::StrCat("step ", bucket.step(), " waits for ", Names(bucket.Unannounced()),
                        " to announce ", name);
  }
  if (bucket.is_computing()) {
    return absl::StrCat("step ", bucket.step(), " computes the factors that members need for ",
                        name);
  }
  if (!bucket.has_rounds()) {
    return absl::StrCat("step ", bucket.step(), " is about to finish ", name);
  }
  if (!bucket.round().finished()) return OfRound(bucket);
  std::vector<int> missing;
  for (const int r : membership_.Staying()) {
    if (!bucket.HasAll(r)) missing.push_back(r);
  }
  return absl::StrCat("step ", bucket.step(), " waits for ", Names(missing), " to acknowledge ",
                      name);
}

std::string Sentence::OfRound(const Bucket& bucket) const {
  const Round& round = bucket.round();
  const std::uint32_t first = round.released();
  const Round::Unit unit = round.layout().UnitOf(first);
  for (std::uint32_t c = first; c < unit.first + unit.count; ++c) {
    std::vector<int> missing;
    for (int r = 0; r < membership_.world_size(); ++r) {
      if (!round.Has(r, c)) missing.push_back(r);
    }
    missing = bucket.contributors().Among(std::move(missing));
    if (missing.empty()) continue;
    return absl::StrCat("step ", bucket.step(), " waits for ", Names(missing), ": chunk ", c,
                        " of ", round.chunk_count(), " of bucket ", bucket.name());
  }
  const std::vector<int> behind =
      round.IsReducing(first) ? std::vector<int>() : step_.flow().WindowsWithout(bucket, first);
  if (behind.empty()) {
    return absl::StrCat("step ", bucket.step(), " reduces bucket ", bucket.name());
  }
  return absl::StrCat("step ", bucket.step(), " waits for ", Names(behind),
                      " to acknowledge results of bucket ", bucket.name());
}

}  // namespace

std::string WaitingFor(const Step& step, const CollectiveFlow& collectives,
                       const Membership& membership, absl::Time now) {
  std::string collective = collectives.WaitingFor();
  if (!collective.empty()) return collective;
  return Sentence(step, membership, now).OfStep();
}

}  // namespace gradwire::server
