#include "server/core/waiting_for.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/collective_flow.h"
#include "server/core/membership.h"
#include "server/core/step.h"

namespace gradwire::server {
namespace {

using On = Blocking::On;

class Search {
 public:
  Search(const Step& step, const Membership& membership) : step_(step), membership_(membership) {}

  Blocking OfStep() const;

 private:
  const Bucket* OldestOpen() const;
  // A bucket that keeps others from being granted.
  const Bucket* Holder() const;
  Blocking OfBucket(const Bucket& bucket) const;
  Blocking OfRound(const Bucket& bucket) const;

  const Step& step_;
  const Membership& membership_;
};

const Bucket* Search::OldestOpen() const {
  const Bucket* oldest = nullptr;
  for (const auto& [key, bucket] : step_.buckets().all()) {
    if (bucket.step() != step_.number() || bucket.reduced()) continue;
    if (oldest == nullptr || bucket.order() < oldest->order()) oldest = &bucket;
  }
  return oldest;
}

const Bucket* Search::Holder() const {
  const Bucket* holder = nullptr;
  for (const auto& [key, bucket] : step_.buckets().all()) {
    if (bucket.is_open() && (holder == nullptr || (bucket.reduced() && !holder->reduced()))) {
      holder = &bucket;
    }
  }
  return holder;
}

Blocking Search::OfStep() const {
  if (!step_.began()) return {.on = On::kBegin, .ranks = membership_.Staying()};
  if (step_.agreement().prepared()) {
    if (step_.is_leaf()) return {.on = On::kUpstream};
    const bool leads = step_.agreement().leads();
    return {.on = On::kOtherShards,
            .ranks = leads ? step_.agreement().NotReady() : std::vector<int>()};
  }
  if (GroupFlow::Missing missing = step_.groups().FindMissing(); !missing.ranks.empty()) {
    return {.on = On::kGroup, .ranks = std::move(missing.ranks)};
  }
  const Bucket* const oldest = OldestOpen();
  const bool needs_grant = oldest != nullptr && !oldest->is_open() && oldest->has_rounds() &&
                           oldest->WaitsForGrant() && oldest->IsAnnouncedByAll();
  if (needs_grant) {  // one that somebody has not acknowledged, or not finished, is in its way
    if (const Bucket* const holder = Holder()) return OfBucket(*holder);
  }
  if (oldest != nullptr) return OfBucket(*oldest);
  if (!step_.groups().WaitingForShares().empty()) return {.on = On::kGroup};
  for (const auto& [key, bucket] : step_.buckets().all()) {
    if (bucket.is_open() && bucket.step() < step_.number()) return OfBucket(bucket);
  }
  Blocking end{.on = On::kEnd};
  for (int r = 0; r < membership_.world_size(); ++r) {
    if (!step_.HasEnded(r) && !membership_.IsElsewhere(r)) end.ranks.push_back(r);
  }
  return end;
}

Blocking Search::OfBucket(const Bucket& bucket) const {
  if (!bucket.IsAnnouncedByAll()) {
    return {.on = On::kAnnouncement, .ranks = bucket.Unannounced(), .bucket = &bucket};
  }
  if (bucket.is_computing() || !bucket.has_rounds()) return {.on = On::kDaemon, .bucket = &bucket};
  if (!bucket.round().finished()) return OfRound(bucket);
  Blocking acknowledgement{.on = On::kAcknowledgement, .bucket = &bucket};
  for (const int r : membership_.Staying()) {
    if (!bucket.HasAll(r)) acknowledgement.ranks.push_back(r);
  }
  return acknowledgement;
}

Blocking Search::OfRound(const Bucket& bucket) const {
  const Round& round = bucket.round();
  const std::uint32_t first = round.released();
  const Round::Unit unit = round.layout().UnitOf(first);
  for (std::uint32_t c = first; c < unit.first + unit.count; ++c) {
    std::vector<int> missing;
    for (int r = 0; r < membership_.world_size(); ++r) {
      if (!round.Has(r, c) && !bucket.IsMissedBy(r)) missing.push_back(r);
    }
    missing = bucket.contributors().Among(std::move(missing));
    if (missing.empty()) continue;
    return {.on = On::kChunk, .ranks = std::move(missing), .bucket = &bucket, .chunk = c};
  }
  std::vector<int> behind =
      round.IsReducing(first) ? std::vector<int>() : step_.flow().WindowsWithout(bucket, first);
  if (behind.empty()) {
    return {.on = step_.is_leaf() ? On::kUpstream : On::kDaemon, .bucket = &bucket};
  }
  return {.on = On::kWindow, .ranks = std::move(behind), .bucket = &bucket};
}

std::string OfDaemon(const Bucket& bucket) {
  if (bucket.is_computing()) {
    return absl::StrCat("step ", bucket.step(),
                        " computes the factors that members need for bucket ", bucket.name());
  }
  return absl::StrCat("step ", bucket.step(),
                      bucket.has_rounds() ? " reduces bucket " : " is about to finish bucket ",
                      bucket.name());
}

std::string Sentence(const Blocking& blocking, const Step& step, const Membership& membership,
                     absl::Time now) {
  const std::string names = membership.Names(blocking.ranks, now);
  const Bucket* const bucket = blocking.bucket;
  const std::string waits =
      absl::StrCat("step ", bucket == nullptr ? step.number() : bucket->step(), " waits for ");
  switch (blocking.on) {
    case On::kBegin:
      return absl::StrCat("waits for ", names, " to begin step ", step.number());
    case On::kGroup: {
      std::string group = step.groups().WaitingFor(now);
      return group.empty() ? step.groups().WaitingForShares() : group;
    }
    case On::kAnnouncement:
      return absl::StrCat(waits, names, " to announce bucket ", bucket->name());
    case On::kChunk:
      return absl::StrCat(waits, names, ": chunk ", blocking.chunk, " of ",
                          bucket->round().chunk_count(), " of bucket ", bucket->name());
    case On::kWindow:
      return absl::StrCat(waits, names, " to acknowledge results of bucket ", bucket->name());
    case On::kAcknowledgement:
      return absl::StrCat(waits, names, " to acknowledge bucket ", bucket->name());
    case On::kDaemon:
      return OfDaemon(*bucket);
    case On::kOtherShards:
      if (blocking.ranks.empty()) {
        return absl::StrCat(waits, "the session's first daemon to conclude it");
      }
      return absl::StrCat(waits, names, " to hold all results");
    case On::kUpstream:
      if (bucket == nullptr) return absl::StrCat(waits, "the upstream daemon to conclude it");
      return absl::StrCat(waits, "the upstream daemon's result of bucket ", bucket->name());
    case On::kEnd:
      break;
  }
  return absl::StrCat(waits, "further buckets, or the end of the step, from ", names);
}

}  // namespace

Blocking FindBlocking(const Step& step, const Membership& membership) {
  return Search(step, membership).OfStep();
}

bool WaitsForUpstream(const Step& step, const CollectiveFlow& collectives,
                      const Membership& membership) {
  if (!step.is_leaf()) return false;
  return collectives.waits_for_upstream() ||
         (step.began() && FindBlocking(step, membership).on == On::kUpstream);
}

std::string WaitingFor(const Step& step, const CollectiveFlow& collectives,
                       const Membership& membership, absl::Time now) {
  std::string sentence = collectives.WaitingFor();
  if (sentence.empty() && step.gate().shut()) return step.gate().Sentence(now);
  if (sentence.empty()) sentence = Sentence(FindBlocking(step, membership), step, membership, now);
  if (!step.gate().paused()) return sentence;
  return absl::StrCat(sentence, step.gate().shut() ? "; " : "; after this step it is ",
                      step.gate().Sentence(now));
}

}  // namespace gradwire::server
