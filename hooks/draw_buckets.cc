#include "hooks/draw_buckets.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"

namespace gradwire {

// Every parameter occurs at most once, because it has one owner in the factor table. Names for
// errors are built only on failure: the check takes a few nanoseconds for each parameter.
absl::Status CheckDrawBuckets(const DrawBuckets& buckets, std::size_t parameters) {
  const auto refused = [](const std::string& field, const std::string& what) {
    return Coded(ErrorCode::kDrawPlan, absl::InvalidArgumentError(absl::StrCat(field, ": ", what)));
  };
  const std::string some = absl::StrCat("has 0 entries; allowed: 1 to ", parameters);
  if (buckets.empty()) return refused("draw plan", some);
  std::vector<bool> met(parameters);
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    const auto field = [b] { return absl::StrCat("draw plan's bucket ", b); };
    if (buckets[b].empty()) return refused(field(), some);
    for (const std::uint32_t parameter : buckets[b]) {
      if (parameter >= parameters) {
        return refused(field(),
                       absl::StrCat("parameter ", parameter, "; allowed: below ", parameters));
      }
      if (met[parameter]) {
        return refused(field(), absl::StrCat("parameter ", parameter,
                                             " for the second time; allowed: each at most once"));
      }
      met[parameter] = true;
    }
  }
  return absl::OkStatus();
}

}  // namespace gradwire
