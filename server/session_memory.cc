#include "server/session_memory.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/memory_layout.h"
#include "proto/wire/random_bytes.h"

namespace gradwire::server {
namespace {

constexpr std::size_t kMaxSegments = 1024;
// Attachments of one session that no stream has claimed, and those whose stream is gone.
constexpr std::size_t kMaxAttachments = 4096;

}  // namespace

absl::StatusOr<wire::PayloadRef> MemberMemory::Resolve(const wire::SharedBytes& shared, int rank,
                                                       std::uint64_t stream) const {
  std::shared_ptr<wire::MemorySegment> segment;
  {
    MutexLock lock(mutex_);
    if (shared.segment >= segments_.size()) {
      return absl::InvalidArgumentError(absl::StrCat("shared.segment is ", shared.segment,
                                                     "; the member gave ", segments_.size(),
                                                     " segments"));
    }
    segment = segments_[shared.segment];
  }
  const std::span<std::byte> writable = segment->writable();
  if (!shared.takes_result || writable.empty()) {
    return wire::PartOf(segment, shared.offset, shared.bytes, "shared");
  }
  if (absl::Status inside = wire::CheckPart(*segment, shared.offset, shared.bytes, "shared");
      !inside.ok()) {
    return inside;
  }
  const std::span<std::byte> room = writable.subspan(static_cast<std::size_t>(shared.offset),
                                                     static_cast<std::size_t>(shared.bytes));
  return std::make_shared<const ResultPlace>(
      std::move(segment), wire::ResultRoom{.bytes = room, .rank = rank, .stream = stream});
}

absl::StatusOr<std::uint32_t> MemberMemory::Add(std::shared_ptr<wire::MemorySegment> segment,
                                                std::size_t max_bytes) {
  MutexLock lock(mutex_);
  if (segments_.size() >= kMaxSegments) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the member gave ", kMaxSegments, " segments, which is the limit"));
  }
  if (!segments_.empty()) {
    if (segment->bytes() > max_bytes - further_bytes_) {
      return absl::ResourceExhaustedError(absl::StrCat("the member's segments would have ",
                                                       further_bytes_ + segment->bytes(),
                                                       " bytes; allowed: ", max_bytes));
    }
    further_bytes_ += segment->bytes();
  }
  segments_.push_back(std::move(segment));
  return static_cast<std::uint32_t>(segments_.size() - 1);
}

absl::Status SessionMemory::CreateResults() {
  if (results_ != nullptr) return absl::OkStatus();
  const std::size_t stride = wire::BlockStride(options_.block_bytes);
  auto created = wire::MemorySegment::Create("gradwire-results", stride * options_.blocks,
                                             wire::MemorySegment::Others::kMayRead);
  if (!created.ok()) return created.status();
  results_ = *std::move(created);
  for (std::size_t i = options_.blocks; i > 0; --i) free_.push_back(i - 1);
  return absl::OkStatus();
}

absl::StatusOr<wire::MemoryReply> SessionMemory::Attach(int rank, wire::MemoryRequest request,
                                                        absl::Time now) {
  const bool further = request.attachment != 0;
  const std::size_t most = further ? options_.gradient_bytes : options_.staging_bytes;
  auto segment = wire::MemorySegment::Map(std::move(request.segment), most,
                                          wire::MemorySegment::Access::kWriteToo);
  if (!segment.ok()) return segment.status();
  MutexLock lock(mutex_);
  if (further) {
    const auto found = attachments_.find(request.attachment);
    const auto memory = found == attachments_.end() ? nullptr : found->second.memory.lock();
    if (memory == nullptr || found->second.rank != rank) {
      return absl::NotFoundError("this member has no such attachment");
    }
    const auto number = memory->Add(*std::move(segment), options_.gradient_bytes);
    if (!number.ok()) return number.status();
    return wire::MemoryReply{.attachment = request.attachment, .segment = *number};
  }
  std::erase_if(attachments_, [](const auto& one) { return one.second.memory.expired(); });
  if (attachments_.size() >= kMaxAttachments) {
    return absl::ResourceExhaustedError("too many attachments of shared memory");
  }
  if (absl::Status status = CreateResults(); !status.ok()) return status;
  UniqueFd results(fcntl(results_->fd(), F_DUPFD_CLOEXEC, 0));
  if (!results.valid()) {
    return absl::ResourceExhaustedError(absl::StrCat("dup: ", std::strerror(errno)));
  }
  std::uint64_t id = 0;
  while (id == 0 || attachments_.contains(id)) {
    const absl::StatusOr<std::uint64_t> drawn = wire::RandomNumber();
    if (!drawn.ok()) return drawn.status();
    id = *drawn;
  }
  auto memory = std::make_shared<MemberMemory>();
  const auto number = memory->Add(*std::move(segment), 0);
  if (!number.ok()) return number.status();
  attachments_[id] = {.rank = rank, .memory = memory, .unclaimed = memory, .since = now};
  return wire::MemoryReply{.attachment = id, .segment = *number, .results = std::move(results)};
}

absl::StatusOr<std::shared_ptr<MemberMemory>> SessionMemory::Claim(int rank,
                                                                   std::uint64_t attachment) {
  MutexLock lock(mutex_);
  const auto found = attachments_.find(attachment);
  if (found == attachments_.end() || found->second.rank != rank ||
      found->second.unclaimed == nullptr) {
    return absl::NotFoundError("memory: no attachment of this member waits for a stream");
  }
  return std::exchange(found->second.unclaimed, nullptr);
}

void SessionMemory::Tick(absl::Time now) {
  MutexLock lock(mutex_);
  std::erase_if(attachments_, [&](const auto& one) {
    const Attachment& attachment = one.second;
    return attachment.memory.expired() ||
           (attachment.unclaimed != nullptr && now - attachment.since > options_.claim_timeout);
  });
}

std::shared_ptr<ResultBlock> SessionMemory::Take(std::size_t bytes) {
  std::shared_ptr<wire::MemorySegment> segment;
  std::size_t block = 0;
  {
    MutexLock lock(mutex_);
    if (free_.empty() || bytes > options_.block_bytes) return nullptr;
    segment = results_;
    block = free_.back();
    free_.pop_back();
  }
  return std::make_shared<ResultBlock>(
      shared_from_this(), std::move(segment), block,
      block * wire::BlockStride(options_.block_bytes) + wire::kResultSkew, bytes);
}

void SessionMemory::GiveBack(std::size_t block) {
  MutexLock lock(mutex_);
  free_.push_back(block);
}

ResultBlock::ResultBlock(std::shared_ptr<SessionMemory> owner,
                         std::shared_ptr<wire::MemorySegment> segment, std::size_t block,
                         std::size_t offset, std::size_t bytes)
    : owner_(std::move(owner)),
      segment_(std::move(segment)),
      block_(block),
      offset_(offset),
      piece_(segment_->content().subspan(offset, bytes)) {}

ResultBlock::~ResultBlock() { owner_->GiveBack(block_); }

}  // namespace gradwire::server
