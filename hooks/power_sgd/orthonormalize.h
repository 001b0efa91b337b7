// Orthonormal columns, the same bits on every machine: scalar fp64 in a fixed order, without fused
// multiply-add.
#pragma once

#include <span>

#include "gradwire/hooks/hook.h"

namespace gradwire {

// Orthonormalises the columns of the row-major rows x cols matrix in place; cols <= rows.
//
// Column by column, left to right: the projections on the columns before are subtracted twice
// (iterated modified Gram-Schmidt), then the column is divided by its 2-norm, so the sign stays.
// Norms are taken after scaling by the column's largest magnitude: neither overflow nor underflow.
// A column of which less than 1e-10 of its norm is left (collinear, or zero) is replaced by the
// first unit vector e_0, e_1, ... with at least half its norm outside the columns before or, if
// there is none (nearly as many columns as rows), by the one with most of it outside.
//
// epsilon > 0 and cols <= 2: torch's own formula instead, c / (||c|| + epsilon) and one
// subtraction, without replacement; for more columns torch ignores its epsilon, and so does this.
//
// Returns false and fills the whole matrix with NaN if an element is not finite.
bool Orthonormalize(MatrixShape shape, double epsilon, std::span<double> matrix);

}  // namespace gradwire
