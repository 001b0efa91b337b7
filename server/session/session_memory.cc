#include "server/session/session_memory.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random_bytes.h"
#include "proto/wire/memory_layout.h"

namespace gradwire::server {
namespace {

constexpr std::size_t kMaxSegments = 1024;  // of an attachment
// Of a member: a resumed stream has a new attachment while the old one, and those of failed
// attempts, still end.
constexpr std::size_t kMaxAttachments = 4;
// Shares of the daemon's segments. A member may have twice what an attachment allows, because an
// old attachment ends only after the new one has begun.
constexpr std::size_t kSessionPart = 2;
constexpr std::size_t kMemberPart = 16;
constexpr std::size_t kMaxSegmentsOfMember = 2 * kMaxSegments;
const std::string kSegments = "segments of shared memory mapped";

// Returns the share to the quota only after the segment is unmapped.
std::shared_ptr<wire::MemorySegment> Together(std::shared_ptr<wire::MemorySegment> segment,
                                              Quota::Share share) {
  struct Counted {
    Quota::Share share;
    std::shared_ptr<wire::MemorySegment> segment;  // goes first
  };
  wire::MemorySegment* const mapped = segment.get();
  auto counted =
      std::make_shared<Counted>(Counted{.share = std::move(share), .segment = std::move(segment)});
  return {std::move(counted), mapped};
}

}  // namespace

MemoryQuotas::MemoryQuotas(std::size_t max_segments, std::size_t max_sessions)
    : segments(std::make_shared<Quota>("the daemon", kSegments, max_segments)),
      sessions(std::make_shared<Quota>("the daemon", "sessions that share memory", max_sessions)) {}

// Every offset comes from the stream, so it is checked against the mapping. The payload holds a
// reference to the segment, which therefore stays mapped while the core keeps the contribution.
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

absl::Status MemberMemory::CheckCount() const {
  if (segments_.size() < kMaxSegments) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the attachment has ", segments_.size(),
                   " segments of shared memory; allowed: ", kMaxSegments));
}

// Checked before a segment is mapped, because mapping it may take seconds. Add checks again:
// another offer may have been faster.
absl::StatusOr<std::size_t> MemberMemory::BytesLeft(std::size_t max_bytes) const {
  MutexLock lock(mutex_);
  if (absl::Status may = CheckCount(); !may.ok()) return may;
  if (further_bytes_ >= max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the attachment's segments after the first have ", further_bytes_,
                     " bytes; allowed: ", max_bytes));
  }
  return max_bytes - further_bytes_;
}

absl::StatusOr<std::uint32_t> MemberMemory::Add(std::shared_ptr<wire::MemorySegment> segment,
                                                std::size_t max_bytes) {
  MutexLock lock(mutex_);
  if (absl::Status may = CheckCount(); !may.ok()) return may;
  if (!segments_.empty()) {
    if (segment->bytes() > max_bytes - further_bytes_) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the attachment's segments after the first would have ",
                       further_bytes_ + segment->bytes(), " bytes; allowed: ", max_bytes));
    }
    further_bytes_ += segment->bytes();
  }
  segments_.push_back(std::move(segment));
  return static_cast<std::uint32_t>(segments_.size() - 1);
}

SessionMemory::SessionMemory(const Options& options)
    : options_(options),
      segments_(std::make_shared<Quota>("the session", kSegments,
                                        options.quotas->segments->limit() / kSessionPart,
                                        options.quotas->segments)) {}

// `creating_` lets one thread create the segment, whose pages the kernel has to allocate. `mutex_`,
// which sums need, is not held meanwhile.
absl::StatusOr<SessionMemory::Segment> SessionMemory::Results() {
  MutexLock creating(creating_);
  {
    MutexLock lock(mutex_);
    if (results_ != nullptr) return results_;
  }
  auto share = Quota::Take(options_.quotas->sessions, Quota::Need::kFirst);
  if (!share.ok()) return share.status();
  const std::size_t stride = wire::BlockStride(options_.block_bytes);
  auto created = wire::MemorySegment::Create("gradwire-results", stride * options_.blocks,
                                             wire::MemorySegment::Others::kMayRead);
  if (!created.ok()) return created.status();
  MutexLock lock(mutex_);
  results_ = Together(*std::move(created), *std::move(share));
  for (std::size_t i = options_.blocks; i > 0; --i) free_.push_back(i - 1);
  return results_;
}

absl::StatusOr<wire::MemoryReply> SessionMemory::Attach(int rank, wire::MemoryRequest request,
                                                        Clock clock, wire::GoOn go_on) {
  if (request.attachment != 0) return Add(rank, std::move(request), go_on);
  return Begin(rank, std::move(request), clock, go_on);
}

absl::StatusOr<wire::MemoryReply> SessionMemory::Begin(int rank, wire::MemoryRequest request,
                                                       Clock clock, wire::GoOn go_on) {
  auto segment =
      Map(rank, std::move(request.segment), options_.staging_bytes, Quota::Need::kFirst, go_on);
  if (!segment.ok()) return segment.status();
  const absl::StatusOr<Segment> results = Results();
  if (!results.ok()) return results.status();
  // The reply owns and closes its descriptor; the segment keeps its own for later members.
  UniqueFd descriptor(fcntl((*results)->fd(), F_DUPFD_CLOEXEC, 0));
  if (!descriptor.valid()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("duplicating the descriptor of the results failed: ", std::strerror(errno)));
  }
  auto memory = std::make_shared<MemberMemory>();
  const auto number = memory->Add(*std::move(segment), 0);
  if (!number.ok()) return number.status();
  const absl::StatusOr<std::uint64_t> id = Insert(rank, memory, clock());
  if (!id.ok()) return id.status();
  return wire::MemoryReply{.attachment = *id, .segment = *number, .results = std::move(descriptor)};
}

