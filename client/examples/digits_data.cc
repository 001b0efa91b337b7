#include "client/examples/digits_data.h"

#include <array>
#include <charconv>
#include <fstream>
#include <numeric>
#include <random>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace digits {
namespace {

constexpr int kMaxPixel = 16;
constexpr std::uint64_t kSplitSeed = 1998;

// 64 pixels and a label.
using Row = std::array<int, kPixels + 1>;

bool ParseRow(const std::string& line, Row& row) {
  const char* at = line.data();
  const char* const end = at + line.size();
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (i > 0 && (at == end || *at++ != ',')) return false;
    const auto [next, error] = std::from_chars(at, end, row[i]);
    const int limit = i < kPixels ? kMaxPixel : kClasses - 1;
    if (error != std::errc() || row[i] < 0 || row[i] > limit) return false;
    at = next;
  }
  return at == end;
}

Samples ToSamples(const std::vector<Row>& rows) {
  Samples samples;
  samples.images.resize(kPixels, static_cast<Eigen::Index>(rows.size()));
  samples.labels.reserve(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Eigen::Map<const Eigen::VectorXi> pixels(rows[i].data(), kPixels);
    samples.images.col(static_cast<Eigen::Index>(i)) = pixels.cast<float>() / kMaxPixel;
    samples.labels.push_back(rows[i].back());
  }
  return samples;
}

}  // namespace

absl::StatusOr<Digits> Load(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read the data file ", path));
  std::vector<Row> rows;
  for (std::string line; std::getline(file, line);) {
    if (!ParseRow(line, rows.emplace_back())) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", rows.size(), ": not 64 pixels (0 to 16) and a digit"));
    }
  }
  if (file.bad() || rows.empty()) {
    return absl::DataLossError(absl::StrCat("cannot read the data file ", path, " to its end"));
  }
  const Samples all = ToSamples(rows);
  const std::vector<std::size_t> order = Permutation(all.size(), kSplitSeed);
  const std::span<const std::size_t> span(order);
  const std::size_t train = all.size() * 4 / 5;
  return Digits{.train = Gather(all, span.first(train)), .test = Gather(all, span.subspan(train))};
}

Samples Gather(const Samples& samples, std::span<const std::size_t> indices) {
  Samples gathered;
  gathered.images.resize(samples.images.rows(), static_cast<Eigen::Index>(indices.size()));
  gathered.labels.reserve(indices.size());
  for (const std::size_t index : indices) {
    gathered.images.col(static_cast<Eigen::Index>(gathered.size())) =
        samples.images.col(static_cast<Eigen::Index>(index));
    gathered.labels.push_back(samples.labels[index]);
  }
  return gathered;
}

std::vector<std::size_t> Permutation(std::size_t count, std::uint64_t seed) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  // Not std::shuffle: its order differs between standard libraries.
  std::mt19937_64 random(seed);
  for (std::size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return order;
}

}  // namespace digits
