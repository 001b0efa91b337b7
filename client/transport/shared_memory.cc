#include "client/transport/shared_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "client/transport/local_socket.h"
#include "proto/wire/memory_layout.h"
#include "proto/wire/memory_offer.h"

namespace gradwire::client {
namespace {

constexpr std::size_t kMaxResultBytes = std::size_t{1} << 34;
// For buckets' segments, given in the middle of a step. A daemon on this host answers at once, but
// maps about a gigabyte in a second. No heartbeat leaves this thread meanwhile, so that the whole
// stays well below the time after which a silent member counts as lost.
constexpr std::chrono::seconds kGiveTimeout(1);
constexpr std::chrono::seconds kMaxGiveTimeout(5);
constexpr std::size_t kBytesPerSecond = std::size_t{1} << 30;

Clock::duration GiveTimeout(std::size_t bytes) {
  const std::chrono::duration<double> mapping(static_cast<double>(bytes) / kBytesPerSecond);
  const auto timeout = kGiveTimeout + std::chrono::duration_cast<Clock::duration>(mapping);
  return std::min<Clock::duration>(timeout, kMaxGiveTimeout);
}

// Borrows the segment's descriptor; the caller keeps the segment.
absl::StatusOr<wire::MemoryReply> Ask(const SharedMemory::Offer& offer, std::uint64_t attachment,
                                      const wire::MemorySegment& segment,
                                      Clock::time_point deadline) {
  absl::StatusOr<UniqueFd> connection = ConnectToUnixSocket(offer.address);
  if (!connection.ok()) return connection.status();
  wire::MemoryRequest request{.token = offer.token,
                              .start_id = offer.start_id,
                              .attachment = attachment,
                              .segment = UniqueFd(segment.fd())};
  const absl::Status sent = wire::SendMemoryRequest(connection->get(), request);
  request.segment.Release();
  if (!sent.ok()) return sent;
  absl::StatusOr<wire::MemoryReply> reply = wire::ReceiveMemoryReply(connection->get(), deadline);
  if (!reply.ok()) return reply;
  if (!reply->status.ok()) return reply->status;
  return reply;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Attach(const Offer& offer,
                                                                   Clock::time_point deadline) {
  std::unique_ptr<SharedMemory> memory(new SharedMemory(offer));
  memory->stride_ = wire::BlockStride(offer.block_bytes);
  const std::size_t blocks = offer.staging_bytes / memory->stride_;
  if (blocks == 0) return absl::FailedPreconditionError("the daemon offers no shared memory");
  auto staging = wire::MemorySegment::Create("gradwire-contributions", blocks * memory->stride_,
                                             wire::MemorySegment::Others::kMayWrite);
  if (!staging.ok()) return staging.status();
  memory->staging_ = *std::move(staging);
  absl::StatusOr<wire::MemoryReply> reply = Ask(offer, 0, *memory->staging_, deadline);
  if (!reply.ok()) return reply.status();
  if (!reply->results.valid() || reply->attachment == 0) {
    return absl::InternalError("the daemon answered without a segment of its own");
  }
  // The segment's size comes from another process, so it is bounded before it is mapped.
  auto results = wire::MemorySegment::Map(std::move(reply->results), kMaxResultBytes);
  if (!results.ok()) return results.status();
  memory->results_ = *std::move(results);
  memory->attachment_ = reply->attachment;
  for (std::size_t i = blocks; i > 0; --i) memory->free_.push_back(i - 1);
  return memory;
}

// A chunk that is encoded again replaces its first encoding.
std::optional<SharedMemory::Block> SharedMemory::Take(const Key& key, std::size_t bytes) {
  Release(key);
  if (free_.empty() || bytes > offer_.block_bytes) return std::nullopt;
  const std::size_t block = free_.back();
  free_.pop_back();
  // The skew keeps contribution and result at different places in their pages (memory_layout.h).
  const std::size_t offset = block * stride_ + wire::kContributionSkew;
  const wire::SharedBytes where = {
      .segment = 0, .offset = offset, .bytes = bytes, .takes_result = true};
  contributions_[key] = {.block = block, .where = where, .wire_bytes = bytes};
  return Block{.content = staging_->writable().subspan(offset, bytes), .where = where};
}

void SharedMemory::Release(const Key& key) {
  const auto found = contributions_.find(key);
  if (found == contributions_.end()) return;
  if (found->second.block) free_.push_back(*found->second.block);
  contributions_.erase(found);
}

void SharedMemory::GiveNew(const GradientMemory& gradients) {
  const std::uint64_t version = gradients.version();
  // Called for each chunk, so the usual case costs one comparison.
  if (version == given_version_) return;
  given_version_ = version;
  auto segments = gradients.segments();
  // Memory that the user has given back. Unmapping it here leaves the daemon's mapping, which ends
  // with the stream.
  std::erase_if(given_, [&](const Given& given) {
    return std::find(segments.begin(), segments.end(), given.segment) == segments.end();
  });
  std::erase_if(segments, [&](const auto& segment) {
    return std::any_of(given_.begin(), given_.end(),
                       [&](const Given& given) { return given.segment == segment; });
  });
  std::size_t bytes = 0;
  for (const auto& segment : segments) bytes += segment->bytes();
  const Clock::time_point deadline = Clock::now() + GiveTimeout(bytes);
  for (auto& segment : segments) {
    std::optional<std::uint32_t> number;
    // If the daemon has not answered in time, the remaining segments are not offered.
    if (Clock::now() < deadline) {
      const auto reply = Ask(offer_, attachment_, *segment, deadline);
      if (reply.ok()) number = reply->segment;
    }
    // Refused segments are listed too (without a number), so that they are not offered for each
    // bucket.
    given_.push_back({.segment = std::move(segment), .number = number});
  }
}

std::optional<std::pair<std::uint32_t, std::size_t>> SharedMemory::Locate(
    std::span<const std::byte> memory) const {
  for (const Given& given : given_) {
    if (!given.number) continue;
    if (const auto offset = given.segment->OffsetOf(memory)) return {{*given.number, *offset}};
  }
  return std::nullopt;
}

bool SharedMemory::Has(std::span<const std::byte> memory, const GradientMemory& gradients) {
  GiveNew(gradients);
  return Locate(memory).has_value();
}

std::optional<wire::SharedBytes> SharedMemory::Find(const Key& key,
                                                    std::span<const std::byte> memory,
                                                    const GradientMemory& gradients,
                                                    bool takes_result, std::size_t wire_bytes) {
  GiveNew(gradients);
  const auto place = Locate(memory);
  if (!place) return std::nullopt;
  Release(key);
  const wire::SharedBytes where = {.segment = place->first,
                                   .offset = place->second,
                                   .bytes = memory.size(),
                                   .raw = true,
                                   .takes_result = takes_result};
  contributions_[key] = {.where = where, .wire_bytes = wire_bytes};
  return where;
}

std::size_t SharedMemory::WireBytes(const Key& key) const {
  const auto found = contributions_.find(key);
  return found == contributions_.end() ? 0 : found->second.wire_bytes;
}

absl::StatusOr<wire::PayloadRef> SharedMemory::Result(const wire::Result& result) const {
  if (result.shared) {
    return wire::PartOf(results_, result.shared->offset, result.shared->bytes, "a result");
  }
  const auto found = contributions_.find(KeyOf(result.id, result.chunk));
  if (found == contributions_.end()) {
    return absl::InternalError("the result replaces a contribution that is not in shared memory");
  }
  const Contribution& contribution = found->second;
  // A raw contribution is the bucket itself, so its result needs no decoding.
  if (!contribution.block) return wire::PayloadRef();
  return wire::PartOf(staging_, contribution.where.offset, contribution.where.bytes, "a result");
}

}  // namespace gradwire::client
