#include "server/core/leaf_place.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace gradwire::server {

std::string NameOfLeaf(const std::string& name, int first, int ranks) {
  const std::string with = ranks == 1 ? absl::StrCat("rank ", first)
                                      : absl::StrCat("ranks ", first, " to ", first + ranks - 1);
  return absl::StrCat("leaf \"", name, "\" with ", with);
}

// The root begins its words in the same way.
LeafEnd EndOfLeaf(const LeafPlace& leaf, const std::string& name, const std::string& session,
                  const absl::Status& why, int blamed_rank) {
  absl::string_view what = why.message();
  absl::ConsumePrefix(&what, absl::StrCat("session \"", session, "\" failed: "));
  return {.why = absl::Status(why.code(),
                              absl::StrCat(NameOfLeaf(name, leaf.first, leaf.members), ": ", what)),
          .blamed_rank = blamed_rank >= 0 ? blamed_rank : leaf.first};
}

}  // namespace gradwire::server
