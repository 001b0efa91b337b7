// Between row-major matrices, as hooks and the wire have them, and column-major ones, as
// Orthonormalize takes them.
#pragma once

#include <algorithm>
#include <cstddef>

#include "gradwire/hooks/hook.h"

namespace gradwire {

// Elements that are converted between the two orders at once: rows of a few KiB, which stay in the
// cache while each column is visited.
inline constexpr std::size_t kReorderedNumel = 512;

// Calls visit(i, at) for each i < count: element `first + i` of the row-major matrix is element
// `at` of the column-major one. first + count <= shape.numel(). Column by column, because
// neighbouring elements of a row lie a whole column apart: in rows' order each would use another
// cache line.
template <class Visit>
void VisitByColumn(MatrixShape shape, std::size_t first, std::size_t count, Visit visit) {
  for (std::size_t i = 0; i < std::min(shape.cols, count); ++i) {
    const std::size_t col = (first + i) % shape.cols;
    std::size_t at = col * shape.rows + (first + i) / shape.cols;
    for (std::size_t k = i; k < count; k += shape.cols) visit(k, at++);
  }
}

// The same for the whole matrix, a block of rows at a time.
template <class Visit>
void VisitByColumn(MatrixShape shape, Visit visit) {
  for (std::size_t first = 0; first < shape.numel(); first += kReorderedNumel) {
    const std::size_t count = std::min(kReorderedNumel, shape.numel() - first);
    VisitByColumn(shape, first, count,
                  [&](std::size_t i, std::size_t at) { visit(first + i, at); });
  }
}

}  // namespace gradwire
