#include "proto/wire/byte_pieces.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/joined_payload.h"
#include "proto/wire/owned_payload.h"

namespace gradwire::wire {

void InPieces(std::vector<std::byte> whole, std::size_t most,
              const std::function<void(std::uint64_t offset, PayloadRef piece)>& send) {
  const std::size_t bytes = whole.size();
  const PayloadRef payload = OwnedPayload::Make(std::move(whole));
  for (std::size_t at = 0; at < bytes; at += most) {
    send(at, Part(payload, at, std::min(most, bytes - at)));
  }
}

absl::Status PieceReader::Add(std::uint64_t offset, std::uint64_t bytes, const Payload* piece) {
  const std::size_t added = piece == nullptr ? 0 : piece->bytes();
  if (offset == 0) {
    content_.clear();
    bytes_ = bytes;
  }
  if (bytes != bytes_ || offset != content_.size() || added > bytes - offset) {
    return absl::InvalidArgumentError(absl::StrCat("has bytes ", offset, " to ", offset + added,
                                                   " of ", bytes, "; allowed: from ",
                                                   content_.size(), " to ", bytes_, " at most"));
  }
  for (std::size_t i = 0; piece != nullptr && i < piece->pieces().size(); ++i) {
    const std::span<const std::byte> part = piece->pieces()[i];
    content_.insert(content_.end(), part.begin(), part.end());
  }
  return absl::OkStatus();
}

std::vector<std::byte> PieceReader::Take() {
  bytes_ = 0;
  return std::exchange(content_, {});
}

}  // namespace gradwire::wire
