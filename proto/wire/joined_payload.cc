#include "proto/wire/joined_payload.h"

#include <algorithm>
#include <utility>

namespace gradwire::wire {
namespace {

class PiecesPayload final : public Payload {
 public:
  PiecesPayload(std::vector<PayloadRef> owners, std::vector<std::span<const std::byte>> pieces)
      : owners_(std::move(owners)), pieces_(std::move(pieces)) {
    for (const auto& piece : pieces_) bytes_ += piece.size();
  }

  std::span<const std::span<const std::byte>> pieces() const override { return pieces_; }
  std::size_t bytes() const override { return bytes_; }
  bool fixed() const override {
    return std::all_of(owners_.begin(), owners_.end(),
                       [](const PayloadRef& owner) { return owner->fixed(); });
  }

 private:
  const std::vector<PayloadRef> owners_;
  const std::vector<std::span<const std::byte>> pieces_;
  std::size_t bytes_ = 0;
};

}  // namespace

PayloadRef Join(std::vector<PayloadRef> payloads) {
  if (payloads.size() == 1) return std::move(payloads.front());
  std::vector<std::span<const std::byte>> pieces;
  for (const PayloadRef& payload : payloads) {
    pieces.insert(pieces.end(), payload->pieces().begin(), payload->pieces().end());
  }
  return std::make_shared<const PiecesPayload>(std::move(payloads), std::move(pieces));
}

PayloadRef Part(PayloadRef whole, std::size_t offset, std::size_t bytes) {
  if (PayloadRef cut = whole->Cut(offset, bytes)) return cut;
  std::vector<std::span<const std::byte>> pieces;
  for (std::span<const std::byte> piece : whole->pieces()) {
    const std::size_t skip = std::min(offset, piece.size());
    offset -= skip;
    const std::size_t take = std::min(bytes, piece.size() - skip);
    bytes -= take;
    if (take > 0) pieces.push_back(piece.subspan(skip, take));
  }
  return std::make_shared<const PiecesPayload>(std::vector<PayloadRef>{std::move(whole)},
                                               std::move(pieces));
}

}  // namespace gradwire::wire
