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

// Of one session. Not thread-safe. A leaf counts as one member, with what ForRoot returns there.
class ParameterDrift {
 public:
  // False: the rank has sent one in this step. A resume repeats it, and the first one counts.
  bool Take(int rank, std::uint64_t digest) { return digests_.emplace(rank, digest).second; }

  // A leaf's: what it tells the root, once every member has sent a digest. Theirs if all are equal;
  // otherwise a value that no other leaf has, so that the root notices it and tells all members.
  std::optional<std::uint64_t> ForRoot(const Membership& membership) const;

  // The step is over. Returns `the parameters of rank 3 have differed from the others' since a step
  // between 1200 and 1300`, and logs it. "": all digests are equal, or fewer than two were sent.
  // The first time that some members send a digest and others do not, the log names those who do.
  std::string EndStep(std::int64_t step, const Membership& membership, Effects& effects);

  // "step 1300: " and the last such sentence; "": there was none.
  const std::string& last() const { return last_; }

 private:
  // Ranks of the same digest, the lowest first in each; the largest first, then the one with the
  // lowest rank.
  std::vector<std::vector<int>> Groups() const;
  bool AllHaveSaid(const Membership& membership) const;
  std::string Since(std::int64_t step) const;

  std::map<int, std::uint64_t> digests_;    // of the open step
  std::optional<std::int64_t> same_at_;     // the last step at whose beginning they were the same
  std::optional<std::int64_t> differs_at_;  // the first one after it at which they were not
  bool told_of_silent_ = false;
  std::string last_;
};

}  // namespace gradwire::server
