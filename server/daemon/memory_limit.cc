#include "server/daemon/memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/error_code.h"

namespace gradwire::server {
namespace {

// Below 2^63: the conversion of a larger double to an integer may be undefined.
constexpr double kLargest = 9.2e18;

void LowerTo(const std::string& file, std::size_t& limit) {
  std::ifstream in(file);
  std::size_t bytes = 0;  // "max" does not parse: no limit
  if (in >> bytes) limit = std::min(limit, bytes);
}

// The limit of a group holds for all groups below it.
void LowerToGroups(const std::string& root, std::string group, const std::string& file,
                   std::size_t& limit) {
  while (true) {
    LowerTo(absl::StrCat(root, group, "/", file), limit);
    const std::size_t slash = group.rfind('/');
    if (slash == std::string::npos) return;
    group.erase(slash);
  }
}

constexpr std::size_t kMiB = std::size_t{1} << 20;

}  // namespace

std::size_t AvailableMemory() {
  const std::int64_t pages = sysconf(_SC_PHYS_PAGES);
  const std::int64_t page_bytes = sysconf(_SC_PAGESIZE);
  std::size_t limit = static_cast<std::size_t>(std::max(pages, std::int64_t{1})) *
                      static_cast<std::size_t>(std::max(page_bytes, std::int64_t{4096}));
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // "hierarchy:controllers:/path"
    const std::size_t first = line.find(':');
    if (first == std::string::npos) continue;
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    // Version 2 of control groups has one hierarchy without controllers; version 1 has one for
    // each.
    if (controllers.empty()) LowerToGroups("/sys/fs/cgroup", path, "memory.max", limit);
    if (controllers == "memory") {
      LowerToGroups("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes", limit);
    }
  }
  return limit;
}

absl::StatusOr<std::size_t> ParseMemoryLimit(const std::string& text, std::size_t available) {
  constexpr std::array<std::pair<std::string_view, double>, 10> kUnits = {
      {{"", 1},
       {"B", 1},
       {"KB", 1e3},
       {"MB", 1e6},
       {"GB", 1e9},
       {"TB", 1e12},
       {"KiB", 1024.0},
       {"MiB", 1048576.0},
       {"GiB", 1073741824.0},
       {"TiB", 1099511627776.0}}};
  const auto bad = [&] {
    return Coded(ErrorCode::kSetting,
                 absl::InvalidArgumentError(absl::StrCat(
                     "\"", text,
                     "\" is not an amount of memory; allowed are, for example, 512MiB, 2GB, 80%")));
  };
  const std::string trimmed(absl::StripAsciiWhitespace(text));
  const std::size_t digits = trimmed.find_first_not_of("0123456789.");
  double number = 0;
  if (!absl::SimpleAtod(trimmed.substr(0, digits), &number) || !std::isfinite(number)) return bad();
  std::string unit = digits == std::string::npos ? "" : trimmed.substr(digits);
  unit = std::string(absl::StripAsciiWhitespace(unit));
  if (unit == "%") {
    if (number <= 0 || number > 100) return bad();
    return static_cast<std::size_t>(static_cast<double>(available) / 100 * number);
  }
  const auto found = std::find_if(kUnits.begin(), kUnits.end(),
                                  [&](const auto& one) { return one.first == unit; });
  if (found == kUnits.end() || number * found->second < 1 || number * found->second > kLargest) {
    return bad();
  }
  return static_cast<std::size_t>(number * found->second);
}

// An eighth: 16 MiB let several members join at once, and more than 256 MiB are of no use.
MemoryShares ShareMemory(std::size_t limit) {
  const std::size_t transport = std::min(std::clamp(limit / 8, 16 * kMiB, 256 * kMiB), limit / 2);
  return {.sessions = limit - transport, .transport = transport};
}

}  // namespace gradwire::server
