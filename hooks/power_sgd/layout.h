// Maps a list of parameters to matrices, and matrices to rounds.
#pragma once

#include <cstddef>
#include <vector>

#include "gradwire/hooks/hook.h"
#include "hooks/bucket_parameters.h"
#include "hooks/power_sgd/options.h"

namespace gradwire {

// A parameter (or, batched, a whole bucket) that travels as two factors, P (rows x rank) and
// Q (cols x rank), both row-major.
struct LowRankMatrix {
  std::size_t parameter = 0;  // position in the bucket
  MatrixShape shape;          // first dimension x the rest
  std::size_t rank = 0;
  std::size_t p_offset = 0;  // elements, in the bucket's P and Q blocks
  std::size_t q_offset = 0;

  std::size_t p_numel() const { return shape.rows * rank; }
  std::size_t q_numel() const { return shape.cols * rank; }
};

// A parameter that travels uncompressed.
struct DenseTensor {
  std::size_t parameter = 0;
  std::size_t numel = 0;
  std::size_t dense_offset = 0;  // elements, in the bucket's dense block
};

struct BucketLayout {
  // Grouped by shape, groups and members in order of appearance: the order in which torch draws,
  // and in which the P and Q blocks are laid out.
  std::vector<LowRankMatrix> matrices;
  std::vector<DenseTensor> dense;
  std::size_t numel = 0;         // of the bucket
  std::size_t padded_numel = 0;  // batched: of the square; else numel
  std::size_t p_numel = 0;
  std::size_t q_numel = 0;
  std::size_t dense_numel = 0;
};

// torch's rule: n = first dimension, m = the rest, r = min(n, m, approximation rank); compressed
// when (n + m) * r * min_compression_rate < n * m. A parameter without dimensions travels as it is.
// Batched: one square of ceil(sqrt(numel)), whatever the rate.
BucketLayout MakeLayout(const PowerSgdOptions& options, const BucketParameters& parameters);

// Which factor a step with `rounds` = 1 sends.
enum class Side : std::uint8_t { kP, kQ };

// {dense, P} and {Q}; with one round {dense, the factor of `side`}. Segments without elements and
// rounds without segments are left out.
std::vector<RoundPlan> PlanRounds(const PowerSgdOptions& options, const BucketLayout& layout,
                                  DType wire, Side side);

}  // namespace gradwire
