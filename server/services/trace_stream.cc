#include "server/services/trace_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "proto/wire/proto_conversion.h"
#include "server/access/permissions.h"
#include "server/rpc/clock.h"
#include "server/session/registry.h"
#include "server/session/session_runner.h"

namespace gradwire::server {
namespace {

using Kind = TimelineSpan::Kind;

v1::TimelineKind ToProto(Kind kind) {
  switch (kind) {
    case Kind::kStep:
      return v1::TIMELINE_KIND_STEP;
    case Kind::kMemberStep:
      return v1::TIMELINE_KIND_MEMBER_STEP;
    case Kind::kGrant:
      return v1::TIMELINE_KIND_GRANT;
    case Kind::kContribute:
      return v1::TIMELINE_KIND_CONTRIBUTE;
    case Kind::kSum:
      return v1::TIMELINE_KIND_SUM;
    case Kind::kResult:
      return v1::TIMELINE_KIND_RESULT;
    case Kind::kBroken:
      return v1::TIMELINE_KIND_BROKEN;
    case Kind::kResumed:
      return v1::TIMELINE_KIND_RESUMED;
  }
  return v1::TIMELINE_KIND_UNSPECIFIED;
}

v1::TraceEnd ToProto(StepTimeline::State state) {
  switch (state) {
    case StepTimeline::State::kComplete:
      return v1::TRACE_END_COMPLETE;
    case StepTimeline::State::kFull:
      return v1::TRACE_END_FULL;
    case StepTimeline::State::kExpired:
      return v1::TRACE_END_TIME;
    case StepTimeline::State::kRecording:
      break;
  }
  return v1::TRACE_END_SESSION;  // nothing else ends one that still records
}

bool HasBucket(Kind kind) {
  return kind == Kind::kGrant || kind == Kind::kContribute || kind == Kind::kSum ||
         kind == Kind::kResult;
}

absl::StatusOr<absl::Duration> WaitOf(const v1::TraceSessionRequest& request) {
  if (!request.has_wait()) return kTraceWait;
  absl::StatusOr<absl::Duration> wait = wire::FromProto(request.wait(), "wait");
  if (wait.ok() && (*wait <= absl::ZeroDuration() || *wait > kMostTraceWait)) {
    return Coded(ErrorCode::kCtlUsage, absl::InvalidArgumentError(
                                           absl::StrCat("wait is ", absl::FormatDuration(*wait),
                                                        "; allowed are more than 0 s, and at most ",
                                                        absl::FormatDuration(kMostTraceWait))));
  }
  return wait;
}

}  // namespace

absl::StatusOr<Recordings::Place> Recordings::Begin() {
  if (count_.fetch_add(1) >= kMost) {
    count_.fetch_sub(1);
    return Coded(ErrorCode::kQuota, absl::ResourceExhaustedError(absl::StrCat(
                                        "the daemon records ", kMost,
                                        " sessions already, which is the most; try again later")));
  }
  return Place(this, [self = shared_from_this()](const void*) { self->count_.fetch_sub(1); });
}

TraceStream::TraceStream(std::shared_ptr<const Registry> registry,
                         std::shared_ptr<PeriodicTasks> ticks,
                         std::shared_ptr<Recordings> recordings)
    : registry_(std::move(registry)),
      ticks_(std::move(ticks)),
      recordings_(std::move(recordings)) {}

void TraceStream::OnRequest(const v1::TraceSessionRequest& request) {
  if (absl::Status begun = Begin(request); !begun.ok()) {
    place_.reset();
    return Finish(begun);
  }
  ticks_->Add(Self<TraceStream>());
}

absl::Status TraceStream::Begin(const v1::TraceSessionRequest& request) {
  if (absl::Status may = CheckSession(caller(), request.session()); !may.ok()) return may;
  const absl::StatusOr<absl::Duration> wait = WaitOf(request);
  if (!wait.ok()) return wait.status();
  session_ = registry_->Get(request.session());
  if (session_ == nullptr) return registry_->NotThere(request.session());
  absl::StatusOr<Recordings::Place> place = recordings_->Begin();
  if (!place.ok()) return place.status();
  place_ = *std::move(place);
  const absl::Time now = MonotonicNow();
  const absl::StatusOr<std::uint64_t> number =
      session_->BeginTimeline(request.steps(), now + *wait, now);
  if (!number.ok()) return number.status();
  number_ = *number;
  return absl::OkStatus();
}

// Cancels instead of finishing: Finish would wait for a write that a reader who does not read never
// lets complete.
void TraceStream::OnTick(absl::Time now) {
  if (read_by_ != absl::InfiniteFuture()) {
    if (now >= read_by_) TryCancel();
    return;
  }
  timeline_ = session_->TakeTimeline(number_);
  if (timeline_ == nullptr) return;
  read_by_ = now + kTraceRead;
  WriteNext();
}

// One piece at a time: the next one is built when the reader has taken the last one.
void TraceStream::WriteNext() {
  const auto& spans = timeline_->spans();
  if (has_summary_ && written_ == spans.size()) {
    // Before the answer: the caller may begin the next recording at once.
    timeline_.reset();
    place_.reset();
    return Finish(absl::OkStatus());
  }
  v1::TraceSessionResponse response;
  if (!std::exchange(has_summary_, true)) *response.mutable_summary() = Summary();
  std::size_t bytes = response.ByteSizeLong();
  for (; written_ < spans.size() && bytes < kTracePiece; ++written_) {
    v1::TimelineEvent& event = *response.add_events();
    event = EventOf(spans[written_]);
    bytes += event.ByteSizeLong();
  }
  StartWrite(ToBytes(response));
}

void TraceStream::OnWriteDone(bool ok) {
  if (!ok) return Finish(absl::CancelledError("the reader is gone"));
  WriteNext();
}

void TraceStream::OnDone() {
  ticks_->Remove(this);
  if (number_ > 0) session_->DropTimeline(number_);
}

v1::TraceSummary TraceStream::Summary() const {
  const SessionOptions& options = session_->options();
  v1::TraceSummary summary;
  summary.set_session(options.name);
  *summary.mutable_hook() = wire::ToProto(options.spec);
  summary.set_world_size(options.world_size);
  summary.set_first_step(timeline_->first_step());
  summary.set_complete_steps(timeline_->complete_steps());
  summary.set_end(ToProto(timeline_->state()));
  return summary;
}

v1::TimelineEvent TraceStream::EventOf(const TimelineSpan& span) const {
  v1::TimelineEvent event;
  event.set_kind(ToProto(span.kind));
  event.set_step(span.step);
  event.set_rank(span.rank);
  if (HasBucket(span.kind)) {
    event.set_bucket(span.bucket);
    event.set_name(session_->options().manifest[span.bucket].name);
  }
  event.set_parameters(span.parameters);
  event.set_rounds(span.rounds);
  event.set_round(span.round);
  event.set_begin_ns(span.begin_ns);
  event.set_end_ns(span.end_ns);
  event.set_ended(span.ended);
  event.set_eager(span.eager);
  if (span.ended && (span.kind == Kind::kStep || span.kind == Kind::kMemberStep)) {
    event.set_verdict(span.skipped ? v1::STEP_VERDICT_SKIP : v1::STEP_VERDICT_APPLY);
  }
  event.set_chunks(span.chunks);
  event.set_bytes(span.bytes);
  event.set_busy_ns(span.busy_ns);
  event.set_before_sums_ns(span.before_sums_ns);
  return event;
}

}  // namespace gradwire::server
