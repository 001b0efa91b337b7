#include "client/core/missed_buckets.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"

namespace gradwire::client {

void MissedBuckets::Bucket::CopyTo(const GradBucket& bucket) const {
  const std::byte* from = memory.data();
  for (const TensorView& place : bucket.runs()) {
    if (place.bytes() > 0) std::memcpy(place.data, from, place.bytes());
    from += place.bytes();
  }
}

absl::StatusOr<MissedBuckets::Bucket*> MissedBuckets::Add(
    const std::vector<std::uint32_t>& parameters) {
  std::vector<ParameterSpec> specs;
  std::size_t numel = 0;
  for (const std::uint32_t position : parameters) {
    specs.push_back(manifest_[position]);
    numel += manifest_[position].numel();
  }
  const DType dtype = specs.front().dtype;
  Bucket& bucket = open_[parameters.front()];
  bucket = {.parameters = parameters, .memory = std::vector<std::byte>(numel * ByteSize(dtype))};
  auto scratch = GradBucket::Make(0, {.dtype = dtype, .data = bucket.memory.data(), .numel = numel},
                                  std::move(specs));
  if (!scratch.ok()) {
    open_.erase(parameters.front());
    return scratch.status();
  }
  bucket.scratch = std::make_unique<GradBucket>(*std::move(scratch));
  return &bucket;
}

MissedBuckets::Bucket* MissedBuckets::Find(std::uint32_t id) {
  const auto found = open_.find(id);
  return found == open_.end() ? nullptr : &found->second;
}

const MissedBuckets::Bucket* MissedBuckets::Find(std::uint32_t id) const {
  const auto found = open_.find(id);
  return found == open_.end() ? nullptr : &found->second;
}

absl::StatusOr<MissedBuckets::Bucket*> MissedBuckets::Match(
    Buckets& buckets, std::span<const std::uint32_t> parameters) const {
  for (auto& [id, bucket] : buckets) {
    if (std::ranges::equal(bucket.parameters, parameters)) return &bucket;
    for (const std::uint32_t position : parameters) {
      if (std::ranges::count(bucket.parameters, position) == 0) continue;
      return Coded(ErrorCode::kBucketsDiffer,
                   absl::InvalidArgumentError(absl::StrCat(
                       "parameter ", manifest_[position].name, " is in a bucket that begins with ",
                       manifest_[parameters.front()].name, "; other members' begins with ",
                       manifest_[id].name, ", or has other parameters")));
    }
  }
  return nullptr;
}

absl::StatusOr<MissedBuckets::OfPast> MissedBuckets::Match(
    std::int64_t step, std::span<const std::uint32_t> parameters) {
  const auto past = past_.find(step);
  if (past == past_.end()) return OfPast{};
  const absl::StatusOr<Bucket*> bucket = Match(past->second.buckets, parameters);
  if (!bucket.ok()) return bucket.status();
  return OfPast{.bucket = *bucket, .verdict = past->second.over.verdict};
}

void MissedBuckets::Conclude(const Over& over) {
  const bool waits =
      std::ranges::any_of(open_, [](const auto& one) { return !one.second.is_taken; });
  if (waits && !over.dropped) past_[over.step] = {.over = over, .buckets = std::move(open_)};
  open_.clear();
}

bool MissedBuckets::HasBegun(std::int64_t step) const {
  const auto past = past_.find(step);
  return past == past_.end() || past->second.over.has_begun ||
         std::ranges::any_of(past->second.buckets,
                             [](const auto& one) { return one.second.is_taken; });
}

absl::Status MissedBuckets::CheckAllTaken(const Buckets& buckets, std::int64_t step) const {
  for (const auto& [id, bucket] : buckets) {
    if (bucket.is_taken) continue;
    return Coded(ErrorCode::kBucketsDiffer,
                 absl::FailedPreconditionError(
                     absl::StrCat("step ", step, " is ended without the bucket that begins with ",
                                  manifest_[id].name, ", which other members announced")));
  }
  return absl::OkStatus();
}

absl::Status MissedBuckets::EndPast(std::int64_t step) {
  const auto past = past_.find(step);
  if (past == past_.end()) return absl::OkStatus();
  absl::Status taken = CheckAllTaken(past->second.buckets, step);
  if (taken.ok()) past_.erase(past);
  return taken;
}

}  // namespace gradwire::client
