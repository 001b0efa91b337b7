#include "hooks/power_sgd/layout.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace gradwire {
namespace {

MatrixShape ShapeOf(const ParameterSpec& parameter) {
  if (parameter.shape.empty()) return {1, 1};
  const auto rows = static_cast<std::size_t>(parameter.shape.front());
  return {rows, rows == 0 ? 0 : parameter.numel() / rows};
}

// ceil(sqrt(numel)). The conversion to double may round, so the loops correct the estimate.
std::size_t SquareSide(std::size_t numel) {
  auto side = static_cast<std::size_t>(std::sqrt(static_cast<double>(numel)));
  while (side * side < numel) ++side;
  while (side > 0 && (side - 1) * (side - 1) >= numel) --side;
  return side;
}

// torch's rule: (n + m) * r * min_compression_rate < n * m.
bool PassesRule(const PowerSgdOptions& options, MatrixShape shape, std::size_t rank) {
  const auto factors = static_cast<double>((shape.rows + shape.cols) * rank);
  return factors * options.min_compression_rate < static_cast<double>(shape.numel());
}

void PlaceFactors(BucketLayout& layout) {
  for (LowRankMatrix& matrix : layout.matrices) {
    matrix.p_offset = layout.p_numel;
    matrix.q_offset = layout.q_numel;
    layout.p_numel += matrix.p_numel();
    layout.q_numel += matrix.q_numel();
  }
}

BucketLayout SquareLayout(std::size_t rank, std::size_t numel) {
  BucketLayout layout{.matrices = {}, .dense = {}, .numel = numel, .padded_numel = 0};
  const std::size_t side = SquareSide(numel);
  layout.padded_numel = side * side;
  if (side > 0) {
    layout.matrices.push_back({.shape = {side, side}, .rank = std::min(rank, side)});
  }
  PlaceFactors(layout);
  return layout;
}

}  // namespace

BucketLayout MakeLayout(const PowerSgdOptions& options, const BucketParameters& parameters) {
  const auto rank = static_cast<std::size_t>(options.matrix_approximation_rank);
  if (options.batched) {
    std::size_t numel = 0;
    for (std::size_t p = 0; p < parameters.size(); ++p) numel += parameters[p].numel();
    return SquareLayout(rank, numel);
  }
  BucketLayout layout;
  // torch groups matrices by shape, in order of first appearance, and draws group by group. The
  // blocks follow this order so that equal seeds give equal factors.
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> group_of;
  std::vector<std::vector<LowRankMatrix>> groups;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const MatrixShape shape = ShapeOf(parameters[p]);
    const std::size_t numel = parameters[p].numel();
    const std::size_t clamped = std::min({shape.rows, shape.cols, rank});
    if (!parameters[p].shape.empty() && PassesRule(options, shape, clamped)) {
      const auto [found, is_new] =
          group_of.try_emplace(std::pair(shape.rows, shape.cols), groups.size());
      if (is_new) groups.emplace_back();
      groups[found->second].push_back({.parameter = p, .shape = shape, .rank = clamped});
    } else if (numel > 0) {
      layout.dense.push_back({.parameter = p, .numel = numel, .dense_offset = layout.dense_numel});
      layout.dense_numel += numel;
    }
    layout.numel += numel;
  }
  layout.padded_numel = layout.numel;
  for (std::vector<LowRankMatrix>& group : groups) {
    layout.matrices.insert(layout.matrices.end(), group.begin(), group.end());
  }
  PlaceFactors(layout);
  return layout;
}

std::vector<RoundPlan> PlanRounds(const PowerSgdOptions& options, const BucketLayout& layout,
                                  DType wire, Side side) {
  RoundPlan first;
  if (layout.dense_numel > 0) {
    first.segments.push_back({.dtype = wire, .numel = layout.dense_numel, .op = ReduceOp::kMean});
  }
  // With one round P and Q alternate between steps, and each is a plain mean. With two rounds P is
  // summed without a division, as in torch: orthonormalization removes the scale.
  if (options.rounds == 1 && !layout.matrices.empty()) {
    first.segments.push_back({.dtype = wire,
                              .numel = side == Side::kP ? layout.p_numel : layout.q_numel,
                              .op = ReduceOp::kMean});
  }
  if (options.rounds == 2 && !layout.matrices.empty()) {
    Segment p{.dtype = wire,
              .numel = layout.p_numel,
              .op = ReduceOp::kOrthonormalizedSum,
              .matrices = {},
              // torch's batched form ignores its epsilon
              .epsilon = options.batched ? 0 : options.orthogonalization_epsilon};
    for (const LowRankMatrix& matrix : layout.matrices) {
      p.matrices.push_back({matrix.shape.rows, matrix.rank});
    }
    first.segments.push_back(std::move(p));
  }
  std::vector<RoundPlan> plans;
  if (!first.segments.empty()) plans.push_back(std::move(first));
  if (options.rounds == 2 && !layout.matrices.empty()) {
    plans.push_back({{Segment{.dtype = wire, .numel = layout.q_numel, .op = ReduceOp::kMean}}});
  }
  return plans;
}

}  // namespace gradwire
