// How errors, reasons and logs name members that have come to a session that others began.
#pragma once

#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace gradwire::wire {

// "rank 1 is new, without the model"; "ranks 0, 1 are new, without the model".
inline std::string NewRanks(std::span<const int> ranks) {
  const bool is_one = ranks.size() == 1;
  return absl::StrCat(is_one ? "rank " : "ranks ", absl::StrJoin(ranks, ", "),
                      is_one ? " is new, without the model" : " are new, without the model");
}

}  // namespace gradwire::wire
