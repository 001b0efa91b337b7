#include "client/core/member.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/mutants.h"
#include "client/core/bucket_run.h"

namespace gradwire::client {

Member::Member(MemberOptions options, Hook* hook)
    : options_(std::move(options)),
      hook_(hook),
      step_(options_, hook),
      protocol_(options_, step_),
      collectives_(options_),
      coordinator_(options_.manifest.size()),
      ledger_(options_.ledger),
      giving_(options_, hook, step_.late()),
      taking_(options_, hook, step_.late()),
      told_ranks_(static_cast<std::size_t>(options_.world_size)),
      chain_(options_.step) {
  std::iota(told_ranks_.begin(), told_ranks_.end(), 0);
}

absl::Status Member::StartBucket(Ticket ticket, GradBucket& bucket, Effects& effects,
                                 const OpenStep::Begun& begun) {
  if (failed()) return failure_;
  if (step_.ended()) {
    return Coded(ErrorCode::kTwiceInStep, absl::FailedPreconditionError(absl::StrCat(
                                              "step ", step(), " was ended by this member")));
  }
  SetLeaving(false);
  const absl::StatusOr<bool> missed = step_.TakeMissed(ticket, bucket, effects);
  if (!missed.ok() || *missed) return missed.status();
  const std::size_t first = effects.size();
  OpenStep::Begun all = begun;
  all.keep = keeps_gradients();
  const absl::StatusOr<BucketRun*> run = step_.Start(ticket, bucket, all, protocol_.context());
  if (!run.ok()) return run.status();
  // From here on the bucket is one of the step's: what goes wrong is the session's failure.
  absl::Status begun_here = protocol_.Begin(**run, effects);
  if (begun_here.ok()) begun_here = protocol_.AnswerMissed(effects);
  if (!begun_here.ok()) Fail(begun_here, effects);
  HoldBack(effects, first);
  return absl::OkStatus();
}

absl::Status Member::EndStep(Effects& effects) {
  if (failed()) return failure_;
  if (step_.ended()) {
    return Coded(ErrorCode::kTwiceInStep,
                 absl::FailedPreconditionError(absl::StrCat("step ", step(), " was ended before")));
  }
  if (absl::Status taken = step_.missed().CheckAllTaken(step()); !taken.ok()) return taken;
  SetLeaving(false);
  step_.End();
  const std::size_t first = effects.size();
  protocol_.EndStep(effects);
  HoldBack(effects, first);
  return absl::OkStatus();
}

absl::Status Member::CheckParameters(std::uint64_t digest, Effects& effects) {
  if (failed()) return failure_;
  if (step_.has_begun() || step_.ended()) {
    return Coded(ErrorCode::kWrongMoment, absl::FailedPreconditionError(absl::StrCat(
                                              "CheckParameters in the middle of step ", step(),
                                              "; allowed: before the step's first bucket")));
  }
  const std::size_t first = effects.size();
  if (options_.parameter_digests) protocol_.TellParameters(digest, effects);
  HoldBack(effects, first);
  return absl::OkStatus();
}

absl::Status Member::SetDrawPlan(const DrawBuckets& buckets, Effects& effects) {
  if (failed()) return failure_;
  if (options_.rank != 0) {
    return Coded(ErrorCode::kDrawPlan,
                 absl::FailedPreconditionError(
                     absl::StrCat("draw plan: of rank ", options_.rank, "; allowed: of rank 0")));
  }
  absl::Status status = CheckDrawBuckets(buckets, options_.manifest.size());
  const std::size_t first = effects.size();
  if (status.ok() && options_.draw_plan) protocol_.SetDrawPlan(buckets, effects);
  HoldBack(effects, first);
  return status;
}

absl::StatusOr<std::uint64_t> Member::Enter(wire::CollectiveKind kind, int root, std::size_t bytes,
                                            Effects& effects) {
  if (failed()) return failure_;
  if (kind == wire::CollectiveKind::kBroadcast) {
    if (absl::Status here = CheckRoot(root); !here.ok()) return here;
  }
  SetLeaving(false);
  const std::size_t first = effects.size();
  absl::StatusOr<std::uint64_t> number = collectives_.Enter(kind, root, bytes, effects);
  HoldBack(effects, first);
  return number;
}

void Member::HoldBack(Effects& effects, std::size_t first) const {
  if (!awaits_welcome_) return;
  const auto sends = [](const Effect& effect) {
    return std::holds_alternative<SendFrameEffect>(effect) ||
           std::holds_alternative<SendChunkEffect>(effect);
  };
  effects.erase(
      std::remove_if(effects.begin() + static_cast<std::ptrdiff_t>(first), effects.end(), sends),
      effects.end());
}

// An error of one of these ends the session.
struct Member::Received {
  Member& member;
  const wire::PayloadRef& payload;
  Effects& effects;

