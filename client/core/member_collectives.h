// The member's side of broadcasts and barriers. One is open at a time. They are numbered separately
// and may run during steps. Not thread-safe.
//
// A broadcast may pass through: a leaf daemon's client has the bytes piece by piece. It stands for
// the members behind the leaf, and is the root if one of them is. It then sends a chunk once it was
// given all of the chunk's bytes; else it acknowledges a chunk once there is room for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "client/core/effects.h"
#include "client/core/member_options.h"

namespace gradwire::client {

// Aborted: a member was lost, and its successor does not take part, if there is one. So ends what
// is open when members hear of that, and what they enter before the user has heard of it.
absl::Status VoidCollective(wire::CollectiveKind kind);

class MemberCollectives {
 public:
  // `options` outlives this.
  explicit MemberCollectives(const MemberOptions& options) : options_(options) {}

  // Enters the next one and returns its number.
  absl::StatusOr<std::uint64_t> Enter(wire::CollectiveKind kind, int root, std::size_t bytes,
                                      Effects& effects);

  // ---- The open broadcast passes through
  // Before its Begin. Nothing was given yet, and there is room for so many bytes.
  void BeginRelay(std::uint64_t room);
  // So many further bytes can be sent.
  void Give(std::uint64_t bytes, Effects& effects);
  // There is room for so many bytes in all.
  void MakeRoom(std::uint64_t bytes, Effects& effects);
  // FailedPrecondition: another daemon took over, and needs bytes that the relay does not keep.
  absl::Status CheckWhole() const;

  // Frames. An error ends the session: the coordinator broke the protocol.
  void On(const wire::Begin& begin, Effects& effects);
  absl::Status On(const wire::CollectiveChunk& header, const wire::PayloadRef& payload,
                  Effects& effects);
  void On(const wire::CollectiveAck& ack, Effects& effects);
  void On(const wire::CollectiveVoid& over, Effects& effects);

  // A new stream took over: enters again. Chunks follow on the next Begin.
  void Resumed(Effects& effects);
  // Another daemon took over, which has nothing of the open one. Resumed follows.
  void BeginAnew();
  bool is_open() const { return open_.has_value(); }
  // Of an open broadcast: its root.
  std::optional<int> root() const {
    const bool has = open_ && open_->kind == wire::CollectiveKind::kBroadcast;
    return has ? std::optional(open_->root) : std::nullopt;
  }
  // The open one ends with `status` as if it had not been entered, of which no daemon has heard.
  void Withdraw(const absl::Status& status, Effects& effects);
  // That are over.
  std::uint64_t ended() const { return next_ - (open_ ? 1 : 0); }
  // Lost members have successors, which are in none of those before `next`: an open one is void.
  void GoOnFrom(std::uint64_t next, Effects& effects);
  // The session is over.
  void Abort() { open_.reset(); }

 private:
  struct Open {
    std::uint64_t number = 0;
    wire::CollectiveKind kind = wire::CollectiveKind::kBarrier;
    int root = 0;
    std::size_t bytes = 0;
    bool begun = false;
    std::uint32_t sent = 0;          // chunks: the root's
    std::uint32_t received = 0;      // chunks: the others'
    std::uint32_t everybody = 0;     // the root's: all others have so many
    std::uint32_t acknowledged = 0;  // of those received: the others'
    // Of a broadcast that passes through. The bytes of any other are all here, or have room.
    bool relayed = false;
    bool told = false;  // that it has begun
    std::uint64_t given = 0;
    std::uint64_t room = 0;
    std::uint64_t taken = 0;      // as told
    std::uint32_t passed_on = 0;  // chunks
    std::uint32_t dropped = 0;    // chunks that the relay does not keep
  };

  bool is_root() const {
    return open_->root >= options_.rank && open_->root < options_.rank + options_.ranks;
  }
  std::uint32_t chunk_count() const;
  // Chunks that end within so many bytes.
  std::uint32_t ChunksWithin(std::uint64_t bytes) const;
  std::size_t ChunkBytes(std::uint32_t chunk) const;
  void SendEnter(Effects& effects) const;
  void SendChunks(Effects& effects);
  void Acknowledge(Effects& effects);
  void TellTaken(Effects& effects);
  void MaybeFinish(Effects& effects);

  const MemberOptions& options_;
  std::optional<Open> open_;
  std::uint64_t next_ = 0;
};

}  // namespace gradwire::client
