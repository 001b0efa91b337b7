// What makes the bits of an orthonormalization, for every device: the order of its additions.
#pragma once

#include <cstddef>

namespace gradwire {

// A sum over rows is taken in this many lanes: lane j adds rows j, j + kOrthonormalizeLanes, …
// Then lanes are added to lanes: with h = half the lanes, then a quarter, … 1, lane j < h becomes
// lane j + lane (j + h) if both exist. A matrix of fewer rows has as many lanes as rows.
//
// So a processor's vectors, of any width, and a GPU's threads can each take lanes of their own.
inline constexpr std::size_t kOrthonormalizeLanes = 256;

// A column whose norm falls below this part of its norm before projection consists of rounding
// errors only: it depends linearly on the columns before it.
inline constexpr double kDeficient = 1e-10;

}  // namespace gradwire
