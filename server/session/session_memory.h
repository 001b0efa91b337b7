// The shared memory of one session: members' segments, for contributions and for results that
// overwrite them, and one segment of the daemon for other results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/sync.h"
#include "proto/wire/memory_offer.h"
#include "proto/wire/memory_segment.h"
#include "server/session/quota.h"

namespace gradwire::server {

// The system resources that all sessions may use for shared memory. Each segment of a member costs
// this process one mapping, and the results of each session also cost one descriptor.
struct MemoryQuotas {
  explicit MemoryQuotas(std::size_t max_segments = std::size_t{1} << 15,
                        std::size_t max_sessions = 256);

  const std::shared_ptr<Quota> segments;  // of a session at most half, of a member a sixteenth
  const std::shared_ptr<Quota> sessions;  // that share memory
};

// The segments that one member has offered for one stream. Thread-safe.
class MemberMemory {
 public:
  // Returns the bytes of a contribution of `rank` from `stream`: a ResultPlace if the result may be
  // written over them. InvalidArgument names the range that lies outside the segment.
  absl::StatusOr<wire::PayloadRef> Resolve(const wire::SharedBytes& shared, int rank,
                                           std::uint64_t stream) const;

  // Adds a segment and returns its number. `max_bytes` limits all segments but the first, together.
  absl::StatusOr<std::uint32_t> Add(std::shared_ptr<wire::MemorySegment> segment,
                                    std::size_t max_bytes);
  // The largest size of a further segment, or the reason why there may be none.
  absl::StatusOr<std::size_t> BytesLeft(std::size_t max_bytes) const;

 private:
  absl::Status CheckCount() const GRADWIRE_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::vector<std::shared_ptr<wire::MemorySegment>> segments_ GRADWIRE_GUARDED_BY(mutex_);
  std::size_t further_bytes_ GRADWIRE_GUARDED_BY(mutex_) = 0;
};

// A contribution in a member's memory that the result may overwrite.
class ResultPlace final : public wire::Payload {
 public:
  ResultPlace(std::shared_ptr<wire::MemorySegment> segment, const wire::ResultRoom& room)
      : segment_(std::move(segment)), room_(room), piece_(room.bytes) {}

  const wire::ResultRoom* result_room() const override { return &room_; }
  std::span<const std::span<const std::byte>> pieces() const override { return {&piece_, 1}; }
  std::size_t bytes() const override { return piece_.size(); }
  bool fixed() const override { return false; }
  wire::PayloadRef Cut(std::size_t offset, std::size_t bytes) const override {
    wire::ResultRoom cut = room_;
    cut.bytes = cut.bytes.subspan(offset, bytes);
    return std::make_shared<const ResultPlace>(segment_, cut);
  }

 private:
  const std::shared_ptr<wire::MemorySegment> segment_;
  const wire::ResultRoom room_;
  const std::span<const std::byte> piece_;
};

// Memory for a result in the segment that all members on this host can read.
class ResultBlock;

// Thread-safe. Its locks are leaf locks. It never maps or unmaps memory under the lock that streams
// wait for.
class SessionMemory : public std::enable_shared_from_this<SessionMemory> {
 public:
  using Clock = absl::FunctionRef<absl::Time()>;
  struct Options {
    std::size_t block_bytes = 0;     // the largest result
    std::size_t blocks = 0;          // that are there at a time
    std::size_t staging_bytes = 0;   // of a member's first segment, at most
    std::size_t gradient_bytes = 0;  // of its other segments together, at most
    absl::Duration claim_timeout;
    std::shared_ptr<MemoryQuotas> quotas = std::make_shared<MemoryQuotas>();
  };

  explicit SessionMemory(const Options& options);

  std::size_t staging_bytes() const { return options_.staging_bytes; }

  // Maps a member's segment. Gigabytes take seconds, but no other call waits for it; `go_on` is
  // polled meanwhile. For a new attachment the reply has the descriptor of the results. A member
  // has a few attachments at most; a new one replaces the oldest that no stream has claimed.
  // `clock` is read after mapping, because the time to claim the attachment starts then.
  absl::StatusOr<wire::MemoryReply> Attach(int rank, wire::MemoryRequest request, Clock clock,
                                           wire::GoOn go_on = wire::AlwaysGoOn);

  // An attachment belongs to one stream. Tick drops attachments that no stream claims in time.
  absl::StatusOr<std::shared_ptr<MemberMemory>> Claim(int rank, std::uint64_t attachment);
  void Tick(absl::Time now);

  // Returns a block for a result of up to block_bytes; null if no member shares memory or no block
  // is free. The block must live as long as a member may read it.
  std::shared_ptr<ResultBlock> Take(std::size_t bytes);

 private:
  friend class ResultBlock;
  struct Attachment {
    int rank = 0;
    std::weak_ptr<MemberMemory> memory;       // alive while its stream is
    std::shared_ptr<MemberMemory> unclaimed;  // until it is claimed
    absl::Time since;
  };

  using Segment = std::shared_ptr<wire::MemorySegment>;

  absl::StatusOr<wire::MemoryReply> Begin(int rank, wire::MemoryRequest request, Clock clock,
                                          wire::GoOn go_on);
  absl::StatusOr<wire::MemoryReply> Add(int rank, wire::MemoryRequest request, wire::GoOn go_on);
  // Counted for the member as long as it is mapped.
  absl::StatusOr<Segment> Map(int rank, UniqueFd fd, std::size_t max_bytes, Quota::Need need,
                              wire::GoOn go_on);
  absl::StatusOr<std::uint64_t> Insert(int rank, const std::shared_ptr<MemberMemory>& memory,
                                       absl::Time now);
  // The unclaimed attachment that makes room for one more of the member; null: there is room.
  absl::StatusOr<std::shared_ptr<MemberMemory>> MakeRoom(int rank) GRADWIRE_REQUIRES(mutex_);
  std::shared_ptr<MemberMemory> Find(int rank, std::uint64_t attachment);
  // The segment of results, created when it is needed first.
  absl::StatusOr<Segment> Results();
  void GiveBack(std::size_t block);

  const Options options_;
  const std::shared_ptr<Quota> segments_;  // of this session
  Mutex creating_;                         // the results; taken before the other one
  Mutex mutex_;
  std::map<int, std::shared_ptr<Quota>> of_members_ GRADWIRE_GUARDED_BY(mutex_);  // by rank
  std::shared_ptr<wire::MemorySegment> results_ GRADWIRE_GUARDED_BY(mutex_);      // null: not yet
  std::vector<std::size_t> free_ GRADWIRE_GUARDED_BY(mutex_);  // the one used last is taken first
  std::map<std::uint64_t, Attachment> attachments_ GRADWIRE_GUARDED_BY(mutex_);
};

class ResultBlock final : public wire::Payload {
 public:
  ResultBlock(std::shared_ptr<SessionMemory> owner, std::shared_ptr<wire::MemorySegment> segment,
              std::size_t block, std::size_t offset, std::size_t bytes);
  ~ResultBlock() override;

  std::span<std::byte> content() { return segment_->writable().subspan(offset_, piece_.size()); }
  std::uint64_t offset() const { return offset_; }

  std::span<const std::span<const std::byte>> pieces() const override { return {&piece_, 1}; }
  std::size_t bytes() const override { return piece_.size(); }

 private:
  const std::shared_ptr<SessionMemory> owner_;
  const std::shared_ptr<wire::MemorySegment> segment_;
  const std::size_t block_;
  const std::size_t offset_;
  const std::span<const std::byte> piece_;
};

}  // namespace gradwire::server
