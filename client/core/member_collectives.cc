// Broadcast and barrier, the member's side.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/core/member.h"

namespace gradwire::client {

absl::StatusOr<std::uint64_t> Member::Enter(wire::CollectiveKind kind, int root, std::size_t bytes,
                                            Effects& effects) {
  if (failed()) return failure_;
  if (collective_)
    return absl::FailedPreconditionError("another collective is open in this member");
  if (root < 0 || root >= options_.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("root is ", root, "; allowed are 0 to ", options_.world_size - 1));
  }
  collective_ =
      Collective{.number = next_collective_++, .kind = kind, .root = root, .bytes = bytes};
  effects.push_back(SendEffect{wire::Enter{.number = collective_->number,
                                           .generation = options_.generation,
                                           .kind = kind,
                                           .root = root,
                                           .bytes = bytes}});
  return collective_->number;
}

std::uint32_t Member::CollectiveChunks() const {
  return static_cast<std::uint32_t>((collective_->bytes + options_.chunk_bytes - 1) /
                                    options_.chunk_bytes);
}

void Member::OnBegin(const wire::Begin& begin, Effects& effects) {
  if (!collective_ || begin.number != collective_->number) return;  // repeated after a resume
  collective_->begun = true;
  SendCollectiveChunks(effects);
  MaybeFinishCollective(effects);
}

void Member::SendCollectiveChunks(Effects& effects) {
  Collective& open = *collective_;
  if (!open.begun || open.root != options_.rank) return;
  const std::uint32_t count = CollectiveChunks();
  while (open.sent < count && open.sent < open.everybody + options_.window_chunks) {
    const std::size_t offset = open.sent * options_.chunk_bytes;
    effects.push_back(SendCollectiveEffect{
        .header = wire::CollectiveChunk{.number = open.number, .chunk = open.sent},
        .offset = offset,
        .bytes = std::min(options_.chunk_bytes, open.bytes - offset)});
    ++open.sent;
  }
}

void Member::OnCollectiveChunk(const wire::CollectiveChunk& header, const wire::PayloadRef& payload,
                               Effects& effects) {
  if (header.number + (collective_ ? 1 : 0) < next_collective_) {
    // Repeated after a resume: the acknowledgement was lost, and others may wait for it.
    effects.push_back(
        SendEffect{wire::CollectiveAck{.number = header.number, .received = header.chunk + 1}});
    return;
  }
  if (!collective_) return;
  Collective& open = *collective_;
  if (header.chunk > open.received || header.chunk >= CollectiveChunks() ||
      open.root == options_.rank) {
    return ProtocolError(
        absl::StrCat("chunk ", header.chunk, " of broadcast ", header.number, " out of order"),
        effects);
  }
  if (header.chunk == open.received) {
    const std::size_t offset = open.received * options_.chunk_bytes;
    if (payload == nullptr ||
        payload->bytes() != std::min(options_.chunk_bytes, open.bytes - offset)) {
      return ProtocolError(
          absl::StrCat("chunk ", header.chunk, " of a broadcast with the wrong size"), effects);
    }
    effects.push_back(ReceiveCollectiveEffect{.offset = offset, .payload = payload});
    ++open.received;
  }
  effects.push_back(
      SendEffect{wire::CollectiveAck{.number = open.number, .received = open.received}});
  MaybeFinishCollective(effects);
}

void Member::OnCollectiveAck(const wire::CollectiveAck& ack, Effects& effects) {
  if (!collective_ || ack.number != collective_->number || collective_->root != options_.rank)
    return;
  collective_->everybody =
      std::max(collective_->everybody, std::min(ack.received, CollectiveChunks()));
  SendCollectiveChunks(effects);
  MaybeFinishCollective(effects);
}

void Member::MaybeFinishCollective(Effects& effects) {
  const Collective& open = *collective_;
  const std::uint32_t here = open.root == options_.rank ? open.everybody : open.received;
  if (!open.begun || here < CollectiveChunks()) return;
  effects.push_back(CollectiveDoneEffect{.number = open.number});
  collective_.reset();
}

}  // namespace gradwire::client
