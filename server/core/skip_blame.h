// Whose values make a step a skip, gathered from the step's reductions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "hooks/coordinator_hook.h"
#include "hooks/reduce.h"
#include "server/core/bucket.h"
#include "server/core/effects.h"

namespace gradwire::server {

class Membership;

// Keeps the same for each rank, however large the model is, and a number for each bucket. What it
// says does not depend on the order in which reductions end.
class SkipBlame {
 public:
  // `hook` outlives it; null: its members know what they send.
  explicit SkipBlame(const CoordinatorHook* hook) : hook_(hook) {}

  // A result of the bucket's current round that is not finite; `chunk` as in the ReduceEffect.
  // A later round of a bucket whose earlier one was not finite blames nobody: all members compute
  // with that result.
  void Note(const Bucket& bucket, std::uint32_t chunk, const ReduceOutcome& outcome);

  bool skips() const { return skips_; }
  // `rank 3 contributed 5 NaN, first in "layer.weight"`, of each such rank, at most 8. Of sums that
  // are too large, the first. "": nothing here makes the step a skip.
  std::string Sentence(const Membership& membership) const;
  // A line with it, if there is anything to blame. Of several shards each knows its own results.
  void Log(std::int64_t step, const Membership& membership, Effects& effects) const;

  void Reset() { *this = SkipBlame(hook_); }

 private:
  struct Place {
    std::uint32_t position = 0;  // in the manifest: of the parameter, or the bucket's first
    std::string name;            // what it is called in a sentence
  };
  struct Values {
    std::size_t nans = 0;
    std::size_t infinities = 0;
    Place first;
  };

  Place PlaceOf(const Bucket& bucket, std::uint32_t chunk, std::size_t element) const;

  const CoordinatorHook* hook_;
  bool skips_ = false;
  std::map<int, Values> ranks_;
  std::optional<Place> overflow_;
  std::map<std::uint32_t, std::uint32_t> rounds_;  // by bucket: its first round that is not finite
};

}  // namespace gradwire::server
