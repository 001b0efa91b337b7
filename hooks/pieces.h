// A contribution as it lies in memory, and a way through it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

namespace gradwire {

// One contribution's bytes in order. Pieces may have any size and alignment; an element may
// straddle pieces.
using Pieces = std::span<const std::span<const std::byte>>;

// A position in one contribution.
struct Cursor {
  Pieces pieces;
  std::size_t piece = 0;
  std::size_t offset = 0;  // in that piece

  // A piece that is used up, or was empty from the start, would otherwise make `contiguous` 0
  // before the end.
  void SkipEmptyPieces() {
    while (piece < pieces.size() && offset == pieces[piece].size()) {
      ++piece;
      offset = 0;
    }
  }

  // Bytes that follow in the current piece.
  std::size_t contiguous() const {
    return piece < pieces.size() ? pieces[piece].size() - offset : 0;
  }

  const std::byte* data() const { return pieces[piece].data() + offset; }

  void Advance(std::size_t bytes) {
    offset += bytes;
    SkipEmptyPieces();
  }

  void Gather(std::size_t bytes, std::byte* out) {
    while (bytes > 0) {
      const std::size_t part = std::min(bytes, contiguous());
      std::memcpy(out, data(), part);
      out += part;
      bytes -= part;
      Advance(part);
    }
  }
};

}  // namespace gradwire
