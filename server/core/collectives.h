// Broadcasts and barriers of one session. They have their own numbers, carry opaque bytes, and need
// no commit.
//
// A collective begins when every member has entered it. A broadcast's root then sends chunks of
// `chunk_bytes` in order, at most `window_chunks` ahead of the chunks that all members have
// acknowledged; each chunk is forwarded when it arrives.
//
// At a leaf the root's session is like one more member, which has the rank upstream(): it is sent
// an Enter once all members have entered, the collective begins when the root's does, and
// upstream() is the root of a broadcast from behind another daemon, or else takes its chunks as the
// members do. At the root, a leaf is the root of a broadcast from behind it.
//
// Not thread-safe, no I/O.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/wire/frame.h"
#include "server/core/joined_chunks.h"

namespace gradwire::server {

class Collectives {
 public:
  struct Send {
    std::vector<int> ranks;
    wire::Frame frame;
  };

  Collectives(int world_size, std::size_t chunk_bytes, std::uint32_t window_chunks);

  // The rank takes no part: that of its leaf daemon does for it, or upstream(), or nobody (-1).
  // Before any collective.
  void SetElsewhere(int rank, int by);

  // Another daemon had the session before: so many are over for all members, and one more for those
  // that are `through` (by rank), which the others begin anew without them. Before any collective.
  void GoOnFrom(std::uint64_t number, const std::vector<bool>& through);

  // ---- Of a leaf
  // Before any collective. Its window is large, because it holds a bucket. What comes is passed on
  // within a smaller one, so that no stream has all of it in its queue.
  void SetLeaf();
  int upstream() const { return world_size_; }
  // The root has begun the collective whose Enter it was sent.
  void OnUpstreamBegan(std::vector<Send>& sends);
  // The next bytes of a broadcast of which upstream() is the root; in pieces of any size, and not
  // more than the CollectiveAcks to it have room for, by more than its own window.
  void OnUpstreamBytes(const wire::PayloadRef& bytes, std::vector<Send>& sends);
  // Upstream has taken so many of a broadcast's bytes, of those that it was sent. All of them: all
  // members of the root's session have them.
  void OnUpstreamTook(std::uint64_t bytes, std::vector<Send>& sends);
  // A member at the root was lost: the collective that it was asked for ends without effect.
  void OnUpstreamVoid(std::vector<Send>& sends);
  // So does whatever members have entered. number() is then that of the next one for all.
  void VoidOpen(std::vector<Send>& sends);
  // How many bytes of a broadcast may have come from upstream in all, once all members have these
  // chunks. One chunk more, so that it can be put together.
  std::uint64_t RoomAfter(std::uint32_t chunks) const {
    return (std::uint64_t{chunks} + 1) * chunk_bytes_;
  }
  // Whether the open one needs nothing of the members here.
  bool WaitsForUpstream() const;

  // Each returns an error that blames `rank`, or appends what to send.
  absl::Status OnEnter(int rank, const wire::Enter& enter, std::vector<Send>& sends);
  absl::Status OnChunk(int rank, const wire::CollectiveChunk& header,
                       const wire::PayloadRef& payload, std::vector<Send>& sends);
  absl::Status OnAck(int rank, const wire::CollectiveAck& ack, std::vector<Send>& sends);

  // The number of the open or next collective.
  std::uint64_t number() const { return number_; }

  // Leave is a unary call and may overtake the stream's last acknowledgement. False: the
  // collective cannot end without the member.
  bool OnLeave(int rank, std::vector<Send>& sends);

  // Whether no collective is open, or the open one needs nothing more from this member.
  bool IsThrough(int rank) const;

  // Repeats what a member whose stream was replaced may have missed.
  void Resume(int rank, std::vector<Send>& sends) const;

  // "" when no collective is open, else a sentence that names the members it waits for.
  std::string WaitingFor() const;

  std::size_t held_bytes() const;

 private:
  absl::Status CheckEnter(const wire::Enter& enter, const wire::Enter* other) const;
  // Another daemon has seen it through the open one, and it is in no other.
  bool IsThroughBefore(int rank) const {
    return through_[static_cast<std::size_t>(rank)] && early_.count(rank) == 0;
  }
  std::uint32_t ChunkCount() const;
  // Whoever sends the open one's chunks here.
  int Source() const { return in_for_[static_cast<std::size_t>(open_->root)]; }
  // Of the chunks that were passed on, those that all members have: without upstream().
  std::uint32_t EverybodyHere() const;
  std::uint32_t Everybody() const;
  void MaybeBegin(std::vector<Send>& sends);
  void Begin(std::vector<Send>& sends);
  // The open broadcast's next chunk.
  void Take(const wire::PayloadRef& payload, std::vector<Send>& sends);
  void PassOn(std::vector<Send>& sends);
  void MaybeFinish(std::vector<Send>& sends);
  void Void(std::vector<Send>& sends);
  // The next one is open if members have entered it early.
  void Close();
  std::vector<int> AllRanks() const;

  int world_size_;
  std::size_t chunk_bytes_;
  std::uint32_t window_chunks_;
  std::uint32_t ahead_;       // chunks passed on that not all have
  std::uint64_t number_ = 0;  // of the open or next collective
  std::optional<wire::Enter> open_;
  std::optional<std::uint64_t> void_;  // the last one that was
  std::vector<int> in_for_;            // by rank: whose process takes part for it; -1: nobody's
  std::vector<bool> elsewhere_;
  std::vector<bool> entered_;  // or elsewhere
  std::vector<bool> through_;  // of the open or next one, which another daemon began
  bool begun_ = false;
  bool leaf_ = false;
  bool waits_ = false;                   // for the root to begin it, with everybody here
  std::uint32_t come_ = 0;               // chunks
  std::uint32_t sent_ = 0;               // of them, passed on
  std::vector<std::uint32_t> received_;  // chunks each member acknowledged, and upstream() took
  // Chunks that came and are not acknowledged by all, from Everybody() on.
  std::vector<wire::PayloadRef> held_;
  // Members that have all of a broadcast enter the next collective while others still take it.
  std::map<int, wire::Enter> early_;
  JoinedChunks joined_;  // from upstream
};

}  // namespace gradwire::server
