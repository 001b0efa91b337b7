#include "server/core/skip_blame.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/core/membership.h"

namespace gradwire::server {
namespace {

constexpr std::size_t kMostRanks = 8;  // in a sentence

// The ranks whose contributions a reduction has, in the order in which it has them.
std::vector<int> RanksOf(const Bucket& bucket) {
  std::vector<int> ranks;
  for (int r = 0; r < bucket.world_size(); ++r) {
    const bool has = bucket.contributors().has(static_cast<std::size_t>(r));
    if (has && !bucket.IsMissedBy(r)) ranks.push_back(r);
  }
  return ranks;
}

std::string Counted(std::size_t nans, std::size_t infinities) {
  const std::string infinite =
      absl::StrCat(infinities, infinities == 1 ? " infinite value" : " infinite values");
  if (nans == 0) return infinite;
  return infinities == 0 ? absl::StrCat(nans, " NaN") : absl::StrCat(nans, " NaN and ", infinite);
}

}  // namespace

// A plain hook's segment is the bucket's gradients, one after another. Of others the coordinator's
// half may know; otherwise only the bucket is known.
SkipBlame::Place SkipBlame::PlaceOf(const Bucket& bucket, std::uint32_t chunk,
                                    std::size_t element) const {
  const std::vector<RoundPlan>& plans = bucket.plans();
  const Manifest& manifest = bucket.manifest();
  std::size_t numel = 0;
  for (const std::uint32_t position : bucket.parameters()) numel += manifest[position].numel();
  if (plans.size() == 1 && plans[0].segments.size() == 1 && plans[0].segments[0].numel == numel) {
    std::size_t at = bucket.round().layout().Range(chunk).begin + element;
    for (const std::uint32_t position : bucket.parameters()) {
      if (at < manifest[position].numel()) {
        return {position, absl::StrCat("\"", manifest[position].name, "\"")};
      }
      at -= manifest[position].numel();
    }
  }
  if (hook_ != nullptr) {
    const ElementRange range = bucket.round().layout().Range(chunk);
    const auto parameter = hook_->ParameterAt(bucket.parameters(), bucket.round_number(),
                                              range.segment, range.begin + element);
    if (parameter) return {*parameter, absl::StrCat("\"", manifest[*parameter].name, "\"")};
  }
  return {bucket.id(), absl::StrCat("bucket ", bucket.name())};
}

void SkipBlame::Note(const Bucket& bucket, std::uint32_t chunk, const ReduceOutcome& outcome) {
  if (outcome.finite) return;
  skips_ = true;
  const auto first = rounds_.emplace(bucket.id(), bucket.round_number()).first;
  if (first->second != bucket.round_number()) return;
  if (outcome.sources.empty()) {
    Place place = PlaceOf(bucket, chunk, 0);
    if (!overflow_ || place.position < overflow_->position) overflow_ = std::move(place);
    return;
  }
  const std::vector<int> ranks = RanksOf(bucket);
  for (const NonFinite& one : outcome.sources) {
    if (one.contribution >= ranks.size()) continue;  // a seeded bug adds one twice
    Place place = PlaceOf(bucket, chunk, one.element);
    const auto [found, is_new] = ranks_.try_emplace(ranks[one.contribution]);
    Values& values = found->second;
    values.nans += one.nans;
    values.infinities += one.infinities;
    if (is_new || place.position < values.first.position) values.first = std::move(place);
  }
}

std::string SkipBlame::Sentence(const Membership& membership) const {
  if (!skips_) return "";
  if (ranks_.empty()) {
    return absl::StrCat("all contributions are finite, but their sum is too large for its type in ",
                        overflow_ ? overflow_->name : "some bucket");
  }
  std::vector<std::string> parts;
  for (const auto& [rank, values] : ranks_) {
    if (parts.size() == kMostRanks) {
      parts.push_back(absl::StrCat("and ", ranks_.size() - kMostRanks, " more"));
      break;
    }
    parts.push_back(absl::StrCat(membership.NameOf(rank), " contributed ",
                                 Counted(values.nans, values.infinities), ", first in ",
                                 values.first.name));
  }
  return absl::StrJoin(parts, "; ");
}

void SkipBlame::Log(std::int64_t step, const Membership& membership, Effects& effects) const {
  if (!skips_) return;
  effects.push_back(
      LogEffect{.level = LogEffect::Level::kWarning,
                .message = absl::StrCat("step ", step, " is skipped: ", Sentence(membership)),
                .rank = ranks_.size() == 1 ? ranks_.begin()->first : -1});
}

}  // namespace gradwire::server
