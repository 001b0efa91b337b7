// Decides which frames overtake others in the same queue, so that a small bucket does not wait
// behind the chunks of large ones. Knows only a frame's SendPriority (frame_priority.h computes
// it).
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace gradwire::wire {

// Payloads up to this size overtake larger ones.
inline constexpr std::size_t kSmallPayload = std::size_t{64} << 10;

// What a queue knows about a frame.
struct SendPriority {
  enum class Kind : std::uint8_t { kOther, kEagerAnnounce, kContribution, kResult };
  // What else the frame is about, and so which frames it must not change places with: all of them,
  // those of its bucket, those of other steps, none.
  enum class Scope : std::uint8_t { kAll, kBucket, kStep, kNone };
  Kind kind = Kind::kOther;
  Scope scope = Scope::kAll;
  std::int64_t step = 0;     // of kBucket and kStep
  std::uint32_t bucket = 0;  // of kBucket
  std::size_t bytes = 0;     // of a contribution or a result, wherever it lies

  bool operator==(const SendPriority&) const = default;
};

// Whether `late` may leave before `early`, which was queued first. Rounds of different buckets are
// independent: an eager announcement overtakes contributions, and a small result overtakes large
// ones of other buckets. No other frame overtakes.
constexpr bool GoesBefore(const SendPriority& late, const SendPriority& early) {
  using Kind = SendPriority::Kind;
  if (late.kind == Kind::kEagerAnnounce) return early.kind == Kind::kContribution;
  return late.kind == Kind::kResult && early.kind == Kind::kResult && late.bytes <= kSmallPayload &&
         early.bytes > kSmallPayload && late.bucket != early.bucket;
}

// Where in `queue`, searched from its end, a frame belongs. `priority_of` maps an element to its
// SendPriority.
template <typename Queue, typename PriorityOfElement>
typename Queue::iterator PlaceInQueue(Queue& queue, const SendPriority& late,
                                      PriorityOfElement priority_of) {
  auto at = queue.end();
  if (late.kind == SendPriority::Kind::kOther) return at;
  while (at != queue.begin() && GoesBefore(late, priority_of(*std::prev(at)))) --at;
  return at;
}

}  // namespace gradwire::wire
