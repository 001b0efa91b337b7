#include "client/core/member_collectives.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/mutants.h"

namespace gradwire::client {

absl::Status VoidCollective(wire::CollectiveKind kind) {
  return Coded(
      ErrorCode::kMembershipChanged,
      absl::AbortedError(absl::StrCat(
          kind == wire::CollectiveKind::kBarrier ? "the barrier" : "the broadcast",
          " has ended: a member of it was lost, which the end of this step will tell of")));
}

absl::StatusOr<std::uint64_t> MemberCollectives::Enter(wire::CollectiveKind kind, int root,
                                                       std::size_t bytes, Effects& effects) {
  if (open_)
    return Coded(ErrorCode::kCollective,
                 absl::FailedPreconditionError("another collective is open in this member"));
  if (root < 0 || root >= options_.world_size) {
    return Coded(ErrorCode::kCollective,
                 absl::InvalidArgumentError(absl::StrCat("root is ", root, "; allowed are 0 to ",
                                                         options_.world_size - 1)));
  }
  open_ = Open{.number = next_++, .kind = kind, .root = root, .bytes = bytes};
  SendEnter(effects);
  return open_->number;
}

void MemberCollectives::SendEnter(Effects& effects) const {
  effects.push_back(SendFrameEffect{wire::Enter{.number = open_->number,
                                                .generation = options_.generation,
                                                .kind = open_->kind,
                                                .root = open_->root,
                                                .bytes = open_->bytes}});
}

std::uint32_t MemberCollectives::chunk_count() const {
  return static_cast<std::uint32_t>((open_->bytes + options_.chunk_bytes - 1) /
                                    options_.chunk_bytes);
}

std::size_t MemberCollectives::ChunkBytes(std::uint32_t chunk) const {
  return std::min(options_.chunk_bytes, open_->bytes - chunk * options_.chunk_bytes);
}

void MemberCollectives::On(const wire::Begin& begin, Effects& effects) {
  if (!open_ || begin.number != open_->number) return;  // repeated after a resume
  open_->begun = true;
  SendChunks(effects);
  MaybeFinish(effects);
}

void MemberCollectives::SendChunks(Effects& effects) {
  if (!open_->begun || !is_root()) return;
  // The window rule: at most `window_chunks` beyond what all members have.
  const std::uint32_t window =
      IsActive(Mutant::kBroadcastNotPaced) ? chunk_count() : options_.window_chunks;
  const std::uint32_t end = std::min(chunk_count(), open_->everybody + window);
  for (; open_->sent < end; ++open_->sent) {
    effects.push_back(SendCollectiveEffect{
        .header = wire::CollectiveChunk{.number = open_->number, .chunk = open_->sent},
        .offset = open_->sent * options_.chunk_bytes,
        .bytes = ChunkBytes(open_->sent)});
  }
}

absl::Status MemberCollectives::On(const wire::CollectiveChunk& header,
                                   const wire::PayloadRef& payload, Effects& effects) {
  if (header.number + (open_ ? 1 : 0) < next_) {
    // Repeated after a resume: the acknowledgement was lost, and others may wait for it.
    effects.push_back(SendFrameEffect{
        wire::CollectiveAck{.number = header.number, .received = header.chunk + 1}});
    return absl::OkStatus();
  }
  if (!open_) return absl::OkStatus();
  if (header.chunk > open_->received || header.chunk >= chunk_count() || is_root()) {
    return Coded(ErrorCode::kBadAnswer, absl::InternalError(absl::StrCat(
                                            "the coordinator sent chunk ", header.chunk,
                                            " of broadcast ", header.number, " out of order")));
  }
  if (header.chunk == open_->received) {
    const std::size_t bytes = ChunkBytes(header.chunk);
    if (payload == nullptr || payload->bytes() != bytes) {
      return Coded(
          ErrorCode::kBadAnswer,
          absl::InternalError(absl::StrCat(
              "the coordinator sent chunk ", header.chunk, " of broadcast ", header.number,
              " with ", payload == nullptr ? 0 : payload->bytes(), " bytes; it has ", bytes)));
    }
    effects.push_back(ReceiveCollectiveEffect{.offset = open_->received * options_.chunk_bytes,
                                              .payload = payload});
    ++open_->received;
  }
  effects.push_back(
      SendFrameEffect{wire::CollectiveAck{.number = open_->number, .received = open_->received}});
  MaybeFinish(effects);
  return absl::OkStatus();
}

void MemberCollectives::On(const wire::CollectiveAck& ack, Effects& effects) {
  if (!open_ || ack.number != open_->number || !is_root()) return;
  // After a resume the coordinator sends UINT32_MAX for a broadcast that has ended.
  open_->everybody = std::max(open_->everybody, std::min(ack.received, chunk_count()));
  SendChunks(effects);
  MaybeFinish(effects);
}

void MemberCollectives::MaybeFinish(Effects& effects) {
  const std::uint32_t here = is_root() ? open_->everybody : open_->received;
  if (!open_->begun || here < chunk_count()) return;
  effects.push_back(CollectiveDoneEffect{.number = open_->number});
  open_.reset();
}

void MemberCollectives::BeginAnew() {
  if (!open_) return;
  open_ = {
      .number = open_->number, .kind = open_->kind, .root = open_->root, .bytes = open_->bytes};
}

void MemberCollectives::Resumed(Effects& effects) {
  if (!open_) return;
  // Chunks that not all members have may be lost with the stream. They are sent again after the
  // next Begin; the coordinator ignores those that it has.
  open_->begun = false;
  open_->sent = open_->everybody;
  SendEnter(effects);
}

void MemberCollectives::GoOnFrom(std::uint64_t next, Effects& effects) {
  next_ = next;
  if (!open_) return;
  effects.push_back(
      CollectiveDoneEffect{.number = open_->number, .status = VoidCollective(open_->kind)});
  open_.reset();
}

void MemberCollectives::Withdraw(const absl::Status& status, Effects& effects) {
  effects.push_back(CollectiveDoneEffect{.number = open_->number, .status = status});
  open_.reset();
  --next_;
}

}  // namespace gradwire::client
