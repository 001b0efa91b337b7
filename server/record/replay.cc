#include "server/record/replay.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "hooks/reduce.h"
#include "proto/wire/digest.h"
#include "proto/wire/step_chain.h"

namespace gradwire::server {
namespace {

// A chunk that was computed again.
struct Computed {
  std::uint64_t digest = 0;
  ElementRange range{};
  std::optional<WrongElement> wrong{};
  bool released = false;  // the recording has a result of it
};

class Replayer final : public StepVisitor {
 public:
  void OnStep(RecordedStep step) override {
    manifest_ = std::exchange(step.manifest, {});
    report_.step = std::move(step);
  }
  void OnBucket(const RecordedBucket& bucket) override {
    buckets_[bucket.id] = {.name = manifest_.BucketName(bucket.parameters),
                           .rounds = bucket.rounds};
  }
  void OnReduction(const RecordedReduction& reduction) override;
  void OnEnd(const RecordedEnd& end) override;

  ReplayReport TakeReport() { return std::move(report_); }

 private:
  struct Bucket {
    std::string name;
    std::vector<wire::ChunkLayout> rounds;
  };

  void Add(ReplayDifference difference) {
    ++report_.differences;
    if (report_.listed.size() < ReplayReport::kMostListed) {
      report_.listed.push_back(std::move(difference));
    }
  }
  ReplayDifference At(ReplayDifference::What what, const ResultId& id) const;
  void CompareResults(const RecordedEnd& end);
  std::uint64_t StepDigest() const;
  void CompareStep(const RecordedEnd& end);

  ReplayReport report_;
  Manifest manifest_;
  std::map<std::uint32_t, Bucket> buckets_;
  std::map<ResultId, Computed> computed_;
  std::set<int> ranks_;
  bool finite_ = true;
};

void Replayer::OnReduction(const RecordedReduction& reduction) {
  const Segment& segment = reduction.segment;
  std::vector<std::byte> result(segment.bytes());
  const std::vector<Pieces> pieces = reduction.pieces();
  const ReduceOutcome outcome = segment.op == ReduceOp::kOrthonormalizedSum
                                    ? ReduceOrthonormalized(segment, pieces, result)
                                    : Reduce(segment.dtype, segment.op, segment.numel, pieces,
                                             result, reduction.raw, reduction.weight);
  finite_ = finite_ && outcome.finite;
  const std::optional<WrongElement> wrong = FindWrongElement(reduction, result);
  const wire::ChunkLayout& layout = buckets_.at(reduction.id.bucket).rounds[reduction.id.round];
  std::span<const std::byte> rest(result);
  for (std::uint32_t i = 0; i < reduction.unit.count; ++i) {
    const std::uint32_t chunk = reduction.unit.first + i;
    const std::span<const std::byte> bytes = rest.first(layout.ChunkBytes(chunk));
    rest = rest.subspan(bytes.size());
    Computed& one = computed_[{reduction.id.bucket, reduction.id.round, chunk}];
    one.digest = wire::DigestOf(bytes);
    one.range = layout.Range(chunk);
    const std::size_t begin = one.range.begin - reduction.range.begin;
    if (wrong && wrong->element >= begin && wrong->element < begin + one.range.numel()) {
      one.wrong = wrong;
      one.wrong->element += reduction.range.begin;  // counted from the segment's first
    }
  }
  ranks_.insert(reduction.ranks.begin(), reduction.ranks.end());
  for (const std::span<const std::byte>& input : reduction.inputs) report_.bytes += input.size();
}

ReplayDifference Replayer::At(ReplayDifference::What what, const ResultId& id) const {
  ReplayDifference difference{.what = what, .id = id};
  if (const auto found = buckets_.find(id.bucket); found != buckets_.end()) {
    difference.bucket = found->second.name;
  }
  return difference;
}

// A result is right where the digest is the recorded one and fp64 confirms what was computed here.
void Replayer::CompareResults(const RecordedEnd& end) {
  using What = ReplayDifference::What;
  for (const auto& [id, digest] : end.results) {
    const auto found = computed_.find(id);
    if (found == computed_.end() || std::exchange(found->second.released, true)) {
      ReplayDifference difference = At(What::kNoSum, id);
      difference.recorded = digest;
      Add(std::move(difference));
      continue;
    }
    const Computed& one = found->second;
    if (one.digest == digest && !one.wrong) continue;
    ReplayDifference difference = At(one.digest == digest ? What::kWrongSum : What::kResult, id);
    difference.range = one.range;
    difference.recorded = digest;
    difference.computed = one.digest;
    difference.wrong = one.wrong;
    Add(std::move(difference));
  }
  for (const auto& [id, one] : computed_) {
    if (one.released) continue;
    ReplayDifference difference = At(What::kNoResult, id);
    difference.range = one.range;
    difference.computed = one.digest;
    Add(std::move(difference));
  }
}

// As the daemon does it: the buckets by id, in each the results by round and chunk.
std::uint64_t Replayer::StepDigest() const {
  auto digest = static_cast<std::uint64_t>(report_.step.step);
  auto next = computed_.begin();
  for (const auto& [id, bucket] : buckets_) {
    std::uint64_t own = 0;
    for (; next != computed_.end() && next->first.bucket == id; ++next) {
      own = wire::CombineDigests(own, next->second.digest);
    }
    digest = wire::CombineDigests(digest, own);
  }
  return digest;
}

void Replayer::CompareStep(const RecordedEnd& end) {
  using What = ReplayDifference::What;
  const RecordedStep& step = report_.step;
  const auto compare = [&](What what, std::uint64_t recorded, std::uint64_t computed) {
    if (recorded != computed) Add({.what = what, .recorded = recorded, .computed = computed});
  };
  compare(What::kStepDigest, end.own_digest, report_.digest);
  // What members agree on where they are asked: the shards' digests combined, here of one shard.
  if (step.shards == 1 && end.digest != end.own_digest) {
    compare(What::kSharedDigest, end.digest,
            wire::CombineDigests(static_cast<std::uint64_t>(step.step), report_.digest));
  }
  // Other shards' results are not here, so the chain goes on from the digest that was agreed on.
  wire::StepChain chain(step.step, step.chain_before);
  chain.Advance({.step = step.step, .verdict = end.verdict, .digest = end.digest});
  if (step.shard == 0) compare(What::kChain, end.chain, chain.Before(step.step + 1));
  if (!finite_ && end.verdict == Verdict::kApply) Add({.what = What::kVerdict});
}

void Replayer::OnEnd(const RecordedEnd& end) {
  CompareResults(end);
  report_.verdict = end.verdict;
  report_.members = ranks_.size();
  report_.buckets = buckets_.size();
  report_.chunks = computed_.size();
  report_.digest = StepDigest();
  CompareStep(end);
}

}  // namespace

absl::StatusOr<ReplayReport> Replay(RecordSource& source) {
  Replayer replayer;
  if (absl::Status read = ReadStep(source, replayer); !read.ok()) return read;
  return replayer.TakeReport();
}

}  // namespace gradwire::server
