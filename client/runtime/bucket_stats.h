// The cost of each bucket's reductions to this member: the figures of Client::Report and of rank
// 0's BucketReport frames. Reads no clock; not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "gradwire/hooks/hook.h"
#include "proto/wire/frame.h"

namespace gradwire::client {

class BucketStats {
 public:
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;

  // Per bucket, a report is due once in this time.
  static constexpr std::chrono::seconds kInterval{1};
  // And norms, which cost two passes over the bucket, are measured once in this one.
  static constexpr std::chrono::seconds kNormsInterval{10};

  // Whether the reduction of this bucket that is about to begin should be measured.
  bool ShouldMeasure(std::uint32_t bucket, Clock::time_point now) const;

  void Begin(std::uint32_t bucket, std::uint32_t parameters, std::uint64_t gradient_bytes,
             Clock::time_point now);

  // Whether the bucket that began last time lies where the daemon reads and writes it.
  void LiesInPlace(std::uint32_t bucket, bool in_place);
  bool in_place(std::uint32_t bucket) const;

  // Work on a bucket between its Begin and its Done; ignored otherwise.
  void Compressed(std::uint32_t bucket, Seconds spent, std::uint64_t bytes_sent);
  void Decompressed(std::uint32_t bucket, Seconds spent, std::uint64_t bytes_received);
  void Reduced(std::uint32_t bucket, Seconds spent);

  // The report, if one was due when the bucket began.
  std::optional<wire::BucketReport> Done(std::uint32_t bucket,
                                         const std::optional<BucketNorms>& norms,
                                         Clock::time_point now);

  // The step is over: forgets buckets that were not in it, because DDP has rebuilt the buckets.
  void EndStep();

  // By bucket.
  std::vector<wire::BucketReport> All() const;

 private:
  struct Entry {
    wire::BucketReport report;
    bool open = false;
    bool in_step = false;
    bool due = false;
    bool in_place = false;
    Clock::time_point began;
    Seconds busy{};  // time since it began that was not spent on the wire
    std::optional<Clock::time_point> reported;
    std::optional<Clock::time_point> measured;
  };

  bool IsDue(std::uint32_t bucket, Clock::time_point now) const;
  Entry* Open(std::uint32_t bucket);

  std::map<std::uint32_t, Entry> entries_;
};

}  // namespace gradwire::client
