// A member's part after the loss of a shard: it leaves all of them, and reports to shard 0's next
// daemon what it holds at all.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "proto/wire/member_report.h"

namespace gradwire::client {

// A shard's daemon is lost, and nothing comes from it any more.
struct ShardLoss {
  // What this shard's core holds; none: the session does not outlive the daemon.
  std::optional<wire::MemberReport> report{};
  // The number of the request to gather that this answers, of a shard that had no stream; none: its
  // stream has ended.
  std::optional<std::uint64_t> asked{};
};

// Not thread-safe.
class ShardLosses {
 public:
  explicit ShardLosses(std::uint32_t shards) : lost_(shards) {}

  struct Next {
    // These are to ask their daemons to gather (Member::AskToGather), with this number.
    std::vector<std::uint32_t> ask{};
    std::uint64_t number = 0;
    // All are lost: what shard 0's next daemon is told. The next loss is another one.
    std::optional<wire::MemberReport> report{};
    // Or a shard without which the session cannot go on.
    std::optional<std::uint32_t> ends_with{};
  };
  // Of the first loss all others hear. One that was told of before has no effect.
  Next OnLost(std::uint32_t shard, const ShardLoss& loss);

  // What shards tell each other may be overtaken: whether a request with this number is still to be
  // answered by the shard, and whether it has told of a loss since all were lost last.
  bool IsAsked(std::uint32_t shard, std::uint64_t number) const {
    return number == number_ && !HasTold(shard);
  }
  bool HasTold(std::uint32_t shard) const { return lost_[shard].has_value(); }

 private:
  std::vector<std::optional<ShardLoss>> lost_;  // by shard
  std::uint64_t number_ = 0;                    // how often all were lost
};

}  // namespace gradwire::client
