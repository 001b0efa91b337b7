// Who keeps a session waiting: the daemon sees when each member announces and sends each bucket,
// which no member sees of another.
//
// Time counts as waiting while some member has nothing left to do in the step and the step waits
// for others. It is put down to those others in equal parts, each part to one of two causes: a
// bucket that is announced late (the member computes), or bytes that come late (its hook and its
// link). A member has nothing left to do once it has announced all parameters or ended the step. In
// a session whose members reduce one bucket at a time, it also has nothing to do while its bucket
// is reduced.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/wire/frame.h"

namespace gradwire::server {

class Membership;
class Step;

// The waiting that somebody caused.
struct CausedWait {
  absl::Duration compute;
  absl::Duration link;

  absl::Duration sum() const { return compute + link; }
  CausedWait& operator+=(const CausedWait& other);
};

// One step as the daemon saw it.
struct StepRecord {
  struct Member {
    // When it began the step, announced its last bucket, and sent its last byte so far.
    // InfinitePast: not yet.
    absl::Time began = absl::InfinitePast();
    absl::Time announced = absl::InfinitePast();
    absl::Time sent = absl::InfinitePast();
    CausedWait caused{};
  };

  std::int64_t step = 0;
  absl::Time began = absl::InfinitePast();  // by the first member
  absl::Time ended = absl::InfinitePast();  // all results are there
  absl::Duration daemon;                    // waiting for the daemon's own work
  absl::Duration other_shards;              // waiting for them, with all results of this one out
  std::vector<Member> members{};            // by rank

  absl::Duration duration() const { return ended - began; }
  // From the first member that had announced all to the last one.
  absl::Duration straggler_gap() const;
};

// How many steps took how long.
class StepHistogram {
 public:
  // Upper bounds in seconds, from half a millisecond to a minute.
  static constexpr std::array<double, 16> kBounds = {
      0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60};

  void Add(absl::Duration time);
  // Of each bound, and of those above the last.
  const std::array<std::uint64_t, kBounds.size() + 1>& counts() const { return counts_; }
  double sum_seconds() const { return sum_; }

 private:
  std::array<std::uint64_t, kBounds.size() + 1> counts_{};
  double sum_ = 0;
};

// Not thread-safe.
class WaitLog {
 public:
  static constexpr std::size_t kRecent = 20;

  explicit WaitLog(int world_size);

  // Nothing has happened since the last call; call it before every event, and at ticks.
  void Observe(const Step& step, const Membership& membership, absl::Time now);
  // The end of a pause: for the open step, whatever members did before they did now.
  void OnUnpaused(absl::Time now);
  // A member's frame of the open step, after Observe.
  void OnFrame(int rank, const wire::Header& header, absl::Time now);

  // The last steps that ended, oldest first.
  const std::deque<StepRecord>& recent() const { return recent_; }
  // The open step.
  const StepRecord& current() const { return current_; }
  // Over all steps.
  const CausedWait& total(int rank) const { return totals_[static_cast<std::size_t>(rank)]; }
  absl::Duration daemon_total() const { return daemon_total_; }
  absl::Duration other_shards_total() const { return other_shards_total_; }
  const StepHistogram& durations() const { return durations_; }
  const StepHistogram& straggler_gaps() const { return straggler_gaps_; }

  static std::size_t BytesFor(std::size_t members);

 private:
  void End(absl::Time ended);
  void PutDown(const Step& step, const Membership& membership, absl::Duration waited);
  // By rank: whether it has nothing left to do.
  std::vector<bool> FindIdle(const Step& step, const Membership& membership);

  StepRecord current_;
  std::deque<StepRecord> recent_;
  std::vector<CausedWait> totals_;
  absl::Duration daemon_total_;
  absl::Duration other_shards_total_;
  StepHistogram durations_;
  StepHistogram straggler_gaps_;
  absl::Time last_ = absl::InfinitePast();
  bool overlaps_ = false;  // members announce a bucket before their last one is reduced
};

// Who caused most of the waiting in the recent steps, and how, in a sentence; empty if nobody
// stands out.
std::string WhoIsSlow(const WaitLog& log, const Membership& membership);

}  // namespace gradwire::server
