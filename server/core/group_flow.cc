#include "server/core/group_flow.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/mutants.h"

namespace gradwire::server {
namespace {

constexpr std::uint32_t kNoBucket = UINT32_MAX;

}  // namespace

GroupFlow::GroupFlow(const SessionOptions& options, const Membership& membership)
    : options_(options), membership_(membership), groups_(options.world_size) {}

void GroupFlow::SetGroups(NodeGroups groups) {
  groups_ = std::move(groups);
  if (!groups_.any()) return;
  ids_.resize(groups_.count());
  orders_.resize(groups_.count());
  former_orders_.resize(groups_.count());
  owner_.assign(options_.manifest.size(), kNoBucket);
}

// Repeated after a resume: the others have the first one.
MaybeFailure GroupFlow::OnId(int rank, const wire::GroupId& id, Effects& effects) {
  const std::vector<int>& ranks = groups_.RanksWith(rank);
  if (!IsLed(rank) || ranks.front() != rank) {
    return ViolationOf(rank, absl::FailedPreconditionError(
                                 "named a node group's communicator; allowed: the first member of "
                                 "a group of several"));
  }
  std::string& known = ids_[groups_.GroupOf(rank)];
  if (!known.empty()) return std::nullopt;
  known = id.id;
  for (const int other : ranks) {
    if (other == rank || membership_.state(other) != MemberState::kConnected) continue;
    effects.push_back(SendEffect{.rank = other, .frame = {.header = id}});
  }
  return std::nullopt;
}

// Positions come from the wire and are checked before one indexes `owner_`.
absl::Status GroupFlow::CheckBucket(const wire::GroupBucket& bucket) const {
  std::vector<std::uint32_t> sorted = bucket.parameters;
  std::sort(sorted.begin(), sorted.end());
  if (sorted.empty() || sorted.back() >= options_.manifest.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("has a bucket of parameter ", sorted.empty() ? 0 : sorted.back(),
                     "; the manifest has ", options_.manifest.size()));
  }
  const std::string name = options_.manifest.BucketName(bucket.parameters);
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    return absl::InvalidArgumentError(absl::StrCat("has bucket ", name, " with a parameter twice"));
  }
  const std::uint32_t id = bucket.parameters.front();
  for (const std::uint32_t p : bucket.parameters) {
    if (owner_[p] == kNoBucket || owner_[p] == id) continue;
    return Coded(ErrorCode::kBucketsDiffer,
                 absl::InvalidArgumentError(absl::StrCat(
                     "has bucket ", name, " in step ", step_, ", but parameter ",
                     options_.manifest[p].name, " is in bucket ",
                     options_.manifest.BucketName(buckets_.at(owner_[p]).parameters), " already")));
  }
  const auto known = buckets_.find(id);
  if (known == buckets_.end() || known->second.parameters == bucket.parameters) {
    return absl::OkStatus();
  }
  return Coded(ErrorCode::kBucketsDiffer,
               absl::InvalidArgumentError(
                   absl::StrCat("has bucket ", name, " in step ", step_, "; another member's is ",
                                options_.manifest.BucketName(known->second.parameters))));
}

bool GroupFlow::IsExchanged(const Bucket& bucket, int rank) const {
  const std::vector<int>& ranks = groups_.RanksWith(rank);
  return std::all_of(ranks.begin(), ranks.end(), [&](int r) { return bucket.had[Index(r)]; });
}

absl::Status GroupFlow::OnBucket(int rank, const wire::GroupBucket& announced, Effects& effects) {
  if (!IsLed(rank)) {
    return absl::FailedPreconditionError("sent a bucket of a node group; it is in none");
  }
  if (absl::Status status = CheckBucket(announced); !status.ok()) return status;
  const std::uint32_t id = announced.parameters.front();
  const auto [found, is_new] = buckets_.try_emplace(id);
  Bucket& bucket = found->second;
  if (is_new) {
    bucket.parameters = announced.parameters;
    bucket.had.resize(Index(options_.world_size));
    bucket.unreduced = announced.parameters.size();
    for (const std::uint32_t p : bucket.parameters) owner_[p] = id;
  }
  if (bucket.had[Index(rank)]) return absl::OkStatus();  // repeated after a resume
  bucket.had[Index(rank)] = true;
  if (IsExchanged(bucket, rank) || IsActive(Mutant::kExchangeOrderedEarly)) {
    Order(groups_.GroupOf(rank), id, /*gather=*/false, effects);
  }
  return absl::OkStatus();
}

wire::GroupOrder GroupFlow::OrderOf(std::int64_t step, const Orders& orders, std::size_t number) {
  return {.step = step,
          .number = static_cast<std::uint32_t>(number),
          .bucket = orders[number] / 2,
          .gather = orders[number] % 2 == 1};
}

// A member without a stream gets it when it resumes.
void GroupFlow::Order(std::size_t group, std::uint32_t bucket, bool gather, Effects& effects) {
  Orders& orders = orders_[group];
  orders.push_back(2 * bucket + (gather ? 1 : 0));
  const wire::GroupOrder order = OrderOf(step_, orders, orders.size() - 1);
  for (const int rank : groups_.ranks(group)) {
    if (membership_.state(rank) != MemberState::kConnected) continue;
    effects.push_back(SendEffect{.rank = rank, .frame = {.header = order}});
  }
}

