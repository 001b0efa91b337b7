#include "server/record/comparison.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "hooks/cpu/kernels.h"
#include "proto/wire/digest.h"

namespace gradwire::server {
namespace {

std::uint64_t WireDigest(const RecordedReduction& reduction, std::size_t index) {
  const std::span<const std::byte> input = reduction.inputs[index];
  if (!reduction.raw.raw(index)) return wire::DigestOf(input);
  const Segment& segment = reduction.segment;
  std::vector<std::byte> encoded(segment.bytes());
  cpu::ConvertAndDivide(reduction.raw.dtype, input.data(), segment.dtype, encoded.data(),
                        segment.numel, reduction.raw.divisor);
  return wire::DigestOf(encoded);
}

class Collector final : public StepVisitor {
 public:
  void OnStep(RecordedStep step) override { contents_.step = std::move(step); }
  void OnBucket(const RecordedBucket& bucket) override {
    contents_.buckets[bucket.id] = contents_.step.manifest.BucketName(bucket.parameters);
  }
  void OnReduction(const RecordedReduction& reduction) override {
    const ResultId id{reduction.id.bucket, reduction.id.round, reduction.unit.first};
    for (std::size_t i = 0; i < reduction.ranks.size(); ++i) {
      contents_.contributions[{id, reduction.ranks[i]}] = WireDigest(reduction, i);
    }
  }
  void OnEnd(const RecordedEnd& end) override {
    contents_.verdict = end.verdict;
    for (const RecordedEnd::Result& result : end.results) {
      contents_.results[result.id] = result.digest;
    }
  }

  StepContents Take() { return std::move(contents_); }

 private:
  StepContents contents_;
};

absl::Status Differs(const std::string& what, const std::string& ours, const std::string& theirs) {
  return absl::FailedPreconditionError(absl::StrCat("the recordings cannot be compared: ", what,
                                                    " is ", ours, " in the one and ", theirs,
                                                    " in the other"));
}

absl::Status CheckComparable(const RecordedStep& ours, const RecordedStep& theirs) {
  if (ours.step != theirs.step) {
    return Differs("the step", absl::StrCat(ours.step), absl::StrCat(theirs.step));
  }
  if (ours.hook != theirs.hook) {
    return Differs("the hook", ours.hook.ToString(), theirs.hook.ToString());
  }
  if (ours.chunk_bytes != theirs.chunk_bytes) {
    return Differs("chunk_bytes", absl::StrCat(ours.chunk_bytes), absl::StrCat(theirs.chunk_bytes));
  }
  if (ours.shard != theirs.shard || ours.shards != theirs.shards) {
    return Differs("the shard", absl::StrCat(ours.shard, " of ", ours.shards),
                   absl::StrCat(theirs.shard, " of ", theirs.shards));
  }
  if (ours.manifest.list() != theirs.manifest.list()) {
    return Differs("the model", absl::StrCat("of ", ours.manifest.size(), " parameters"),
                   absl::StrCat("another, of ", theirs.manifest.size()));
  }
  return absl::OkStatus();
}

// The first entry that only one of the maps has, or that differs. Ascending, so that it is the
// first of the step.
template <class Map, class Found>
void FindFirst(const Map& ours, const Map& theirs, Found found) {
  auto a = ours.begin();
  auto b = theirs.begin();
  while (a != ours.end() || b != theirs.end()) {
    const bool only_ours = b == theirs.end() || (a != ours.end() && a->first < b->first);
    const bool only_theirs = !only_ours && (a == ours.end() || b->first < a->first);
    if (only_ours) return found(a->first, a->second, typename Map::mapped_type{}, true);
    if (only_theirs) return found(b->first, typename Map::mapped_type{}, b->second, true);
    if (a->second != b->second) return found(a->first, a->second, b->second, false);
    ++a;
    ++b;
  }
}

}  // namespace

absl::StatusOr<StepContents> ReadContents(RecordSource& source) {
  Collector collector;
  if (absl::Status read = ReadStep(source, collector); !read.ok()) return read;
  return collector.Take();
}

absl::StatusOr<std::optional<StepDifference>> Compare(const StepContents& ours,
                                                      const StepContents& theirs) {
  using What = StepDifference::What;
  if (absl::Status same = CheckComparable(ours.step, theirs.step); !same.ok()) return same;
  std::optional<StepDifference> difference;
  FindFirst(ours.buckets, theirs.buckets,
            [&](std::uint32_t id, const std::string& a, const std::string& b, bool) {
              difference = {
                  .what = What::kBuckets, .id = {.bucket = id}, .bucket = a.empty() ? b : a};
            });
  if (difference) return difference;
  FindFirst(ours.contributions, theirs.contributions,
            [&](const std::pair<ResultId, int>& at, std::uint64_t a, std::uint64_t b, bool lacks) {
              difference = {.what = lacks ? What::kBuckets : What::kContribution,
                            .id = at.first,
                            .rank = at.second,
                            .bucket = ours.buckets.at(at.first.bucket),
                            .ours = a,
                            .theirs = b};
            });
  FindFirst(ours.results, theirs.results,
            [&](const ResultId& id, std::uint64_t a, std::uint64_t b, bool lacks) {
              // What members send in a later round follows from the results before it.
              const std::pair round(id.bucket, id.round);
              if (difference && round >= std::pair(difference->id.bucket, difference->id.round)) {
                return;
              }
              const auto found = ours.buckets.find(id.bucket);
              difference = {.what = lacks ? What::kBuckets : What::kResult,
                            .id = id,
                            .bucket = found == ours.buckets.end() ? "" : found->second,
                            .ours = a,
                            .theirs = b};
            });
  if (!difference && ours.verdict != theirs.verdict) difference = {.what = What::kVerdict};
  return difference;
}

}  // namespace gradwire::server
