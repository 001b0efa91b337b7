#include "server/ctl/digests.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/error_code.h"
#include "base/printable.h"

namespace gradwire::ctl {
namespace {

constexpr std::size_t kHexDigits = 16;
constexpr std::size_t kMostQuoted = 80;

std::optional<v1::StepDigest> ReadLine(absl::string_view line) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
  std::int64_t step = 0;
  std::uint64_t chain = 0;
  if (words.size() != 3 || words[0] != "step" || !absl::SimpleAtoi(words[1], &step) || step < 0 ||
      words[2].size() != kHexDigits || !absl::SimpleHexAtoi(words[2], &chain)) {
    return std::nullopt;
  }
  v1::StepDigest digest;
  digest.set_step(step);
  digest.set_chain(chain);
  return digest;
}

std::string Steps(const StepDigests& digests) {
  return digests.empty() ? "none"
                         : absl::StrCat(digests.front().step(), " to ", digests.back().step());
}

}  // namespace

std::string DigestsText(const v1::GetDigestsResponse& digests) {
  std::string text;
  for (const v1::StepDigest& digest : digests.digests()) {
    absl::StrAppend(&text, absl::StrFormat("step %d  %016x\n", digest.step(), digest.chain()));
  }
  return text;
}

std::string WhyNoDigest(const v1::GetDigestsResponse& digests, const DigestFlags& flags) {
  if (digests.digests_size() > 0) return "";
  if (digests.step() > flags.first) {
    return absl::StrCat("the daemon knows no digest from step ", flags.first, " on; step ",
                        digests.step(), " is open");
  }
  return absl::StrCat("step ", flags.first, " is not over; step ", digests.step(), " is open");
}

absl::StatusOr<StepDigests> ReadDigests(const std::string& file, const std::string& text) {
  StepDigests digests;
  int number = 0;
  const auto refuse = [&](absl::string_view line, const std::string& why) {
    return Coded(ErrorCode::kCtlFile,
                 absl::InvalidArgumentError(absl::StrCat(
                     file, ": line ", number, " is \"",
                     Printable(std::string(line.substr(0, kMostQuoted))), "\"; ", why)));
  };
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (line.empty()) continue;
    const std::optional<v1::StepDigest> digest = ReadLine(line);
    if (!digest) {
      return refuse(line,
                    "allowed are lines of gradwirectl session digest, such as \"step 41  "
                    "9f0c3a5512cd7701\"");
    }
    if (!digests.empty() && digest->step() <= digests.back().step()) {
      return refuse(line, absl::StrCat("allowed is a step after ", digests.back().step()));
    }
    digests.push_back(*digest);
  }
  return digests;
}

absl::StatusOr<Comparison> Compare(const StepDigests& ours, const StepDigests& theirs) {
  Comparison comparison;
  for (const v1::StepDigest& own : ours) {
    const auto other = std::ranges::lower_bound(
        theirs, own.step(), {}, [](const v1::StepDigest& one) { return one.step(); });
    if (other == theirs.end() || other->step() != own.step()) continue;
    if (other->chain() != own.chain()) {
      comparison.different = own.step();
      break;
    }
    comparison.same = own.step();
  }
  if (comparison.same || comparison.different) return comparison;
  return Coded(ErrorCode::kCtl, absl::FailedPreconditionError(absl::StrCat(
                                    "the runs have no step in common: the session's are ",
                                    Steps(ours), ", the file's ", Steps(theirs))));
}

std::string ComparisonText(const Comparison& comparison) {
  const auto& [same, different] = comparison;
  if (!different) {
    return absl::StrCat("the runs are the same up to step ", *same, ", the last that both have\n");
  }
  const std::int64_t next = same ? *same + 1 : 0;
  if (*different == next) return absl::StrCat("the runs differ since step ", *different, "\n");
  return absl::StrCat("the runs differ since a step between ", next, " and ", *different, "\n");
}

std::string ComparisonJson(const Comparison& comparison) {
  nlohmann::ordered_json json = {{"same", !comparison.different},
                                 {"last_same_step", nullptr},
                                 {"first_different_step", nullptr}};
  if (comparison.same) json["last_same_step"] = *comparison.same;
  if (comparison.different) json["first_different_step"] = *comparison.different;
  return json.dump() + "\n";
}

}  // namespace gradwire::ctl
