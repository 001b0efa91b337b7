// The account of what a member sends eagerly: small buckets whose contribution travels with the
// announcement, without a grant.
//
// The daemon takes at most `limit` bytes before it has heard that the results arrived. Results of
// eager buckets need no acknowledgement of their own: the next announcement carries it, and frees
// their bytes. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace gradwire::client {

class EagerSending {
 public:
  explicit EagerSending(std::size_t limit) : limit_(limit) {}

  // An announcement that carries `bytes` acknowledges what has its results, so that these count no
  // more.
  bool MaySend(std::size_t bytes) const { return !stopped_ && bytes <= limit_ - (sent_ - done_); }
  // After TakeAcknowledged for the same announcement. `bytes` as MaySend allowed.
  void Sent(std::uint32_t bucket, std::size_t bytes);

  // Of this step, sent eagerly, and without its result so far.
  bool IsOpen(std::uint32_t bucket) const { return open_.count(bucket) > 0; }
  // It is one of the others now: granted, or acknowledged by itself.
  void Forget(std::uint32_t bucket);
  // Its result is here; the next announcement says so.
  void Finish(std::uint32_t bucket);
  // For the next announcement.
  std::vector<std::uint32_t> TakeAcknowledged();

  // The stream broke. What went eagerly may have been lost, and how much of it the daemon has is
  // not known: all of it waits for a grant now, and nothing goes eagerly for the rest of the step.
  void Stop();
  // The first frame of the next step acknowledges all of this one.
  void EndStep();

 private:
  const std::size_t limit_;
  std::unordered_map<std::uint32_t, std::size_t> open_;  // bytes
  std::size_t sent_ = 0;                                 // not acknowledged
  std::size_t done_ = 0;                                 // of these, what has its result
  std::vector<std::uint32_t> finished_;                  // likewise: the buckets
  bool stopped_ = false;
};

}  // namespace gradwire::client
