#include "client/core/member_collectives.h"

#include <algorithm>
#include <utility>

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

std::uint32_t MemberCollectives::ChunksWithin(std::uint64_t bytes) const {
  if (bytes >= open_->bytes) return chunk_count();
  return static_cast<std::uint32_t>(bytes / options_.chunk_bytes);
}

std::size_t MemberCollectives::ChunkBytes(std::uint32_t chunk) const {
  return std::min(options_.chunk_bytes, open_->bytes - chunk * options_.chunk_bytes);
}

void MemberCollectives::On(const wire::Begin& begin, Effects& effects) {
  if (!open_ || begin.number != open_->number) return;  // repeated after a resume
  open_->begun = true;
  if (open_->relayed && !std::exchange(open_->told, true)) effects.push_back(RelayBegunEffect{});
  SendChunks(effects);
  MaybeFinish(effects);
}

void MemberCollectives::SendChunks(Effects& effects) {
  if (!open_->begun || !is_root()) return;
  // The window rule: at most `window_chunks` beyond what all members have.
  const std::uint32_t window =
      IsActive(Mutant::kBroadcastNotPaced) ? chunk_count() : options_.window_chunks;
  const std::uint32_t here = open_->relayed ? ChunksWithin(open_->given) : chunk_count();
  const std::uint32_t end = std::min(here, open_->everybody + window);
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
    // Another daemon begins with the first chunk.
    if (!open_->relayed || header.chunk >= open_->passed_on) {
      effects.push_back(ReceiveCollectiveEffect{.offset = open_->received * options_.chunk_bytes,
                                                .payload = payload});
      open_->passed_on = header.chunk + 1;
    }
    ++open_->received;
  }
  Acknowledge(effects);
  MaybeFinish(effects);
  return absl::OkStatus();
}

void MemberCollectives::Acknowledge(Effects& effects) {
  open_->acknowledged =
      open_->relayed ? std::min(open_->received, ChunksWithin(open_->room)) : open_->received;
  effects.push_back(SendFrameEffect{
      wire::CollectiveAck{.number = open_->number, .received = open_->acknowledged}});
}

// ---- A broadcast that passes through

void MemberCollectives::BeginRelay(std::uint64_t room) {
  open_->relayed = true;
  open_->room = room;
}

void MemberCollectives::Give(std::uint64_t bytes, Effects& effects) {
  if (!open_ || !open_->relayed || !is_root()) return;
  open_->given += bytes;
  SendChunks(effects);
  TellTaken(effects);
}

void MemberCollectives::MakeRoom(std::uint64_t bytes, Effects& effects) {
  if (!open_ || !open_->relayed || is_root()) return;
  open_->room = std::max(open_->room, bytes);
  // Another daemon has taken over: the chunks that come again are acknowledged.
  if (!open_->begun) return;
  if (std::min(open_->received, ChunksWithin(open_->room)) == open_->acknowledged) return;
  Acknowledge(effects);
  MaybeFinish(effects);
}

// The bytes of one chunk count as taken although not all members have them: the giver's window may
// not hold a whole chunk of this size.
void MemberCollectives::TellTaken(Effects& effects) {
  if (!open_->relayed) return;
  const std::uint64_t kept_from = std::uint64_t{open_->everybody} * options_.chunk_bytes;
  const bool over = open_->everybody == chunk_count();
  const std::uint64_t most =
      over ? open_->bytes
           : std::min<std::uint64_t>(open_->bytes - 1, kept_from + options_.chunk_bytes);
  open_->taken = std::max(open_->taken, std::min(open_->given, most));
  effects.push_back(RelayTakenEffect{.kept_from = std::min<std::uint64_t>(open_->bytes, kept_from),
                                     .taken = open_->taken});
}

absl::Status MemberCollectives::CheckWhole() const {
  if (!open_ || open_->dropped == 0) return absl::OkStatus();
  return Coded(
      ErrorCode::kLeaf,
      absl::FailedPreconditionError(absl::StrCat(
          "broadcast ", open_->number, " from rank ", open_->root,
          ", which is behind a leaf daemon: the upstream daemon was lost after ", open_->dropped,
          " of ", chunk_count(), " chunks, which the leaf does not keep")));
}

void MemberCollectives::On(const wire::CollectiveAck& ack, Effects& effects) {
  if (!open_ || ack.number != open_->number || !is_root()) return;
  // After a resume the coordinator sends UINT32_MAX for a broadcast that has ended.
  open_->everybody = std::max(open_->everybody, std::min(ack.received, chunk_count()));
  SendChunks(effects);
  TellTaken(effects);
  MaybeFinish(effects);
}

void MemberCollectives::MaybeFinish(Effects& effects) {
  const std::uint32_t here = is_root() ? open_->everybody : open_->acknowledged;
  if (!open_->begun || here < chunk_count()) return;
  effects.push_back(CollectiveDoneEffect{.number = open_->number});
  open_.reset();
}

void MemberCollectives::BeginAnew() {
  if (!open_) return;
  const Open before = *open_;
  open_ = Open{.number = before.number,
               .kind = before.kind,
               .root = before.root,
               .bytes = before.bytes,
               .relayed = before.relayed,
               .told = before.told,
               .given = before.given,
               .room = before.room,
               .taken = before.taken,
               .passed_on = before.passed_on,
               .dropped = before.relayed ? std::max(before.dropped, before.everybody) : 0};
}

void MemberCollectives::Resumed(Effects& effects) {
  if (!open_) return;
  // Chunks that not all members have may be lost with the stream. They are sent again after the
  // next Begin; the coordinator ignores those that it has. For any other member it goes on: what it
  // acknowledges meanwhile is asked for again if it is lost.
  if (is_root()) open_->begun = false;
  open_->sent = open_->everybody;
  SendEnter(effects);
}

void MemberCollectives::On(const wire::CollectiveVoid& over, Effects& effects) {
  if (open_ && open_->number <= over.number) GoOnFrom(over.number + 1, effects);
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
