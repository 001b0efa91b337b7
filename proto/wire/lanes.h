// A member's connection as two lanes: its stream, and a bulk stream on a separate connection, so
// that small frames do not wait behind large ones in sockets and on the wire.
//
// Each lane keeps its order. Between lanes, the frames of one bucket keep their order, and frames
// about the whole session keep theirs relative to all others: `Frame.after` is the number of frames
// of the other lane that precede a frame. To the cores this looks like one stream in which small
// frames overtake large ones of other buckets.
//
// Why a count: it orders a frame after all frames of the other lane up to a given one, in a few
// bytes and without frame ids, and the receiver compares two numbers. Both sides must count alike,
// so every frame counts, including heartbeats; only the Hellos do not, because they precede the
// connection. A frame refers only to frames that were sent before it, so two lanes can never wait
// for each other.
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

// A bulk lane is broken after this many times the silence that the session allows a member, because
// a large frame takes long and counts only when it has arrived completely.
inline constexpr int kBulkSilences = 4;

// The sender's side, for one direction of one connection: chooses a frame's lane and the frames
// that precede it. Hellos are excluded. Not thread-safe.
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

  // The lane's next frame is independent of all others, such as a heartbeat.
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
