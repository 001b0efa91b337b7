// What a member sends of its buckets: announcements, small buckets with them, chunks within
// windows.
#include <algorithm>
#include <utility>

#include "client/core/member.h"

namespace gradwire::client {

void Member::SendAhead(std::uint32_t id) {
  const auto found = buckets_.find(id);
  if (found != buckets_.end()) found->second.ahead = true;
}

wire::Announce Member::AnnounceOf(const Bucket& bucket) {
  eager_bytes_ -= std::exchange(eager_done_bytes_, 0);
  return {.step = step_,
          .generation = options_.generation,
          .parameters = bucket.parameters,
          .rounds = bucket.plans,
          .acknowledged = std::exchange(eager_done_, {})};
}

void Member::SendAnnounce(const Bucket& bucket, Effects& effects) {
  effects.push_back(SendEffect{AnnounceOf(bucket)});
}

// What is small saves the round trip of a grant.
bool Member::MayBeEager(const Bucket& bucket) const {
  if (eager_stopped_ || bucket.done || bucket.plans.size() != 1 ||
      bucket.layout.chunk_count() != 1) {
    return false;
  }
  return bucket.run->shared_bytes() == 0 &&
         bucket.layout.ChunkBytes(0) <= options_.eager_bytes - (eager_bytes_ - eager_done_bytes_);
}

void Member::SendEager(Bucket& bucket, Effects& effects) {
  wire::Announce header = AnnounceOf(bucket);
  bucket.granted = true;
  bucket.eager_bytes = bucket.layout.ChunkBytes(0);
  eager_bytes_ += bucket.eager_bytes;
  SendChunk(bucket.parameters.front(), bucket, effects);
  header.eager = true;
  header.attempt = bucket.attempt;
  std::get<SendChunkEffect>(effects.back()).announce = std::move(header);
}

bool Member::IsAnotherOpen(const Bucket& bucket) const {
  return std::any_of(buckets_.begin(), buckets_.end(), [&bucket](const auto& entry) {
    return !entry.second.done && &entry.second != &bucket;
  });
}

void Member::FinishEager(Bucket& bucket) {
  if (bucket.eager_bytes == 0) return;
  eager_done_bytes_ += std::exchange(bucket.eager_bytes, 0);
  eager_done_.push_back(bucket.parameters.front());
}

bool Member::MaySend(const Bucket& bucket) const {
  return bucket.granted && bucket.sent < bucket.layout.chunk_count() &&
         (bucket.ahead ||
          bucket.layout.InWindow(bucket.sent, bucket.received, options_.window_chunks));
}

void Member::SendChunk(std::uint32_t id, Bucket& bucket, Effects& effects) {
  effects.push_back(SendChunkEffect{.header = wire::Contribution{.id = IdOf(id, bucket),
                                                                 .generation = options_.generation,
                                                                 .rank = options_.rank,
                                                                 .chunk = bucket.sent,
                                                                 .received = bucket.received,
                                                                 .digest = std::nullopt},
                                    .run = bucket.run.get(),
                                    .range = bucket.layout.Range(bucket.sent),
                                    .bytes = bucket.layout.ChunkBytes(bucket.sent)});
  ++bucket.sent;
}

// Nobody encodes what goes ahead.
void Member::SendChunks(std::uint32_t id, Bucket& bucket, Effects& effects) {
  while (MaySend(bucket)) {
    if (!bucket.ahead && bucket.layout.ChunkBytes(bucket.sent) >= options_.large_chunk_bytes) {
      if (std::find(sending_.begin(), sending_.end(), id) == sending_.end()) sending_.push_back(id);
      return;
    }
    SendChunk(id, bucket, effects);
  }
}

void Member::SendNext(Effects& effects) {
  const std::uint32_t id = sending_.front();
  Bucket& bucket = buckets_.at(id);
  // Results that were repeated after a resume may have overtaken it.
  if (MaySend(bucket)) SendChunk(id, bucket, effects);
  SendChunks(id, bucket, effects);
  if (!MaySend(bucket)) sending_.pop_front();
}

}  // namespace gradwire::client
