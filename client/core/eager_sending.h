// Accounting of the buckets that a member sends eagerly: small buckets whose contribution travels
// with the announcement, without a grant.
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

  // Whether the bucket was sent eagerly in this step and has no result yet.
  bool IsOpen(std::uint32_t bucket) const { return open_.count(bucket) > 0; }
  // The bucket no longer counts as eager: it was granted, or acknowledged with a separate Ack.
  void Forget(std::uint32_t bucket);
  // The bucket's result has arrived; the next announcement acknowledges it.
  void Finish(std::uint32_t bucket);
  // The acknowledgements for the next announcement.
  std::vector<std::uint32_t> TakeAcknowledged();

  // The stream broke, and it is unknown which eager buckets reached the daemon. All of them wait
  // for a grant now, and no bucket is sent eagerly for the rest of the step.
  void Stop();
  // The first frame of the next step acknowledges all of this one.
  void EndStep();

 private:
  const std::size_t limit_;
  std::unordered_map<std::uint32_t, std::size_t> open_;  // bytes
  std::size_t sent_ = 0;                                 // not acknowledged
  std::size_t done_ = 0;                                 // of these, what has its result
  std::vector<std::uint32_t> finished_;                  // the buckets of done_
  bool stopped_ = false;
};

}  // namespace gradwire::client
