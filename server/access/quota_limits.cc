#include "server/access/quota_limits.h"

#include <set>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/error_code.h"
#include "base/printable.h"
#include "server/daemon/memory_limit.h"

namespace gradwire::server {
namespace {

constexpr std::uint64_t kMostCount = 1'000'000;
constexpr std::size_t kShownBytes = 64;

std::string Shown(absl::string_view text) {
  return absl::StrCat("\"", Printable(std::string(text.substr(0, kShownBytes))), "\"");
}

absl::StatusOr<std::uint64_t> Value(QuotaKind kind, absl::string_view text) {
  if (kind == QuotaKind::kMemory) {
    // A share of nothing is nothing, which no amount may be.
    const absl::StatusOr<std::size_t> bytes = ParseMemoryLimit(std::string(text), 0);
    if (bytes.ok() && *bytes > 0) return *bytes;
    return Coded(ErrorCode::kSetting,
                 absl::InvalidArgumentError(
                     absl::StrCat(Name(kind), " is ", Shown(text),
                                  "; allowed are amounts such as 512MiB, 2GiB and 1048576")));
  }
  std::uint64_t count = 0;
  // SimpleAtoi takes signs and spaces too.
  const bool digits = text.find_first_not_of("0123456789") == absl::string_view::npos;
  if (digits && absl::SimpleAtoi(text, &count) && count >= 1 && count <= kMostCount) return count;
  return Coded(ErrorCode::kSetting,
               absl::InvalidArgumentError(absl::StrCat(Name(kind), " is ", Shown(text),
                                                       "; allowed are 1 to ", kMostCount)));
}

}  // namespace

const char* Name(QuotaKind kind) {
  switch (kind) {
    case QuotaKind::kSessions:
      return "sessions";
    case QuotaKind::kMembers:
      return "members";
    case QuotaKind::kMemory:
      return "memory";
    case QuotaKind::kStreams:
      return "streams";
    case QuotaKind::kJoins:
      return "joins";
  }
  return "";
}

absl::StatusOr<QuotaLimits> ParseQuota(const std::string& text, QuotaOwner owner) {
  QuotaLimits limits;
  if (text.empty()) return limits;
  const bool identity = owner == QuotaOwner::kIdentity;
  std::set<std::size_t> named;
  for (const absl::string_view word : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
    std::size_t index = identity ? 0 : 1;
    while (index < kQuotaKinds && parts[0] != Name(static_cast<QuotaKind>(index))) ++index;
    if (parts.size() != 2 || index == kQuotaKinds) {
      return Coded(ErrorCode::kSetting,
                   absl::InvalidArgumentError(absl::StrCat(
                       "it has ", Shown(word), "; allowed are ", identity ? "sessions=, " : "",
                       "members=, memory=, streams= and joins=")));
    }
    if (!named.insert(index).second) {
      return Coded(ErrorCode::kSetting, absl::InvalidArgumentError(absl::StrCat(
                                            "it has ", parts[0], "= twice; allowed: once")));
    }
    const absl::StatusOr<std::uint64_t> value = Value(static_cast<QuotaKind>(index), parts[1]);
    if (!value.ok()) return value.status();
    limits.values[index] = *value;
  }
  return limits;
}

}  // namespace gradwire::server
