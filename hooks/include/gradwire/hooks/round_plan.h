// What a bucket contributes to its reductions: segments of elements, and the operation on each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gradwire/hooks/dtype.h"

namespace gradwire {

// Values equal those of gradwire.v1.ReduceOp.
enum class ReduceOp : std::uint8_t {
  kSum = 1,   // adds in rank order, rounds once to the segment's dtype
  kMean = 2,  // adds in rank order, divides by the number of contributors, rounds once
  // Adds each of the segment's matrices, makes the columns of the unrounded sum orthonormal, rounds
  // once.
  kOrthonormalizedSum = 3,
};

// A row-major matrix.
struct MatrixShape {
  std::size_t rows = 0;
  std::size_t cols = 0;

  std::size_t numel() const { return rows * cols; }
  bool operator==(const MatrixShape&) const = default;
};

// A typed run of elements in a round, with the operation that reduces it.
struct Segment {
  DType dtype = DType::kFloat32;
  std::size_t numel = 0;
  ReduceOp op = ReduceOp::kSum;
  // For kOrthonormalizedSum: the matrices that lie back to back in the segment, each with
  // cols <= rows, and the term that torch's formula adds to a norm (PowerSGD's
  // orthogonalization_epsilon).
  std::vector<MatrixShape> matrices{};
  double epsilon = 0;

  std::size_t bytes() const { return numel * ByteSize(dtype); }
  bool operator==(const Segment&) const = default;
};

// One reduction inside a bucket. A contribution is its segments' bytes back to back.
struct RoundPlan {
  std::vector<Segment> segments;

  std::size_t bytes() const;
  bool operator==(const RoundPlan&) const = default;
};

// Elements [begin, end) of segment number `segment` of the current round.
struct ElementRange {
  std::size_t segment = 0;
  std::size_t begin = 0;
  std::size_t end = 0;

  std::size_t numel() const { return end - begin; }
};

// What a step's results come to.
enum class Verdict : std::uint8_t {
  kApply = 1,  // the step counts
  kSkip = 2,   // a result was not finite: state does not change, the step number advances
};

}  // namespace gradwire