absl::StatusOr<wire::MemoryReply> SessionMemory::Add(int rank, wire::MemoryRequest request,
                                                     wire::GoOn go_on) {
  const std::shared_ptr<MemberMemory> memory = Find(rank, request.attachment);
  if (memory == nullptr) return absl::NotFoundError("this member has no such attachment");
  const auto left = memory->BytesLeft(options_.gradient_bytes);
  if (!left.ok()) return left.status();
  auto segment = Map(rank, std::move(request.segment), *left, Quota::Need::kFurther, go_on);
  if (!segment.ok()) return segment.status();
  const auto number = memory->Add(*std::move(segment), options_.gradient_bytes);
  if (!number.ok()) return number.status();
  return wire::MemoryReply{.attachment = request.attachment, .segment = *number};
}

absl::StatusOr<SessionMemory::Segment> SessionMemory::Map(int rank, UniqueFd fd,
                                                          std::size_t max_bytes, Quota::Need need,
                                                          wire::GoOn go_on) {
  std::shared_ptr<Quota> quota;
  {
    MutexLock lock(mutex_);
    std::shared_ptr<Quota>& of_member = of_members_[rank];
    if (of_member == nullptr) {
      const std::size_t part = options_.quotas->segments->limit() / kMemberPart;
      of_member = std::make_shared<Quota>("the member", kSegments,
                                          std::clamp<std::size_t>(part, 1, kMaxSegmentsOfMember),
                                          segments_);
    }
    quota = of_member;
  }
  // Counted before the mapping, so that concurrent offers cannot exceed vm.max_map_count together.
  auto share = Quota::Take(std::move(quota), need);
  if (!share.ok()) return share.status();
  auto segment = wire::MemorySegment::Map(std::move(fd), max_bytes,
                                          wire::MemorySegment::Access::kWriteToo, go_on);
  if (!segment.ok()) return segment.status();
  return Together(*std::move(segment), *std::move(share));
}

absl::StatusOr<std::uint64_t> SessionMemory::Insert(int rank,
                                                    const std::shared_ptr<MemberMemory>& memory,
                                                    absl::Time now) {
  std::shared_ptr<MemberMemory> dropped;  // unmapped after the lock is released
  MutexLock lock(mutex_);
  auto room = MakeRoom(rank);
  if (!room.ok()) return room.status();
  dropped = *std::move(room);
  std::uint64_t id = 0;
  // 0 means no attachment, in a Hello and in a MemoryRequest. The number is random, so that no
  // member can guess another's.
  while (id == 0 || attachments_.contains(id)) {
    const absl::StatusOr<std::uint64_t> drawn = RandomNumber();
    if (!drawn.ok()) return drawn.status();
    id = *drawn;
  }
  attachments_[id] = {.rank = rank, .memory = memory, .unclaimed = memory, .since = now};
  return id;
}

// Replaces the oldest attachment that no stream has claimed: a member that fails between offering
// and its Hello leaves one behind at each attempt.
absl::StatusOr<std::shared_ptr<MemberMemory>> SessionMemory::MakeRoom(int rank) {
  std::erase_if(attachments_, [](const auto& one) { return one.second.memory.expired(); });
  std::size_t count = 0;
  auto oldest = attachments_.end();
  for (auto it = attachments_.begin(); it != attachments_.end(); ++it) {
    if (it->second.rank != rank) continue;
    ++count;
    if (it->second.unclaimed == nullptr) continue;
    if (oldest == attachments_.end() || it->second.since < oldest->second.since) oldest = it;
  }
  if (count < kMaxAttachments) return nullptr;
  if (oldest == attachments_.end()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the member has ", count,
        " attachments of shared memory whose streams have not ended; allowed: ", kMaxAttachments));
  }
  std::shared_ptr<MemberMemory> dropped = std::move(oldest->second.unclaimed);
  attachments_.erase(oldest);
  return dropped;
}

std::shared_ptr<MemberMemory> SessionMemory::Find(int rank, std::uint64_t attachment) {
  MutexLock lock(mutex_);
  const auto found = attachments_.find(attachment);
  if (found == attachments_.end() || found->second.rank != rank) return nullptr;
  return found->second.memory.lock();
}

// Moves the reference to the stream: from now on the mapping lives as long as the stream.
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

// An attachment that no stream has claimed within claim_timeout is unmapped.
void SessionMemory::Tick(absl::Time now) {
  std::vector<std::shared_ptr<MemberMemory>> dropped;  // unmapped without the lock
  MutexLock lock(mutex_);
  std::erase_if(attachments_, [&](const auto& one) {
    const Attachment& attachment = one.second;
    if (attachment.memory.expired()) return true;
    if (attachment.unclaimed == nullptr || now - attachment.since <= options_.claim_timeout) {
      return false;
    }
    dropped.push_back(attachment.unclaimed);
    return true;
  });
}

// Null if no block is free; the result then lies on the heap and travels in the frame.
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
