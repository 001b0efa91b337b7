#include "server/ctl/table.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace gradwire::ctl {

std::string Table(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool last = i + 1 == row.size();
      absl::StrAppend(&text, row[i], std::string(last ? 0 : widths[i] - row[i].size() + 2, ' '));
    }
    text += '\n';
  }
  return text;
}

std::string Bytes(std::uint64_t bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto number = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (number >= 1024 && unit + 1 < kUnits.size()) {
    number /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", number, kUnits[unit]);
}

double ToSeconds(const google::protobuf::Duration& duration) {
  return static_cast<double>(duration.seconds()) + static_cast<double>(duration.nanos()) / 1e9;
}

std::string Seconds(const google::protobuf::Duration& duration) {
  return absl::StrFormat("%.1f s", ToSeconds(duration));
}

std::string Milliseconds(double seconds, std::uint64_t count) {
  return absl::StrFormat("%.2f ms", count == 0 ? 0 : 1e3 * seconds / static_cast<double>(count));
}

}  // namespace gradwire::ctl
