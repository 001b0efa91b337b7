// Orthonormal columns, the same bits on every machine: fp64 in a fixed order, without fused
// multiply-add.
#pragma once

#include <span>

#include "gradwire/hooks/hook.h"

namespace gradwire {

// Orthonormalizes the columns of the column-major rows x cols matrix in place; cols <= rows. (Each
// column is read some 4 * cols times. In a row-major matrix of 128k x 64 each of these reads would
// fetch eight times as much as it uses, and the call would take minutes instead of a second.)
//
// Column by column, left to right: the projections on the columns before are subtracted twice
// (iterated modified Gram-Schmidt), then the column is divided by its 2-norm, so the sign stays.
// Columns are scaled by a power of two before a norm is taken, which prevents overflow and
// underflow. If less than 1e-10 of a column's norm remains (it was collinear, or zero), the column
// is replaced: by the projection of the first unit vector e_0, e_1, ... that has at least half its
// norm outside the span of the columns before or, if there is none (nearly as many columns as
// rows), of the one with the largest part outside.
//
// With epsilon > 0 and cols <= 2 it uses torch's formula instead: one subtraction, then
// c / (||c|| + epsilon), without replacement. For more columns torch ignores epsilon, and so does
// this function.
//
// Returns false and fills the whole matrix with NaN if an element is not finite.
bool Orthonormalize(MatrixShape shape, double epsilon, std::span<double> matrix);

}  // namespace gradwire
