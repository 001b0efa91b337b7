// How errors, reasons and logs name several members.
#pragma once

#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace gradwire::wire {

// "rank 1"; "ranks 0, 1".
inline std::string RankNames(std::span<const int> ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
}

// Of members that have come to a session that others began: "rank 1 is new, without the model".
inline std::string NewRanks(std::span<const int> ranks) {
  return absl::StrCat(RankNames(ranks), ranks.size() == 1 ? " is" : " are",
                      " new, without the model");
}

}  // namespace gradwire::wire
