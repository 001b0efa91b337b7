#include "client/addresses.h"

#include <charconv>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/error_code.h"
#include "base/limits.h"

namespace gradwire::client {
namespace {

absl::Status Bad(const std::string& text, const std::string& why) {
  return Coded(ErrorCode::kOption, absl::InvalidArgumentError(absl::StrCat(
                                       "address \"", text.substr(0, 200), "\": ", why)));
}

struct Range {
  unsigned first = 0;
  unsigned last = 0;
};

// "0..3".
std::optional<Range> ParseRange(const std::string& text) {
  const std::size_t dots = text.find("..");
  if (dots == std::string::npos) return std::nullopt;
  Range range;
  const auto parse = [](const std::string& digits, unsigned& out) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out);
    return error == std::errc() && end == digits.data() + digits.size() && !digits.empty();
  };
  if (!parse(text.substr(0, dots), range.first) || !parse(text.substr(dots + 2), range.last) ||
      range.first > range.last) {
    return std::nullopt;
  }
  return range;
}

absl::Status Expand(const std::string& item, std::vector<std::string>& out) {
  const std::size_t open = item.find('{');
  const std::size_t close = item.find('}');
  if (open == std::string::npos && close == std::string::npos) {
    out.push_back(item);
    return absl::OkStatus();
  }
  std::optional<Range> range;
  if (open != std::string::npos && close != std::string::npos && open < close) {
    range = ParseRange(item.substr(open + 1, close - open - 1));
  }
  if (!range || range->last - range->first >= kMaxShards) {
    return Bad(item, absl::StrCat("in braces, allowed: a range such as {0..3}, of at most ",
                                  kMaxShards, " numbers"));
  }
  for (unsigned i = range->first; i <= range->last; ++i) {
    out.push_back(absl::StrCat(item.substr(0, open), i, item.substr(close + 1)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> AddressesOf(const std::string& text) {
  std::vector<std::string> addresses;
  const std::vector<std::string> items = absl::StrSplit(text, ',');
  for (const std::string& padded : items) {
    const std::string item(absl::StripAsciiWhitespace(padded));
    if (item.empty()) return Bad(text, "names an empty address");
    if (absl::Status status = Expand(item, addresses); !status.ok()) return status;
    if (addresses.size() > kMaxShards) {
      return Bad(text, absl::StrCat("names more than ", kMaxShards, " daemons"));
    }
  }
  std::set<std::string> known;
  for (const std::string& address : addresses) {
    if (!known.insert(address).second) return Bad(text, absl::StrCat("names ", address, " twice"));
  }
  return addresses;
}

}  // namespace gradwire::client
