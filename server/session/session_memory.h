// Shared memory of one session: the members' segments for contributions and for the results that
// take their place, and one of the daemon's for other results.
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

// What all sessions of a daemon may together take of the system for shared memory. Each of a
// member's segments is a mapping of this process, and each session's results are a descriptor, too.
struct MemoryQuotas {
  explicit MemoryQuotas(std::size_t max_segments = std::size_t{1} << 15,
                        std::size_t max_sessions = 256);

  const std::shared_ptr<Quota> segments;  // of a session at most half, of a member a sixteenth
  const std::shared_ptr<Quota> sessions;  // that share memory
};

// The segments that one member has given for one stream. Thread-safe.
class MemberMemory {
 public:
  // The bytes of a contribution of `rank` from `stream`: a ResultPlace where the result may be
  // written over them. InvalidArgument says what lies outside of what.
  absl::StatusOr<wire::PayloadRef> Resolve(const wire::SharedBytes& shared, int rank,
                                           std::uint64_t stream) const;

  // Adds a segment and returns its number. `max_bytes`: of all after the first together.
  absl::StatusOr<std::uint32_t> Add(std::shared_ptr<wire::MemorySegment> segment,
                                    std::size_t max_bytes);
  // What a further one may have, or why there may be none.
  absl::StatusOr<std::size_t> BytesLeft(std::size_t max_bytes) const;

 private:
  absl::Status CheckCount() const GRADWIRE_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::vector<std::shared_ptr<wire::MemorySegment>> segments_ GRADWIRE_GUARDED_BY(mutex_);
  std::size_t further_bytes_ GRADWIRE_GUARDED_BY(mutex_) = 0;
};

// A contribution in a member's memory that takes its result.
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

// Room for a result, in the segment that all members of this host can read.
class ResultBlock;

// Thread-safe. Its locks are taken last, and nothing is mapped or unmapped under the one that
// streams wait for.
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

  // Maps a member's segment, which takes seconds for gigabytes; nobody else waits for it. `go_on`
  // is asked meanwhile. With a new attachment, the reply has the descriptor of the results; a
  // member has a few at most, and its oldest that no stream has claimed makes room for a new one.
  // `clock` is read when the memory is mapped: only then the time to claim it begins.
  absl::StatusOr<wire::MemoryReply> Attach(int rank, wire::MemoryRequest request, Clock clock,
                                           wire::GoOn go_on = wire::AlwaysGoOn);

  // An attachment goes to one stream; what nobody claims in time is given up by Tick.
  absl::StatusOr<std::shared_ptr<MemberMemory>> Claim(int rank, std::uint64_t attachment);
  void Tick(absl::Time now);

  // A result of up to block_bytes; null: nobody shares memory, or no block is free. It must live
  // until no member may read it any more.
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
  absl::StatusOr<std::uint64_t> Insert(int rank, std::shared_ptr<MemberMemory> memory,
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
