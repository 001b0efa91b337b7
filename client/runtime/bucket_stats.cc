#include "client/runtime/bucket_stats.h"

#include <algorithm>
#include <cmath>

namespace gradwire::client {

bool BucketStats::IsDue(std::uint32_t bucket, Clock::time_point now) const {
  const auto found = entries_.find(bucket);
  if (found == entries_.end() || !found->second.reported) return true;
  return now - *found->second.reported >= kInterval;
}

bool BucketStats::ShouldMeasure(std::uint32_t bucket, Clock::time_point now) const {
  if (!IsDue(bucket, now)) return false;
  const auto found = entries_.find(bucket);
  return found == entries_.end() || !found->second.measured ||
         now - *found->second.measured >= kNormsInterval;
}

void BucketStats::Begin(std::uint32_t bucket, std::uint32_t parameters,
                        std::uint64_t gradient_bytes, Clock::time_point now) {
  const bool due = IsDue(bucket, now);
  Entry& entry = entries_[bucket];
  if (entry.report.parameters != parameters) {  // another bucket begins with it
    entry.report = {};
    entry.measured.reset();
  }
  entry.report.bucket = bucket;
  entry.report.parameters = parameters;
  entry.report.gradient_bytes += gradient_bytes;
  entry.open = true;
  entry.in_step = true;
  // Fixed at the start, when the hook learns whether to measure the norms for the report.
  entry.due = due;
  entry.began = now;
  entry.busy = {};
}

BucketStats::Entry* BucketStats::Open(std::uint32_t bucket) {
  const auto found = entries_.find(bucket);
  return found == entries_.end() || !found->second.open ? nullptr : &found->second;
}

void BucketStats::LiesInPlace(std::uint32_t bucket, bool in_place) {
  if (Entry* entry = Open(bucket)) entry->in_place = in_place;
}

bool BucketStats::in_place(std::uint32_t bucket) const {
  const auto found = entries_.find(bucket);
  return found != entries_.end() && found->second.in_place;
}

void BucketStats::Compressed(std::uint32_t bucket, Seconds spent, std::uint64_t bytes_sent) {
  Entry* entry = Open(bucket);
  if (entry == nullptr) return;
  entry->report.compress_seconds += spent.count();
  entry->report.sent_bytes += bytes_sent;
  entry->busy += spent;
}

void BucketStats::Decompressed(std::uint32_t bucket, Seconds spent, std::uint64_t bytes_received) {
  Entry* entry = Open(bucket);
  if (entry == nullptr) return;
  entry->report.decompress_seconds += spent.count();
  entry->report.received_bytes += bytes_received;
  entry->busy += spent;
}

void BucketStats::Reduced(std::uint32_t bucket, Seconds spent) {
  Entry* entry = Open(bucket);
  if (entry == nullptr) return;
  entry->report.reduce_seconds += spent.count();
  entry->busy += spent;
}

// What remains of the elapsed time counts as time on the wire. It includes waiting for other
// members, and is clamped at 0, because the sums of several chunks may overlap.
std::optional<wire::BucketReport> BucketStats::Done(std::uint32_t bucket,
                                                    const std::optional<BucketNorms>& norms,
                                                    Clock::time_point now) {
  Entry* entry = Open(bucket);
  if (entry == nullptr) return std::nullopt;
  entry->open = false;
  ++entry->report.reductions;
  entry->report.wire_seconds +=
      std::max(Seconds(now - entry->began) - entry->busy, Seconds{}).count();
  // Norms that are not finite belong to a step that will be skipped, and a frame must not carry
  // them.
  if (norms && std::isfinite(norms->gradient) && std::isfinite(norms->residual)) {
    entry->report.gradient_norm = norms->gradient;
    entry->report.residual_norm = norms->residual;
    entry->measured = now;
  }
  if (!entry->due) return std::nullopt;
  entry->reported = now;
  return entry->report;
}

// Buckets that the last step did not have are dropped: DistributedDataParallel rebuilds its buckets
// after its first step.
void BucketStats::EndStep() {
  std::erase_if(entries_, [](const auto& item) { return !item.second.in_step; });
  for (auto& [bucket, entry] : entries_) entry.in_step = false;
}

std::vector<wire::BucketReport> BucketStats::All() const {
  std::vector<wire::BucketReport> reports;
  reports.reserve(entries_.size());
  for (const auto& [bucket, entry] : entries_) reports.push_back(entry.report);
  return reports;
}

}  // namespace gradwire::client
