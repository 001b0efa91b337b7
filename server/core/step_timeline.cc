#include "server/core/step_timeline.h"

#include <algorithm>
#include <iterator>
#include <variant>

#include "server/core/effects.h"

namespace gradwire::server {
namespace {

using Kind = TimelineSpan::Kind;

// The step of a frame with which a member does something in a step; -1: others.
std::int64_t StepOf(const wire::Header& header) {
  if (const auto* announce = std::get_if<wire::Announce>(&header)) return announce->step;
  if (const auto* bucket = std::get_if<wire::GroupBucket>(&header)) return bucket->step;
  if (const auto* contribution = std::get_if<wire::Contribution>(&header)) {
    return contribution->id.step;
  }
  if (const auto* end = std::get_if<wire::EndStep>(&header)) return end->step;
  return -1;
}

}  // namespace

StepTimeline::StepTimeline(const Options& options, absl::Time now)
    : options_(options),
      began_(now),
      now_(now),
      open_step_(options.first_step),
      member_step_(static_cast<std::size_t>(options.world_size), -1) {}

// ---- Spans

TimelineSpan* StepTimeline::Find(const Key& key) {
  const auto found = index_.find(key);
  return found == index_.end() ? nullptr : found->second;
}

TimelineSpan* StepTimeline::FindOrAdd(const Key& key) {
  TimelineSpan* const found = Find(key);
  if (found != nullptr) return found;
  TimelineSpan* const added = Add(key);
  if (added != nullptr) index_.emplace(key, added);
  return added;
}

// References into a deque stay valid while it grows at its end.
TimelineSpan* StepTimeline::Add(const Key& key) {
  if (spans_.size() >= options_.most_spans) {
    full_ = true;
    return nullptr;
  }
  const std::int64_t now = absl::ToInt64Nanoseconds(now_ - began_);
  spans_.push_back({.kind = key.kind,
                    .rank = key.rank,
                    .step = key.step,
                    .bucket = key.bucket,
                    .round = key.round,
                    .begin_ns = now,
                    .end_ns = now});
  return &spans_.back();
}

// A moment belongs to the step that is open, or is about to begin.
void StepTimeline::AddMoment(Kind kind, int rank) {
  if (state() != State::kRecording || spans_.empty()) return;
  TimelineSpan* const span = Add({.step = open_step_, .kind = kind, .rank = rank});
  if (span != nullptr) span->ended = true;
}

// ---- Frames

void StepTimeline::Advance(absl::Time now) { now_ = std::max(now_, now); }

void StepTimeline::OnFrame(int rank, const wire::Header& header, std::uint64_t bytes) {
  if (state() != State::kRecording) return;
  const std::int64_t step = StepOf(header);
  std::int64_t& reached = member_step_[static_cast<std::size_t>(rank)];
  reached = std::max(reached, step);
  if (IsOpen(step)) BeginStep(rank, step);
  if (const auto* announce = std::get_if<wire::Announce>(&header)) {
    if (IsOpen(step)) OnAnnounce(rank, *announce, bytes);
  } else if (const auto* contribution = std::get_if<wire::Contribution>(&header)) {
    OnAcknowledged(rank, contribution->id, contribution->received);
    if (IsOpen(step)) OnContribution(rank, contribution->id, 1 + contribution->more, bytes);
  } else if (const auto* ack = std::get_if<wire::Ack>(&header)) {
    OnAcknowledged(rank, ack->id, ack->received);
  } else if (const auto* concluded = std::get_if<wire::Concluded>(&header)) {
    OnVerdict(concluded->step, concluded->verdict);  // the lead's, which this shard does not send
  }
}

void StepTimeline::BeginStep(int rank, std::int64_t step) {
  FindOrAdd({.step = step, .kind = Kind::kStep});
  FindOrAdd({.step = step, .kind = Kind::kMemberStep, .rank = rank});
}

// A resume repeats announcements: the first one counts.
void StepTimeline::OnAnnounce(int rank, const wire::Announce& announce, std::uint64_t bytes) {
  const wire::RoundId id{.step = announce.step, .bucket = announce.parameters.front()};
  const Key key = RoundKey(Kind::kGrant, rank, id);
  if (Find(key) == nullptr) {
    TimelineSpan* const span = FindOrAdd(key);
    if (span == nullptr) return;
    span->parameters = static_cast<std::uint32_t>(announce.parameters.size());
    span->rounds = static_cast<std::uint32_t>(announce.rounds.size());
    span->eager = span->ended = bytes > 0;  // no grant follows
  }
  if (bytes > 0) OnContribution(rank, id, 1, bytes);
}

void StepTimeline::OnContribution(int rank, const wire::RoundId& id, std::uint32_t chunks,
                                  std::uint64_t bytes) {
  if (bytes == 0) return;  // it had come before
  OnGrant(rank, id);       // a Restart may have told the member instead
  TimelineSpan* const span = FindOrAdd(RoundKey(Kind::kContribute, rank, id));
  if (span == nullptr) return;
  span->ended = true;
  span->end_ns = absl::ToInt64Nanoseconds(now_ - began_);
  // A member whose window is full sends on only when others let the first sum begin.
  if (Find(RoundKey(Kind::kSum, -1, id)) == nullptr) span->before_sums_ns = span->end_ns;
  span->chunks += chunks;
  span->bytes += bytes;
}

// Also of a step that has its verdict: members acknowledge its last results afterwards.
void StepTimeline::OnAcknowledged(int rank, const wire::RoundId& id, std::uint32_t received) {
  TimelineSpan* const span = Find(RoundKey(Kind::kResult, rank, id));
  if (span == nullptr || id.attempt < span->attempt || received <= span->acknowledged) return;
  span->acknowledged = received;
  span->ended = received >= span->chunks;
  span->end_ns = absl::ToInt64Nanoseconds(now_ - began_);
  TimelineSpan* const step = Find({.step = id.step, .kind = Kind::kMemberStep, .rank = rank});
  if (step != nullptr) step->end_ns = std::max(step->end_ns, span->end_ns);
}

// ---- What the core wants done

void StepTimeline::OnEffect(const SendEffect& send) {
  const auto* grant = std::get_if<wire::Grant>(&send.frame.header);
  if (grant != nullptr && state() == State::kRecording) OnGrant(send.rank, grant->id);
}

void StepTimeline::OnEffect(const FanOutEffect& fan_out) {
  const auto* done = std::get_if<wire::StepDone>(&fan_out.frame.header);
  if (done != nullptr && state() == State::kRecording) OnVerdict(done->step, done->verdict);
}

// A grant is of the bucket: its span is found without the round.
void StepTimeline::OnGrant(int rank, const wire::RoundId& id) {
  TimelineSpan* const span =
      Find(RoundKey(Kind::kGrant, rank, {.step = id.step, .bucket = id.bucket}));
  if (span == nullptr || span->ended) return;
  span->ended = true;
  span->end_ns = absl::ToInt64Nanoseconds(now_ - began_);
}

void StepTimeline::OnEffect(const ReduceEffect& reduce) {
  if (!IsOpen(reduce.id.step) || state() != State::kRecording) return;
  TimelineSpan* const span = FindOrAdd(RoundKey(Kind::kSum, -1, reduce.id));
  if (span == nullptr) return;
  span->ended = false;
  span->bytes += reduce.segment.bytes() * reduce.inputs.size();
}

void StepTimeline::OnReduced(const wire::RoundId& id, absl::Duration spent) {
  if (state() != State::kRecording) return;
  TimelineSpan* const span = Find(RoundKey(Kind::kSum, -1, id));
  if (span == nullptr) return;
  ++span->chunks;
  span->ended = true;
  span->end_ns = absl::ToInt64Nanoseconds(now_ - began_);
  span->busy_ns += std::max<std::int64_t>(absl::ToInt64Nanoseconds(spent), 0);
}

void StepTimeline::OnEffect(const ResultEffect& result) {
  if (state() != State::kRecording) return;
  const wire::RoundId& id = result.header.id;
  for (const int rank : result.ranks) {
    const Key key = RoundKey(Kind::kResult, rank, id);
    TimelineSpan* const span = IsOpen(id.step) ? FindOrAdd(key) : Find(key);
    if (span == nullptr || result.header.chunk < span->chunks) continue;  // sent again
    span->chunks = result.header.chunk + 1;
    span->attempt = id.attempt;
    span->bytes += result.result->bytes();
    span->ended = false;
    span->end_ns = absl::ToInt64Nanoseconds(now_ - began_);
    const TimelineSpan* const grant =
        Find(RoundKey(Kind::kGrant, rank, {.step = id.step, .bucket = id.bucket}));
    span->eager = grant != nullptr && grant->eager;
  }
}

void StepTimeline::OnVerdict(std::int64_t step, Verdict verdict) {
  if (!IsOpen(step)) return;
  const std::int64_t now = absl::ToInt64Nanoseconds(now_ - began_);
  const auto begin = index_.lower_bound({.step = step, .kind = Kind::kStep});
  for (auto it = begin; it != index_.end() && it->first.kind <= Kind::kMemberStep; ++it) {
    it->second->ended = true;
    it->second->end_ns = now;
    it->second->skipped = verdict == Verdict::kSkip;
  }
  open_step_ = step + 1;
  ++complete_;
  concluded_ns_ = now;
  index_.erase(index_.begin(), index_.lower_bound({.step = step}));
}

// ---- The end

StepTimeline::State StepTimeline::state() const {
  if (full_) return State::kFull;
  if (complete_ == options_.steps) {
    const absl::Time last = began_ + absl::Nanoseconds(concluded_ns_);
    if (now_ >= last + kAckGrace || !AwaitsAcknowledgements()) return State::kComplete;
  }
  return now_ >= options_.deadline ? State::kExpired : State::kRecording;
}

// Eager results are acknowledged together with something else, and everything of a step with the
// member's first frame of a later one.
bool StepTimeline::AwaitsAcknowledgements() const {
  return std::any_of(index_.begin(), index_.end(), [this](const auto& entry) {
    const TimelineSpan& span = *entry.second;
    return span.kind == Kind::kResult && !span.ended && !span.eager &&
           member_step_[static_cast<std::size_t>(span.rank)] <= span.step;
  });
}

}  // namespace gradwire::server
