// Which frames pass others that wait in the same queue, so that a small bucket does not wait behind
// the chunks of large ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "proto/wire/frame.h"

namespace gradwire::wire {

// Payloads up to this size pass larger ones.
inline constexpr std::size_t kSmallPayload = std::size_t{64} << 10;

// What a queue knows of a frame in it.
struct Weight {
  enum class Kind : std::uint8_t { kOther, kEagerAnnounce, kContribution, kResult };
  // What else the frame is about, and so which frames it must not change places with: all of them,
  // those of its bucket, those of other steps, none.
  enum class Scope : std::uint8_t { kAll, kBucket, kStep, kNone };
  Kind kind = Kind::kOther;
  Scope scope = Scope::kAll;
  std::int64_t step = 0;     // of kBucket and kStep
  std::uint32_t bucket = 0;  // of kBucket
  std::size_t bytes = 0;     // of a contribution or a result, wherever it lies

  bool operator==(const Weight&) const = default;
};

Weight WeightOf(const Header& header, const Payload* payload);

// Rounds of different buckets are independent: an announcement that is its own contribution passes
// contributions, a small result passes large ones of other buckets. Nothing else changes its place.
bool MayPass(const Weight& late, const Weight& early);

// Where in `queue`, from its end, a frame belongs. `weight_of` maps an element to its Weight.
template <typename Queue, typename WeightOfElement>
typename Queue::iterator PlaceFor(Queue& queue, const Weight& late, WeightOfElement weight_of) {
  auto at = queue.end();
  if (late.kind == Weight::Kind::kOther) return at;
  while (at != queue.begin() && MayPass(late, weight_of(*std::prev(at)))) --at;
  return at;
}

}  // namespace gradwire::wire
