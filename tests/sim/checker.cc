#include "tests/sim/checker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "hooks/reduce.h"

namespace gradwire::sim {
namespace {

std::string FirstDifference(DType dtype, const ByteVector& expected, const ByteVector& got) {
  if (expected.size() != got.size()) return absl::StrCat(": ", got.size(), " bytes");
  for (std::size_t i = 0; i < got.size() / ByteSize(dtype); ++i) {
    const double x = GetElement(dtype, expected, i);
    const double y = GetElement(dtype, got, i);
    if (x != y) return absl::StrFormat(": element %d is %.9g, not %.9g", i, y, x);
  }
  return "";
}

}  // namespace

Checker::Checker(const Scenario& scenario)
    : scenario_(scenario), hook_(scenario.MakeHook()), residuals_(scenario.world()) {
  if (scenario.power_sgd) MakeReference();
}

void Checker::Violate(const std::string& what) {
  if (violation_.empty()) violation_ = what;
}

ByteVector Checker::GradientBytes(int rank, std::int64_t step,
                                  const std::vector<std::uint32_t>& bucket) const {
  const auto& manifest = scenario_.options.manifest;
  const DType dtype = manifest[bucket.front()].dtype;
  ByteVector bytes;
  std::size_t at = 0;
  for (std::uint32_t p : bucket) {
    bytes.resize(bytes.size() + manifest[p].numel() * ByteSize(dtype));
    for (std::size_t i = 0; i < manifest[p].numel(); ++i, ++at) {
      PutElement(dtype, bytes, at, scenario_.Gradient(rank, step, p, i));
    }
  }
  return bytes;
}

const std::map<std::uint32_t, Checker::Layouts>& Checker::LayoutsOf(std::int64_t step) {
  const auto known = layouts_.find(step);
  if (known != layouts_.end()) return known->second;
  std::map<std::uint32_t, Layouts>& layouts = layouts_[step];
  for (const auto& bucket : scenario_.steps[static_cast<std::size_t>(step)].buckets) {
    std::vector<ParameterSpec> parameters;
    for (std::uint32_t p : bucket) parameters.push_back(scenario_.options.manifest[p]);
    const auto plans = reference_ == nullptr ? hook_->Plan(parameters, step)
                                             : reference_->coordinator().Plan(bucket);
    Layouts& rounds = layouts[bucket.front()];
    for (const RoundPlan& plan : *plans) rounds.emplace_back(plan, scenario_.options.chunk_bytes);
  }
  return layouts;
}

const Checker::Layouts* Checker::FindLayouts(const ChunkKey& key) {
  if (key.step < 0 || key.step + 1 >= static_cast<std::int64_t>(scenario_.steps.size()))
    return nullptr;
  const auto& layouts = LayoutsOf(key.step);
  const auto found = layouts.find(key.bucket);
  if (found == layouts.end() || key.round >= found->second.size()) return nullptr;
  return key.chunk < found->second[key.round].chunk_count() ? &found->second : nullptr;
}

void Checker::OnContribution(const wire::Contribution& header, const ByteVector& bytes) {
  const wire::RoundId& id = header.id;
  const SentKey key{{id.step, id.bucket, id.round, header.chunk}, id.attempt, header.rank};
  const auto [it, fresh] = sent_.emplace(key, bytes);
  if (!fresh && it->second != bytes) {
    Violate(absl::StrCat("rank ", header.rank, " encoded chunk ", header.chunk, " of step ",
                         id.step, " bucket ", id.bucket, " round ", id.round, " attempt ",
                         id.attempt, " twice, differently"));
  }
}

// The chunks of a unit are reduced together: a member's bytes of all of them.
std::optional<ByteVector> Checker::SentUnit(ChunkKey key, std::uint32_t attempt, int rank,
                                            const wire::ChunkLayout::Unit& unit) {
  ByteVector bytes;
  for (key.chunk = unit.first; key.chunk < unit.first + unit.count; ++key.chunk) {
    const auto found = sent_.find(SentKey{key, attempt, rank});
    if (found == sent_.end()) {
      Violate(absl::StrCat("a result of step ", key.step, " bucket ", key.bucket, " round ",
                           key.round, " chunk ", key.chunk, " attempt ", attempt,
                           " without a contribution of rank ", rank, " to that attempt"));
      return std::nullopt;
    }
    bytes.insert(bytes.end(), found->second.begin(), found->second.end());
  }
  return bytes;
}

std::optional<ByteVector> Checker::Recompute(const ChunkKey& key, std::uint32_t attempt,
                                             const wire::ChunkLayout& layout) {
  const wire::ChunkLayout::Unit unit = layout.UnitOf(key.chunk);
  std::vector<ByteVector> sent;
  for (int r = 0; r < scenario_.options.world_size; ++r) {
    std::optional<ByteVector> bytes = SentUnit(key, attempt, r, unit);
    if (!bytes) return std::nullopt;
    sent.push_back(*std::move(bytes));
  }
  const Segment segment = layout.UnitSegment(unit);
  if (segment.op != ReduceOp::kOrthonormalizedSum) {
    std::vector<const ByteVector*> inputs;
    for (const ByteVector& bytes : sent) inputs.push_back(&bytes);
    return PlainReduce(segment, inputs);
  }
  // The arithmetic has tests of its own; here it counts whose bytes went in.
  const std::vector<std::span<const std::byte>> pieces(sent.begin(), sent.end());
  std::vector<Pieces> inputs;
  for (const auto& piece : pieces) inputs.emplace_back(&piece, 1);
  ByteVector out(segment.bytes());
  ReduceOrthonormalized(segment, inputs, out);
  const auto begin =
      out.begin() +
      static_cast<std::ptrdiff_t>((layout.Range(key.chunk).begin - layout.Range(unit.first).begin) *
                                  ByteSize(segment.dtype));
  return ByteVector(begin, begin + static_cast<std::ptrdiff_t>(layout.ChunkBytes(key.chunk)));
}

void Checker::OnResultFrame(int rank, const wire::Result& result, const wire::Payload* payload) {
  const ChunkKey key{result.id.step, result.id.bucket, result.id.round, result.chunk};
  const std::string where =
      absl::StrCat("result of step ", key.step, " bucket ", key.bucket, " round ", key.round,
                   " chunk ", key.chunk, " attempt ", result.id.attempt);
  const Layouts* layouts = FindLayouts(key);
  if (layouts == nullptr) return Violate(absl::StrCat(where, ", which nobody asked for"));
  if (wire::Digest(payload) != result.digest)
    Violate(absl::StrCat(where, " does not fit its digest"));
  const ByteVector bytes = Flatten(payload);
  const auto known = results_.find(key);
  if (known != results_.end()) {
    if (known->second != bytes) {
      Violate(absl::StrCat(where, " at rank ", rank, " has other bytes than another member got"));
    }
  } else {
    const wire::ChunkLayout& layout = (*layouts)[key.round];
    const Segment& segment = layout.segment(key.chunk);
    const std::optional<ByteVector> expected = Recompute(key, result.id.attempt, layout);
    if (!expected) return;
    if (!SameValues(segment.dtype, *expected, bytes)) {
      return Violate(absl::StrCat(where, " is not the sum of one contribution of each member",
                                  FirstDifference(segment.dtype, *expected, bytes)));
    }
    if (!AllFinite(segment.dtype, bytes)) nonfinite_steps_.insert(key.step);
    results_.emplace(key, bytes);
  }
  delivered_[{rank, key.step}].insert(key);
}

void Checker::OnAcknowledged(int rank, const wire::RoundId& id, std::uint32_t received) {
  std::uint32_t& known = received_[{rank, id.step, id.bucket, id.round}];
  known = std::max(known, received);
}

void Checker::OnReduction(const wire::RoundId& id, std::uint32_t chunk) {
  const Layouts* layouts = FindLayouts({id.step, id.bucket, id.round, chunk});
  if (layouts == nullptr) return Violate("a reduction that nobody asked for");
  const wire::ChunkLayout& layout = (*layouts)[id.round];
  for (int rank = 0; rank < scenario_.options.world_size; ++rank) {
    const std::uint32_t received = received_[{rank, id.step, id.bucket, id.round}];
    if (layout.InWindow(chunk, received, scenario_.options.window_chunks)) continue;
    Violate(absl::StrCat("chunk ", chunk, " of step ", id.step, " bucket ", id.bucket, " round ",
                         id.round, " is reduced, of which rank ", rank, " acknowledged ", received,
                         " results; the window is ", scenario_.options.window_chunks));
  }
}

void Checker::OnStepDoneFrame(int rank, const wire::StepDone& done, std::int64_t member_step) {
  const auto [it, fresh] = done_.emplace(done.step, done);
  if (!fresh && it->second != done) {
    return Violate(absl::StrCat("step ", done.step, " ended differently for rank ", rank));
  }
  if (done.step < member_step) return;  // told again after a resume
  std::size_t chunks = 0;
  for (const auto& [bucket, layouts] : LayoutsOf(done.step)) {
    for (const wire::ChunkLayout& layout : layouts) chunks += layout.chunk_count();
  }
  const std::size_t delivered = delivered_[{rank, done.step}].size();
  if (delivered != chunks) {
    return Violate(absl::StrCat("rank ", rank, " was told the end of step ", done.step, " with ",
                                delivered, " of its ", chunks, " results"));
  }
  const bool skip = nonfinite_steps_.count(done.step) > 0;
  if ((done.verdict == Verdict::kSkip) != skip) {
    Violate(absl::StrCat("step ", done.step, skip ? " was applied with" : " was skipped without",
                         " a non-finite value among its results"));
  }
}

void Checker::OnBucketDone(int rank, std::int64_t step, std::uint32_t bucket,
                           const ByteVector& buffer) {
  if (scenario_.options.spec.comm_hook == "noop") return;  // each keeps its own
  const auto [it, fresh] = buffers_.emplace(std::pair(step, bucket), buffer);
  if (!fresh && it->second != buffer) {
    Violate(absl::StrCat("bucket ", bucket, " of step ", step, " ends in another buffer at rank ",
                         rank, " than at others"));
  }
}

void Checker::OnStepDone(int rank, std::int64_t step, Verdict verdict, const FeedbackHook* hook) {
  const auto done = done_.find(step);
  if (done == done_.end() || done->second.verdict != verdict) {
    return Violate(absl::StrCat("rank ", rank, " ends step ", step, " with a verdict of its own"));
  }
  if (reference_ != nullptr) FollowStep(step);
  if (hook != nullptr) CheckResiduals(rank, step, verdict, *hook);
}

std::vector<double> Checker::TotalOf(std::int64_t step, std::uint32_t bucket,
                                     const Layouts& layouts, std::size_t numel) const {
  std::vector<double> total(numel);
  for (std::uint32_t r = 0; r < layouts.size(); ++r) {
    for (std::uint32_t c = 0; c < layouts[r].chunk_count(); ++c) {
      const ElementRange range = layouts[r].Range(c);
      if (range.segment != 0) continue;
      const ByteVector& bytes = results_.at(ChunkKey{step, bucket, r, c});
      for (std::size_t i = range.begin; i < range.end; ++i) {
        total[i] += GetElement(layouts[r].segment(c).dtype, bytes, i - range.begin);
      }
    }
  }
  return total;
}

void Checker::CheckResiduals(int rank, std::int64_t step, Verdict verdict,
                             const FeedbackHook& hook) {
  const auto& manifest = scenario_.options.manifest;
  Residuals& model = residuals_[static_cast<std::size_t>(rank)];
  if (verdict == Verdict::kApply) {
    for (const auto& bucket : scenario_.steps[static_cast<std::size_t>(step)].buckets) {
      const DType dtype = manifest[bucket.front()].dtype;
      const ByteVector gradients = GradientBytes(rank, step, bucket);
      const Layouts& layouts = LayoutsOf(step).at(bucket.front());
      const std::vector<double> total =
          TotalOf(step, bucket.front(), layouts, gradients.size() / ByteSize(dtype));
      std::size_t at = 0;
      for (std::uint32_t p : bucket) {
        std::vector<double>& residual = model[manifest[p].name];
        residual.resize(manifest[p].numel());
        for (double& value : residual) {
          value = GetElement(dtype, gradients, at) + value - total[at];
          ++at;
        }
      }
    }
  }
  if (model != hook.residuals()) {
    Violate(absl::StrCat("rank ", rank, "'s residual after step ", step,
                         " is not what the steps' verdicts make it"));
  }
}

}  // namespace gradwire::sim
