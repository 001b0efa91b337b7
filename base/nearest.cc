#include "base/nearest.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace gradwire {
namespace {

// Nobody misspells a name of that length, and the distance takes the square of it.
constexpr std::size_t kMostBytes = 60;

std::string Plain(std::string_view name) {
  std::string plain(name);
  std::replace(plain.begin(), plain.end(), '-', '_');
  std::replace(plain.begin(), plain.end(), '.', '_');
  return plain;
}

// Levenshtein's: how many letters differ, are missing or are too many.
std::size_t Distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = std::exchange(row[j + 1], std::min({replaced, row[j] + 1, row[j + 1] + 1}));
    }
  }
  return row.back();
}

}  // namespace

Nearest::Nearest(std::string_view unknown)
    : unknown_(unknown.size() > kMostBytes ? "" : Plain(unknown)),
      distance_(unknown_.empty() ? 0 : std::max<std::size_t>(unknown_.size() / 3, 2) + 1) {}

void Nearest::Consider(std::string_view name, std::string_view meant) {
  const std::size_t distance = unknown_.empty() ? 0 : Distance(unknown_, Plain(name));
  if (distance >= distance_) return;
  distance_ = distance;
  meant_ = meant;
}

}  // namespace gradwire
