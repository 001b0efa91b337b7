// The handwritten digits of data/digits.csv, split into a training and a test part.
#pragma once

#include <Eigen/Core>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace digits {

inline constexpr int kPixels = 64;
inline constexpr int kClasses = 10;

struct Samples {
  Eigen::MatrixXf images;   // one column per image, pixels scaled to [0, 1]
  std::vector<int> labels;  // one per column

  std::size_t size() const { return labels.size(); }
};

struct Digits {
  Samples train;
  Samples test;
};

// Reads the file and splits it: four fifths train, the rest tests. The split is always the same.
absl::StatusOr<Digits> Load(const std::string& path);

// The samples at `indices`, in that order.
Samples Gather(const Samples& samples, std::span<const std::size_t> indices);

// 0 … count - 1 in an order that depends on nothing but the seed.
std::vector<std::size_t> Permutation(std::size_t count, std::uint64_t seed);

}  // namespace digits