  absl::Status operator()(const wire::Grant& grant) const {
    return member.protocol_.On(grant, effects);
  }
  absl::Status operator()(const wire::Missed& missed) const {
    return member.protocol_.On(missed, effects);
  }
  absl::Status operator()(const wire::SharedState& state) const {
    return member.protocol_.On(state, payload.get());
  }
  absl::Status operator()(const wire::Result& result) const {
    return member.protocol_.On(result, payload.get(), effects);
  }
  absl::Status operator()(const wire::Restart& restart) const {
    return member.protocol_.On(restart, effects);
  }
  absl::Status operator()(const wire::StepDone& done) const {
    member.chain_.Advance(done);
    // The others may end steps that a newcomer lacks results of, or has not heard of: it will get
    // the model anew. Only if it is READY it also has what the coordinator has said of its state.
    const bool says_ready = member.options_.has_shards() || member.recovery_;
    const bool has_all = says_ready ? member.ready_.has_value() : member.step_.holds_results();
    const bool lacks = done.step == member.step() && !done.dropped && !has_all;
    if (member.is_newcomer_ && (lacks || done.step > member.step())) {
      if (!done.change) return absl::OkStatus();
      member.MoveTo(done.step, done.change->iteration);
    }
    const absl::StatusOr<bool> concludes = member.protocol_.On(done);
    if (!concludes.ok() || !*concludes) return concludes.status();
    if (member.options_.shard != 0) {
      return member.protocol_.Violation("the end of a step, and does not lead the session");
    }
    if (member.ready_ && member.ready_->verdict != done.verdict && !done.dropped) {
      return member.protocol_.Violation("another verdict than the shards' together");
    }
    if (done.dropped && done.verdict == Verdict::kApply) {
      return member.protocol_.Violation("that a step is dropped and applied");
    }
    if (done.change && !done.dropped) {
      return member.protocol_.Violation("that newcomers are here after a step that is not dropped");
    }
    member.Conclude(done, effects);
    return absl::OkStatus();
  }
  absl::Status operator()(const wire::Prepared& prepared) const {
    if (prepared.step < member.step()) return absl::OkStatus();  // repeated after a resume
    if ((!member.options_.has_shards() && !member.recovery_) || prepared.step > member.step() ||
        !member.step_.holds_results()) {
      return member.protocol_.Violation("that it is prepared before its last result");
    }
    member.prepared_reason_ = prepared.reason;
    member.ledger_.Tell(member.step(), member.options_.generation, effects);
    effects.push_back(PreparedEffect{
        .step = prepared.step, .verdict = prepared.verdict, .digest = prepared.digest});
    return absl::OkStatus();
  }
  absl::Status operator()(const wire::StateReset& reset) const {
    // An import replaces the draw plan. A reset that a resume repeats must not drop a plan that was
    // set after the first one.
    if (!member.step_.IsRepeated(reset.iteration)) {
      member.protocol_.ForgetDrawPlan();
      member.coordinator_.OnReset();
    }
    if (member.step_.ResetState(reset.iteration)) return absl::OkStatus();
    return member.protocol_.Violation("a new state in the middle");
  }
  absl::Status operator()(const wire::CoordinatorState& state) const {
    if (state.step < member.step()) return absl::OkStatus();  // repeated after a resume
    if (state.step > member.step() || !member.recovery_) {
      return member.protocol_.Violation("its own state in the wrong step");
    }
    const absl::Status taken = member.coordinator_.Take(state, payload.get());
    if (taken.ok()) return taken;
    return member.protocol_.Violation(absl::StrCat("its own state, which ", taken.message()));
  }
  absl::Status operator()(const wire::StateRequest& request) const {
    if (!member.awaits_welcome_) return member.protocol_.Violation("a request for its state");
    member.coordinator_.Answer(request, member.hook_->Copy(), member.options_.generation,
                               member.options_.chunk_bytes, effects);
    return absl::OkStatus();
  }
  absl::Status operator()(const wire::CollectiveChunk& chunk) const {
    return member.collectives_.On(chunk, payload, effects);
  }
  absl::Status operator()(const wire::Welcome& welcome) const {
    const absl::StatusOr<bool> moves = member.Enroll(welcome);
    if (!moves.ok()) return moves.status();
    if (absl::Status same = member.TakeChain(welcome); !same.ok()) return same;
    if (std::exchange(member.awaits_welcome_, false)) {
      if (absl::Status status = member.GoOn(*moves, effects); !status.ok()) return status;
    }
    // The first one may be that of a resume, if the stream broke before it came.
    if (std::exchange(member.welcomed_, true)) return absl::OkStatus();
    if (welcome.change) {
      member.is_newcomer_ = true;
      member.last_ = Verdict::kSkip;
      member.step_.BeginAt(welcome.step, welcome.change->iteration);
      member.collectives_.GoOnFrom(welcome.change->collectives, effects);
    }
    if (member.roster() != nullptr) member.told_ranks_ = member.concluded_ = member.roster()->ranks;
    if (!welcome.recovery && welcome.change && !welcome.change->ranks.empty()) {
      member.told_ranks_ = welcome.change->ranks;
    }
    effects.push_back(WelcomeEffect{.recovery = welcome.recovery, .change = welcome.change});
    return absl::OkStatus();
  }
  absl::Status operator()(const wire::LedgerTotal& total) const {
    member.ledger_.On(total);
    return absl::OkStatus();
  }
  absl::Status operator()(const wire::HandOver& piece) const {
    member.taking_.SetNewcomer(member.is_newcomer_);
    member.taking_.On(piece, payload.get(), member.step_.empty(), effects);
    return absl::OkStatus();
  }
  absl::Status operator()(const wire::HandOverAnswer& answer) const {
    member.giving_.On(answer, effects);
    return absl::OkStatus();
  }
  absl::Status operator()(const wire::Heartbeat& heartbeat) const {
    if (heartbeat.asks) {
      effects.push_back(SendFrameEffect{wire::Heartbeat{.step = member.step()}});
    }
    return absl::OkStatus();
  }
  absl::Status operator()(const wire::Failure& failure) const {
    member.blamed_rank_ = failure.blamed_rank;
    const bool known = failure.code > 0 && failure.code <= 16;
    const auto code =
        known ? static_cast<absl::StatusCode>(failure.code) : absl::StatusCode::kUnknown;
    absl::Status status(code, failure.message);
    return member.awaits_welcome_ ? member.WithOutcome(std::move(status)) : status;
  }
  template <typename Header>
  absl::Status operator()(const Header& header) const {
    if constexpr (requires { member.collectives_.On(header, effects); }) {
      member.collectives_.On(header, effects);
      return absl::OkStatus();
    }
    return member.protocol_.Violation("a frame that only a member may send");
  }
};

void Member::Receive(const wire::Frame& frame, Effects& effects) {
  if (failed()) return;
  const absl::Status status = std::visit(Received{*this, frame.payload, effects}, frame.header);
  if (!status.ok()) Fail(status, effects);
}

// What was said before the stream broke may not have arrived.
void Member::Resumed(Effects& effects) {
  if (gather_again_) effects.push_back(SendFrameEffect{*gather_again_});
  if (awaits_welcome_) return;
  if (conclusion_ && !IsActive(Mutant::kConclusionNotRepeated)) {
    effects.push_back(SendFrameEffect{*conclusion_});
  }
  protocol_.Resumed(effects);
  ledger_.Resumed(effects);
  if (ready_ && !IsActive(Mutant::kReadyNotRepeated)) effects.push_back(SendFrameEffect{*ready_});
  collectives_.Resumed(effects);
  giving_.Resumed(effects);
}

// In this order: Forget needs the number of the step that Conclude opens, to see whether the draw
// plan must still be repeated.
void Member::Conclude(const wire::StepDone& done, Effects& effects) {
  const std::size_t first = effects.size();
  if (done.dropped) {
    ledger_.Drop();
    step_.Drop(done, effects);
  } else {
    // Where members say READY, they have sent it before.
    if (!options_.has_shards() && !recovery_) {
      ledger_.Tell(step(), options_.generation, effects);
    }
    step_.Conclude(done, effects);
  }
  ledger_.Concluded(step() - 1, done.dropped);
  taking_.Add();
  if (roster() != nullptr && !done.dropped) concluded_ = roster()->ranks;
  const std::vector<int> ranks = RanksAfter(done);
  if (told_ranks_ != ranks) TellRanks(ranks, effects, first);
  Forget(done.verdict);
  if (!done.change) return;
  collectives_.GoOnFrom(done.change->collectives, effects);
  // It may have applied a step since it came, of which others have not heard.
  is_newcomer_ |= std::ranges::count(done.change->newcomers, options_.rank) > 0;
}

void Member::Forget(Verdict verdict) {
  ready_.reset();
  first_digest_.reset();
  prepared_reason_.clear();
  before_last_ = std::exchange(last_, verdict);
  skipped_ = verdict == Verdict::kSkip ? skipped_ + 1 : 0;
  if (verdict == Verdict::kApply) {
    is_newcomer_ = false;
    coordinator_.Apply();
  } else {
    coordinator_.Drop();
    if (recovery_) protocol_.OnSkipped(1);
  }
  protocol_.Forget();
}

// ---- Of a session with several shards

void Member::SayReady(Verdict verdict, std::uint64_t digest, Effects& effects) {
  if (failed() || ready_ || awaits_welcome_) return;
  // The user may have seen the first results, and others the second ones.
  if (first_digest_ && *first_digest_ != digest) {
    return Fail(protocol_.Violation(absl::StrCat("results with digest ", digest,
                                                 " where the same gradients gave ", *first_digest_,
                                                 " before the daemon was lost")),
                effects);
  }
  ready_ = wire::Ready{
      .step = step(), .generation = options_.generation, .verdict = verdict, .digest = digest};
  effects.push_back(SendFrameEffect{*ready_});
}

// A step that is dropped is so with the shards' lives, so that there is nobody to be told.
void Member::ConcludeAs(const StepDoneEffect& lead, Effects& effects) {
  if (failed()) return;
  // A newcomer has not been in those between.
  if (is_newcomer_ && lead.change && lead.step > step()) {
    MoveTo(lead.step, lead.change->iteration);
  }
  const wire::StepDone done{.step = step(),
                            .verdict = lead.verdict,
                            .dropped = lead.dropped,
                            .change = lead.change,
                            .reason = prepared_reason_};
  if (!done.dropped && !step_.holds_results()) {
    return Fail(
        protocol_.Violation("at shard 0 the end of a step before the last result of another"),
        effects);
  }
  if (!done.dropped) {
    conclusion_ =
        wire::Concluded{.step = step(), .generation = options_.generation, .verdict = done.verdict};
    effects.push_back(SendFrameEffect{*conclusion_});
  }
  Conclude(done, effects);
}

void Member::FailElsewhere(const absl::Status& status, int blamed_rank, Effects& effects) {
  if (failed()) return;
  blamed_rank_ = blamed_rank;
  Fail(status, effects);
  if (IsActive(Mutant::kFailureNotPassedOn)) return;
  std::get<FailedEffect>(effects.back()).last_words =
      wire::Failure{.code = static_cast<int>(status.code()),
                    .message = std::string(status.message()),
                    .blamed_rank = blamed_rank};
}

void Member::Fail(const absl::Status& status, Effects& effects) {
  if (failed()) return;
  failure_ = status;
  step_.Abort(status, effects);
  protocol_.Forget();
  collectives_.Abort();
  effects.push_back(FailedEffect{.status = status,
                                 .blamed_rank = blamed_rank_.value_or(options_.rank),
                                 .last_words = {},
                                 .is_told = blamed_rank_.has_value()});
}

std::string Member::Progress() const {
  const BucketRun* const run = step_.FirstUnfinished();
  if (run == nullptr) return absl::StrCat("step ", step(), ": no bucket is open here");
  return absl::StrCat("step ", step(), ": bucket of ", options_.manifest[run->id()].name, " has ",
                      run->received(), " of ", run->layout().chunk_count(), " results, ",
                      protocol_.IsGranted(run->id()) ? "granted" : "not granted");
}

}  // namespace gradwire::client
