// A member's connection as two lanes: its stream, and a stream for bulk on a connection of its own,
// so that what is small does not wait behind what is large in sockets and on the way.
//
// Each lane keeps its order. Between them, the frames of a bucket keep theirs, and frames about the
// whole session theirs with all others: `Frame.after` says how many frames of the other lane go
// before a frame. The cores see what could have come through one stream whose small frames pass
// large ones of other buckets.
//
// Why a count: it orders a frame after all of the other lane's frames up to one, in a few bytes and
// without names for frames, and the receiver compares two numbers. Both sides must count the same,
// so that every frame counts, heartbeats too, whatever it is about; only the Hellos do not, which
// come before there is a connection to count in. A frame names the last one of the other lane that
// it must follow, and never a later one: what waits for it was sent before, so that two lanes that
// wait for each other cannot come about.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "proto/wire/send_priority.h"

namespace gradwire::wire {

enum class Lane : std::uint8_t { kMain, kBulk };
inline constexpr std::size_t kLanes = 2;
inline constexpr std::array<Lane, kLanes> kAllLanes = {Lane::kMain, Lane::kBulk};

constexpr Lane Other(Lane lane) { return lane == Lane::kMain ? Lane::kBulk : Lane::kMain; }
constexpr std::size_t Index(Lane lane) { return static_cast<std::size_t>(lane); }

// A bulk lane is broken after so many times the silence that the session allows a member. A large
// frame may be long on its way, and is heard only when all of it is there.
inline constexpr int kBulkSilences = 4;

// The sender's side: which lane a frame takes, and what goes before it there. Of one direction of
// one connection, without the Hellos; not thread-safe.
//
// Contributions and results above kSmallPayload take the bulk lane, and so do those that follow
// them of their bucket in that step, whatever their size. Everything else takes the main lane.
class LaneOrder {
 public:
  struct Place {
    Lane lane = Lane::kMain;
    std::uint64_t after = 0;
  };

  // The frame is the lane's next one.
  Place Next(const SendPriority& priority);

  // A frame that has nothing to do with others, such as a heartbeat, is the lane's next one.
  void Count(Lane lane) { ++sent_[Index(lane)]; }

 private:
  using Counts = std::array<std::uint64_t, kLanes>;
  struct Trail {
    Counts last{};  // of each lane's frames, the number of the bucket's last
    bool bulky = false;
  };

  Counts sent_{};
  Counts last_{};   // of each lane's frames, the number of the last that has to do with others
  Counts fence_{};  // of each lane's frames, the number of the last that all later ones follow
  std::int64_t step_ = -1;
  std::unordered_map<std::uint32_t, Trail> buckets_;  // of step_
};

// The receiver's side: puts the lanes' frames into an order that the sender allowed. A frame that
// may not be taken yet holds up its lane until enough of the other have been.
class ReorderGate {
 public:
  bool MayTake(Lane lane, std::uint64_t after) const { return taken_[Index(Other(lane))] >= after; }
  void Take(Lane lane) { ++taken_[Index(lane)]; }

 private:
  std::array<std::uint64_t, kLanes> taken_{};
};

}  // namespace gradwire::wire
