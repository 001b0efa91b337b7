// Whether members' parameters are the same, from the digests that they send with some steps.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/core/effects.h"

namespace gradwire::server {

class Membership;

// Of one session. Not thread-safe. A leaf counts as one member: it says what most of its own say.
class ParameterDrift {
 public:
  // False: a repeat, after a resume. It has no effect.
  bool Take(int rank, std::uint64_t digest) { return digests_.emplace(rank, digest).second; }

  // What the most have, once every member who is here has said it; of as many, what the lowest rank
  // has.
  std::optional<std::uint64_t> Common(const Membership& membership) const;

  // The step is over: `rank 3's parameters differ from the others' since a step between 1200 and
  // 1300`. "": they do not differ, or fewer than two have said. A log line says it, too, and once
  // who has said nothing where others have.
  std::string EndStep(std::int64_t step, const Membership& membership, Effects& effects);

  // "step 1300: " and the last such sentence; "": there was none.
  const std::string& last() const { return last_; }

 private:
  // Ranks of the same digest, the lowest first in each; the largest first, then the one with the
  // lowest rank.
  std::vector<std::vector<int>> Groups() const;
  std::string Since(std::int64_t step) const;

  std::map<int, std::uint64_t> digests_;    // of the open step
  std::optional<std::int64_t> same_at_;     // the last step at whose beginning they were the same
  std::optional<std::int64_t> differs_at_;  // the first one after it at which they were not
  bool told_of_silent_ = false;
  std::string last_;
};

}  // namespace gradwire::server
