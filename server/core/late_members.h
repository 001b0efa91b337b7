// Members that a step does not wait for, because they are late (`straggler_multiple`).
//
// A step has a deadline: a multiple of the running median of what steps took from their first
// announcement until all results were out. After it, the members that have not announced a bucket
// which others have announced are late, all of them together: the others reduce these buckets
// without them, and their gradients count in their next step. So that a gradient is never postponed
// for long, a member is late in a share of the steps only, and never in two that follow each other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace gradwire::server {

class Membership;
class Step;
struct SessionOptions;

// Not thread-safe; ranks are in [0, world_size). `options` outlives it.
class LateMembers {
 public:
  explicit LateMembers(const SessionOptions& options);

  // As its Hello says: the member can do without the gradients of a bucket.
  void SetMayMiss(int rank, bool may) { members_[Index(rank)].may_miss = may; }
  // Time never goes back. The step's events know no other time than the last that was observed.
  void Observe(absl::Time now) { now_ = std::max(now_, now); }
  absl::Time now() const { return now_; }

  // All results of a step are out, which took so long. It does not count if somebody was late: it
  // took as long as the deadline allows.
  void OnPrepared(absl::Duration took);
  // nullopt: too few steps were measured.
  std::optional<absl::Duration> Deadline() const;

  // Who is late in the open step from now on; empty: nobody. At most once for each step.
  std::vector<int> Find(const Step& step, const Membership& membership, absl::Time now);
  // Whether somebody is late in the open step.
  bool any() const { return any_; }
  bool IsLate(int rank) const { return members_[Index(rank)].late; }

  // The member knows that a bucket of the step goes on without it. True: it is the step's first.
  bool Count(int rank, std::int64_t step);
  std::uint64_t missed_steps(int rank) const { return members_[Index(rank)].missed_total; }
  void EndStep();

  // Whether nobody has been told yet that the setting has no effect in this session.
  bool Warns() { return !std::exchange(warned_, true); }

  // Of the members that are late now, for the log.
  std::string Sentence(const std::vector<int>& ranks, const Membership& membership,
                       std::int64_t step, absl::Duration open) const;

 private:
  struct Member {
    bool may_miss = false;
    bool late = false;
    std::uint64_t missed_total = 0;
    std::deque<std::int64_t> missed{};  // of the last steps, ascending
  };

  static std::size_t Index(int rank) { return static_cast<std::size_t>(rank); }
  bool MayBeLate(Member& member, std::int64_t step) const;

  const SessionOptions& options_;
  std::vector<Member> members_;       // by rank
  std::deque<absl::Duration> spans_;  // of the last steps
  absl::Time now_ = absl::InfinitePast();
  bool any_ = false;
  bool warned_ = false;
};

}  // namespace gradwire::server
