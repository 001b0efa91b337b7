#include "client/core/given_bytes.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace gradwire::client {

void GivenBytes::Add(wire::PayloadRef bytes) {
  end_ += bytes->bytes();
  kept_.push_back(std::move(bytes));
}

void GivenBytes::Read(std::uint64_t offset, std::span<std::byte> out) const {
  std::uint64_t at = begin_;  // of the piece
  for (const wire::PayloadRef& payload : kept_) {
    for (const std::span<const std::byte> piece : payload->pieces()) {
      const std::uint64_t end = at + piece.size();
      if (end > offset && !out.empty()) {
        const auto skipped = static_cast<std::size_t>(offset - at);
        const std::size_t bytes = std::min(piece.size() - skipped, out.size());
        std::memcpy(out.data(), piece.data() + skipped, bytes);
        out = out.subspan(bytes);
        offset += bytes;
      }
      at = end;
    }
  }
}

void GivenBytes::Drop(std::uint64_t offset) {
  while (!kept_.empty() && begin_ + kept_.front()->bytes() <= offset) {
    begin_ += kept_.front()->bytes();
    kept_.pop_front();
  }
}

}  // namespace gradwire::client