// A share outside of the bucket that the group exchanged would count towards another one's results,
// and that one would be gathered too early.
absl::Status GroupFlow::CheckShare(int rank, const wire::Announce& announce) const {
  const auto error = [&](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat("announced share ", announce.share, " of bucket ",
                     options_.manifest.BucketName(announce.parameters), what));
  };
  if (announce.share >= groups_.shares()) {
    return error(absl::StrCat("; the session has ", groups_.shares()));
  }
  if (!groups_.contributors(announce.share)->has(Index(rank))) {
    return error(absl::StrCat(", which another member of its node group (",
                              groups_.Name(groups_.GroupOf(rank)), ") has"));
  }
  // One alone sends what its group of one has, and the others' parts of it are checked.
  if (!IsLed(rank)) return absl::OkStatus();
  const std::uint32_t id = owner_[announce.parameters.front()];
  const bool in_one =
      id != kNoBucket && std::all_of(announce.parameters.begin(), announce.parameters.end(),
                                     [&](std::uint32_t p) { return owner_[p] == id; });
  if (!in_one) return error(", which is no part of one bucket of its node group");
  if (!IsExchanged(buckets_.at(id), rank)) {
    return error(" before its node group was told to exchange it");
  }
  return absl::OkStatus();
}

void GroupFlow::OnReduced(const std::vector<std::uint32_t>& parameters, Effects& effects) {
  if (!groups_.any()) return;
  const auto found = buckets_.find(owner_[parameters.front()]);
  if (found == buckets_.end()) return;
  found->second.unreduced -= parameters.size();
  if (found->second.unreduced > 0 && !IsActive(Mutant::kGatherOrderedEarly)) return;
  for (std::size_t g = 0; g < groups_.count(); ++g) {
    if (groups_.ranks(g).size() > 1) Order(g, found->first, /*gather=*/true, effects);
  }
}

void GroupFlow::BeginStep(std::int64_t step) {
  step_ = step;
  if (!groups_.any()) return;
  buckets_.clear();
  std::fill(owner_.begin(), owner_.end(), kNoBucket);
  former_orders_ = std::exchange(orders_, std::vector<Orders>(groups_.count()));
}

// Orders that it has already are ignored by their numbers.
void GroupFlow::Resume(int rank, std::int64_t member_step, Effects& effects) {
  if (!IsLed(rank) || IsActive(Mutant::kOrdersNotResumed)) return;
  const std::size_t group = groups_.GroupOf(rank);
  if (!ids_[group].empty() && groups_.ranks(group).front() != rank) {
    effects.push_back(SendEffect{
        .rank = rank,
        .frame = {.header = wire::GroupId{.generation = options_.generation, .id = ids_[group]}}});
  }
  const auto send = [&](std::int64_t step, const Orders& orders) {
    for (std::size_t n = 0; n < orders.size(); ++n) {
      effects.push_back(SendEffect{.rank = rank, .frame = {.header = OrderOf(step, orders, n)}});
    }
  };
  if (member_step < step_) send(step_ - 1, former_orders_[group]);
  send(step_, orders_[group]);
}

MaybeFailure GroupFlow::CheckEnded(const std::vector<bool>& ended) const {
  for (const auto& [id, bucket] : buckets_) {
    for (std::size_t r = 0; r < ended.size(); ++r) {
      if (!ended[r] || bucket.had[r] || !IsLed(static_cast<int>(r))) continue;
      return ViolationOf(
          static_cast<int>(r),
          Coded(ErrorCode::kBucketsDiffer, absl::FailedPreconditionError(absl::StrCat(
                                               "ended step ", step_, " without bucket ",
                                               options_.manifest.BucketName(bucket.parameters),
                                               ", which another member has"))));
    }
  }
  return std::nullopt;
}

// The shares of a bucket that its groups have exchanged are buckets of their own, of which others
// tell.
GroupFlow::Missing GroupFlow::FindMissing() const {
  for (const auto& [id, bucket] : buckets_) {
    std::vector<int> missing;
    for (int r = 0; r < options_.world_size; ++r) {
      if (!bucket.had[Index(r)] && IsLed(r)) missing.push_back(r);
    }
    if (missing.empty()) continue;
    return {.ranks = std::move(missing), .bucket = options_.manifest.BucketName(bucket.parameters)};
  }
  return {};
}

std::string GroupFlow::WaitingFor(absl::Time now) const {
  const Missing missing = FindMissing();
  if (missing.ranks.empty()) return "";
  return absl::StrCat("step ", step_, " waits for ", membership_.Names(missing.ranks, now),
                      " to have bucket ", missing.bucket);
}

std::string GroupFlow::WaitingForShares() const {
  for (const auto& [id, bucket] : buckets_) {
    if (bucket.unreduced == 0) continue;
    return absl::StrCat("step ", step_,
                        " waits for the node groups to announce their shares of bucket ",
                        options_.manifest.BucketName(bucket.parameters));
  }
  return "";
}

std::size_t GroupFlow::BytesForBucket(std::size_t members) {
  // In each of two steps two orders for each group, of which there are half as many as members. The
  // lists may have room for twice as many. Members take a bit each.
  constexpr std::size_t kOrders = 4;
  return sizeof(Bucket) + 2 * sizeof(std::uint32_t) +
         members * (kOrders * sizeof(std::uint32_t) + 1);
}

}  // namespace gradwire::server
