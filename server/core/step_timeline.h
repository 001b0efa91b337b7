// What the members, buckets, rounds and sums of a session did in some of its steps, and when.
//
// The recorder watches what the core is told (frames, sums that are done, streams) and what it
// wants done (effects). It changes nothing in the session, and a session that nobody records has
// none. It records whole steps only: those from `first_step` on.
//
// Memory: at most kMostBytes, whatever members send and however long nobody reads the spans.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "absl/time/time.h"
#include "proto/wire/frame.h"

namespace gradwire::server {

struct FanOutEffect;
struct ReduceEffect;
struct ResultEffect;
struct SendEffect;

// A stretch of time, or a moment, of a recorded step. Times count from the recording's begin.
struct TimelineSpan {
  enum class Kind : std::uint8_t {
    kStep,        // from the first member's first frame to the verdict
    kMemberStep,  // from the member's first frame to the verdict or its last acknowledgement
    kGrant,       // of a bucket: from the member's announcement to the grant
    kContribute,  // of a round: from the member's first bytes to its last
    kSum,         // of a round: from the first sum that was handed out to the last that was done
    kResult,      // of a round: from the first result queued to the last one acknowledged
    kBroken,      // the member's stream ended
    kResumed,     // the member has a new stream
  };

  Kind kind = Kind::kStep;
  bool ended = false;    // else the recording ended before
  bool eager = false;    // the bytes came with the announcement
  bool skipped = false;  // the step's verdict
  int rank = -1;         // -1: the daemon
  std::int64_t step = 0;
  std::uint32_t bucket = 0;  // manifest position of its first parameter
  std::uint32_t round = 0;
  std::uint32_t parameters = 0;  // kGrant: of the bucket
  std::uint32_t rounds = 0;      // kGrant: of the bucket
  std::uint32_t chunks = 0;
  std::uint32_t attempt = 0;       // kResult: acknowledgements of earlier ones do not count
  std::uint32_t acknowledged = 0;  // chunks of a result that the member said it has
  std::uint64_t bytes = 0;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t busy_ns = 0;         // kSum: of the sums alone
  std::int64_t before_sums_ns = 0;  // kContribute: the last bytes before the round's first sum
};

// Not thread-safe. Times never run backwards: an earlier one counts as the latest so far.
class StepTimeline {
 public:
  static constexpr int kMostSteps = 100;
  static constexpr std::size_t kMostSpans = 100'000;

  struct Options {
    std::int64_t first_step = 0;
    int steps = 1;  // 1 to kMostSteps
    int world_size = 1;
    absl::Time deadline = absl::InfiniteFuture();
    std::size_t most_spans = kMostSpans;
  };

  StepTimeline(const Options& options, absl::Time now);

  // ---- Events, which happen at the time of the last Advance

  void Advance(absl::Time now);
  // A frame that the core accepted, and the payload bytes that it took from it. Before the effects
  // of the frame.
  void OnFrame(int rank, const wire::Header& header, std::uint64_t bytes);
  // The answer to a ReduceEffect.
  void OnReduced(const wire::RoundId& id, absl::Duration spent);
  // What the core wants done.
  void OnEffect(const SendEffect& send);
  void OnEffect(const FanOutEffect& fan_out);
  void OnEffect(const ReduceEffect& reduce);
  void OnEffect(const ResultEffect& result);
  void OnBroken(int rank) { AddMoment(TimelineSpan::Kind::kBroken, rank); }
  void OnResumed(int rank) { AddMoment(TimelineSpan::Kind::kResumed, rank); }

  // ---- The end

  enum class State : std::uint8_t {
    kRecording,
    kComplete,  // all steps are there
    kFull,      // there was no room for a further span
    kExpired,   // the deadline has passed
  };
  // Results are acknowledged after a step's verdict, so the last step stays open for up to
  // kAckGrace.
  static constexpr absl::Duration kAckGrace = absl::Seconds(1);
  State state() const;

  std::int64_t first_step() const { return options_.first_step; }
  // Steps that have their verdict.
  int complete_steps() const { return complete_; }
  // By their begin.
  const std::deque<TimelineSpan>& spans() const { return spans_; }

 private:
  // In this order in the index: what is dropped together lies together.
  struct Key {
    std::int64_t step = 0;
    TimelineSpan::Kind kind = TimelineSpan::Kind::kStep;
    int rank = -1;
    std::uint32_t bucket = 0;
    std::uint32_t round = 0;

    auto operator<=>(const Key&) const = default;
  };
  static Key RoundKey(TimelineSpan::Kind kind, int rank, const wire::RoundId& id) {
    return {.step = id.step, .kind = kind, .rank = rank, .bucket = id.bucket, .round = id.round};
  }

  bool IsRecorded(std::int64_t step) const {
    return step >= options_.first_step && step < options_.first_step + options_.steps;
  }
  bool IsOpen(std::int64_t step) const { return IsRecorded(step) && step >= open_step_; }
  // Null: there is none.
  TimelineSpan* Find(const Key& key);
  // Begins one now if there is none. Null: there is no room.
  TimelineSpan* FindOrAdd(const Key& key);
  TimelineSpan* Add(const Key& key);
  void AddMoment(TimelineSpan::Kind kind, int rank);

  void BeginStep(int rank, std::int64_t step);
  void OnAnnounce(int rank, const wire::Announce& announce, std::uint64_t bytes);
  void OnContribution(int rank, const wire::RoundId& id, std::uint32_t chunks, std::uint64_t bytes);
  void OnAcknowledged(int rank, const wire::RoundId& id, std::uint32_t received);
  void OnGrant(int rank, const wire::RoundId& id);
  void OnVerdict(std::int64_t step, Verdict verdict);
  bool AwaitsAcknowledgements() const;

  const Options options_;
  const absl::Time began_;
  absl::Time now_;
  std::int64_t open_step_;
  int complete_ = 0;
  std::int64_t concluded_ns_ = 0;  // the last of the steps
  bool full_ = false;
  std::deque<TimelineSpan> spans_;
  // Of the open step and of the one before it, whose results are still acknowledged.
  std::map<Key, TimelineSpan*> index_;
  std::vector<std::int64_t> member_step_;  // by rank: the latest in which it did something

 public:
  // A node of the index has its pointers and colour besides key and value.
  static constexpr std::size_t kMostBytes =
      kMostSpans * (sizeof(TimelineSpan) + sizeof(Key) + sizeof(TimelineSpan*) + 4 * sizeof(void*));
};

}  // namespace gradwire::server
