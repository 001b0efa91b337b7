#include "client/core/step_protocol.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/mutants.h"
#include "client/core/bucket_run.h"
#include "client/core/open_step.h"

namespace gradwire::client {

StepProtocol::StepProtocol(const MemberOptions& options, OpenStep& step)
    : options_(options),
      step_(step),
      contributor_(options.rank),
      contributors_(options.world_size),
      window_(options.window_chunks),
      eager_(options.eager_bytes) {}

RoundContext StepProtocol::context() const {
  return {.world_size = contributors_, .rank = contributor_, .attempt = attempt_};
}

absl::Status StepProtocol::Violation(const std::string& what) const {
  return Coded(ErrorCode::kBadAnswer,
               absl::InternalError(
                   absl::StrCat("the coordinator sent ", what, " in step ", step_.number())));
}

StepProtocol::Bucket* StepProtocol::Find(const wire::RoundId& id) {
  const auto found = buckets_.find(id.bucket);
  return id.step != step_.number() || found == buckets_.end() ? nullptr : &found->second;
}

bool StepProtocol::IsGranted(std::uint32_t bucket) const {
  const auto found = buckets_.find(bucket);
  return found != buckets_.end() && found->second.granted;
}

wire::RoundId StepProtocol::IdOf(const Bucket& bucket) const {
  return {.step = step_.number(),
          .attempt = bucket.attempt,
          .bucket = bucket.run->id(),
          .round = bucket.run->round()};
}

absl::Status StepProtocol::Begin(BucketRun& run, Effects& effects) {
  Bucket& bucket = buckets_[run.id()] = {.run = &run, .attempt = attempt_};
  if (run.shared_bytes() > 0) draw_plan_.Fix();
  if (MayBeEager(run)) {
    SendEager(bucket, effects);
    return absl::OkStatus();
  }
  effects.push_back(SendFrameEffect{AnnounceOf(run)});
  if (!run.holds_result() && !run.is_round_complete()) return absl::OkStatus();
  return Advance(bucket, effects);  // nothing to reduce, at least in the first round
}

void StepProtocol::SendAhead(std::uint32_t bucket) {
  const auto found = buckets_.find(bucket);
  if (found != buckets_.end()) found->second.ahead = !found->second.run->options().missed;
}

void StepProtocol::Expose(std::uint32_t bucket) {
  const auto found = buckets_.find(bucket);
  if (found != buckets_.end() && !IsActive(Mutant::kResultsInPlaceForgotten)) {
    found->second.overwritten = true;
  }
}

void StepProtocol::EndStep(Effects& effects) {
  effects.push_back(
      SendFrameEffect{wire::EndStep{.step = step_.number(), .generation = options_.generation}});
}

void StepProtocol::TellParameters(std::uint64_t digest, Effects& effects) {
  parameters_ = digest;
  effects.push_back(SendFrameEffect{wire::ParameterDigest{
      .step = step_.number(), .generation = options_.generation, .digest = digest}});
}

void StepProtocol::SetDrawPlan(const DrawBuckets& buckets, Effects& effects) {
  draw_plan_.Set(buckets, options_.generation, step_.number(), effects);
}

wire::Announce StepProtocol::AnnounceOf(const BucketRun& run) {
  return {.step = step_.number(),
          .generation = options_.generation,
          .parameters = run.parameters(),
          .rounds = run.plans(),
          .acknowledged = eager_.TakeAcknowledged(),
          .share = run.share()};
}

// A bucket of one round and one chunk is sent with its announcement, which saves the round trip of
// a grant. It must not need shared state, because that arrives only before a grant.
bool StepProtocol::MayBeEager(const BucketRun& run) const {
  if (run.holds_result() || run.plans().size() != 1 || run.layout().chunk_count() != 1) {
    return false;
  }
  return run.shared_bytes() == 0 && eager_.MaySend(run.layout().ChunkBytes(0));
}

void StepProtocol::SendEager(Bucket& bucket, Effects& effects) {
  wire::Announce header = AnnounceOf(*bucket.run);
  bucket.granted = true;
  eager_.Sent(bucket.run->id(), bucket.run->layout().ChunkBytes(0));
  SendChunk(bucket, effects);
  header.eager = true;
  header.attempt = bucket.attempt;
  std::get<SendChunkEffect>(effects.back()).announce = std::move(header);
}

bool StepProtocol::MaySend(const Bucket& bucket) const {
  const BucketRun& run = *bucket.run;
  return bucket.granted && run.has_unsent() && !run.options().missed &&
         (bucket.ahead || IsActive(Mutant::kWindowExceeded) ||
          run.layout().InWindow(run.sent(), run.received(), window_));
}

void StepProtocol::SendChunk(Bucket& bucket, Effects& effects) {
  const BucketRun::Chunk chunk = bucket.run->HandOut();
  contributed_ = true;
  effects.push_back(SendChunkEffect{.header = wire::Contribution{.id = IdOf(bucket),
                                                                 .generation = options_.generation,
                                                                 .rank = options_.rank,
                                                                 .chunk = chunk.number,
                                                                 .received = bucket.run->received(),
                                                                 .digest = std::nullopt},
                                    .run = chunk.run,
                                    .range = chunk.range,
                                    .bytes = chunk.bytes});
}

// Large chunks are handed out one at a time (SendNext), because encoding takes long and frames that
// arrive meanwhile should not wait for a whole window. Chunks that are sent ahead (raw, in shared
// memory) are not encoded, so all of them go at once.
void StepProtocol::SendChunks(Bucket& bucket, Effects& effects) {
  const BucketRun& run = *bucket.run;
  while (MaySend(bucket)) {
    if (!bucket.ahead && run.layout().ChunkBytes(run.sent()) >= options_.large_chunk_bytes) {
      if (std::find(sending_.begin(), sending_.end(), run.id()) == sending_.end()) {
        sending_.push_back(run.id());
      }
      return;
    }
    SendChunk(bucket, effects);
  }
}

void StepProtocol::SendNext(Effects& effects) {
  Bucket& bucket = buckets_.at(sending_.front());
  // Results that were repeated after a resume may have completed the bucket since it was queued.
  if (MaySend(bucket)) SendChunk(bucket, effects);
  SendChunks(bucket, effects);
  if (!MaySend(bucket)) sending_.pop_front();
}

absl::Status StepProtocol::On(const wire::Grant& grant, Effects& effects) {
  if (grant.id.step < step_.number()) return absl::OkStatus();
  Bucket* const bucket = Find(grant.id);
  if (bucket == nullptr) {
    return Violation(absl::StrCat("a grant for unknown bucket ", grant.id.bucket));
  }
  BucketRun& run = *bucket->run;
  if (run.holds_result() || grant.id.round != run.round()) return absl::OkStatus();
  if (bucket->granted) {
    // The eager announcement was of an older attempt and counted as a plain one: a grant follows.
    if (run.received() > 0 || grant.id.attempt <= bucket->attempt) return absl::OkStatus();
    run.Rewind();
  }
  eager_.Forget(run.id());
  bucket->granted = true;
  bucket->attempt = grant.id.attempt;
  SendChunks(*bucket, effects);
  return absl::OkStatus();
}

// Pieces come in order. Offset 0 starts over, because a resume sends the state again.
absl::Status StepProtocol::On(const wire::SharedState& state, const wire::Payload* payload) {
  if (state.id.step < step_.number()) return absl::OkStatus();
  Bucket* const bucket = Find(state.id);
  if (bucket == nullptr) {
    return Violation(absl::StrCat("state for unknown bucket ", state.id.bucket));
  }
  BucketRun& run = *bucket->run;
  if (!run.wants_shared()) return absl::OkStatus();  // repeated after a resume
  const std::size_t bytes = payload == nullptr ? 0 : payload->bytes();
  if (state.offset == 0) run.ForgetShared();
  if (state.bytes != run.shared_bytes() || state.offset != run.shared_received() ||
      bytes > state.bytes - state.offset) {
    return Violation(absl::StrCat("bytes ", state.offset, " to ", state.offset + bytes, " of ",
                                  state.bytes, " as the state of bucket ", state.id.bucket,
                                  ", which has ", run.shared_received(), " of ",
                                  run.shared_bytes()));
  }
  return run.TakeShared(payload);
}

// Results must come in order: chunk `received` of the current round. Earlier ones may repeat.
absl::Status StepProtocol::CheckResult(const Bucket& bucket, const wire::Result& result,
                                       const wire::Payload* payload) const {
  const BucketRun& run = *bucket.run;
  if (result.id.round > run.round() || result.chunk > run.received() ||
      result.chunk >= run.layout().chunk_count()) {
    return Violation(absl::StrCat("result ", result.chunk, " of bucket ", result.id.bucket,
                                  " round ", result.id.round, " out of order"));
  }
  if (result.chunk < run.received() || (result.in_place && payload == nullptr)) {
    return absl::OkStatus();
  }
  const std::size_t bytes = payload == nullptr ? 0 : payload->bytes();
  if (payload == nullptr || bytes != run.layout().ChunkBytes(result.chunk)) {
    return Violation(absl::StrCat("result ", result.chunk, " of bucket ", result.id.bucket,
                                  " with ", bytes, " bytes"));
  }
  return absl::OkStatus();
}

// After a resume the coordinator repeats what was not acknowledged, since the acknowledgement may
// have been lost; it is acknowledged again, and never decoded twice.
absl::Status StepProtocol::On(const wire::Result& result, const wire::Payload* payload,
                              Effects& effects) {
  const auto acknowledge = [&](std::uint32_t received) {
    effects.push_back(SendFrameEffect{wire::Ack{.id = result.id, .received = received}});
    return absl::OkStatus();
  };
  if (result.id.step < step_.number()) return acknowledge(result.chunk + 1);
  Bucket* const bucket = Find(result.id);
  if (bucket == nullptr) {
    return Violation(absl::StrCat("a result for unknown bucket ", result.id.bucket));
  }
  BucketRun& run = *bucket->run;
  if (run.holds_result() || result.id.round < run.round()) return acknowledge(result.chunk + 1);
  if (absl::Status status = CheckResult(*bucket, result, payload); !status.ok()) return status;
  if (result.chunk < run.received()) return acknowledge(run.received());
  const absl::Status taken =
      payload == nullptr ? run.TakeResultInPlace() : run.TakeResult(*payload);
  bucket->overwritten = true;
  return taken.ok() ? OnTaken(*bucket, result.id, effects) : taken;
}

// The next contribution carries the acknowledgement; that of an eager bucket travels in the next
// announcement. A separate Ack is sent only if no such frame follows while others wait for it: for
// their windows, or for this bucket's place among the granted ones.
absl::Status StepProtocol::OnTaken(Bucket& bucket, const wire::RoundId& id, Effects& effects) {
  BucketRun& run = *bucket.run;
  const auto acknowledge = [&] {
    effects.push_back(SendFrameEffect{wire::Ack{.id = id, .received = run.received()}});
  };
  if (!run.is_round_complete()) {
    // No contribution follows that could carry it, and members without results in place wait for
    // the window.
    if ((bucket.ahead && !run.has_unsent()) || run.options().missed) {
      acknowledge();
    } else {
      SendChunks(bucket, effects);
    }
    return absl::OkStatus();
  }
  const bool is_another_open = step_.unfinished() > 1;
  // Others may have further shares that wait for this one's place, where this member has none.
  // Nor does a bucket that it misses come with an announcement.
  const bool at_once =
      (has_shares_ && !IsActive(Mutant::kShareNotAcknowledged)) || step_.missed().any();
  if (!eager_.IsOpen(run.id()) || is_another_open || at_once) {
    eager_.Forget(run.id());
    acknowledge();
  }
  return Advance(bucket, effects);
}

absl::Status StepProtocol::Advance(Bucket& bucket, Effects& effects) {
  if (absl::Status status = step_.Advance(*bucket.run, context(), effects); !status.ok()) {
    return status;
  }
  if (bucket.run->holds_result()) {
    eager_.Finish(bucket.run->id());
    return absl::OkStatus();
  }
  bucket.attempt = attempt_;
  SendChunks(bucket, effects);
  return absl::OkStatus();
}

absl::Status StepProtocol::On(const wire::Restart& restart, Effects& effects) {
  // A shard has not heard yet that this step was concluded.
  if (options_.has_shards() && restart.step < step_.number()) return absl::OkStatus();
  // Another member has told the shard so before the lead told this one.
  if (options_.shard > 0 && restart.step == step_.number() + 1 && restart.open.empty()) {
    next_attempt_ = restart.attempt;
    return absl::OkStatus();
  }
  if (restart.step != step_.number()) {
    return Violation(absl::StrCat("a restart of step ", restart.step));
  }
  // Rounds that open later use the step's attempt, whatever that of the open ones is.
  attempt_ = restart.attempt;
  for (const wire::RoundId& id : restart.open) {
    const auto found = buckets_.find(id.bucket);
    if (found == buckets_.end() || found->second.run->holds_result()) continue;
    Bucket& bucket = found->second;
    BucketRun& run = *bucket.run;
    if (id.round != run.round()) {
      return Violation(absl::StrCat("a restart of round ", id.round, " of bucket ", id.bucket));
    }
    // An unchanged attempt continues: if this member resumed, Resumed has rewound the run to the
    // first chunk without a result.
    if (id.attempt != bucket.attempt) {
      // There is one result per round: once a chunk of it is released, the round cannot start over.
      if (run.received() > 0) {
        return Violation(
            absl::StrCat("a restart of bucket ", id.bucket, ", of which results are here"));
      }
      bucket.attempt = id.attempt;
      run.Rewind();
    }
    bucket.granted = true;
    SendChunks(bucket, effects);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> StepProtocol::On(const wire::StepDone& done) {
  if (done.step < step_.number()) return false;  // repeated after a resume
  if (done.step > step_.number() || (!step_.holds_results() && !done.dropped)) {
    return Violation(absl::StrCat("the end of step ", done.step, " before its last result"));
  }
  return true;
}

// Announces all buckets again, because the daemon may have missed some. Eager buckets now wait for
// a Restart or a Grant like the others. No bucket may be sent ahead of the window any more, because
// the shared memory of the old stream is gone.
void StepProtocol::Resumed(Effects& effects) {
  eager_.Stop();
  sending_.clear();
  draw_plan_.Send(effects);
  if (parameters_) TellParameters(*parameters_, effects);
  for (auto& [id, bucket] : buckets_) {
    if (bucket.run->options().missed) {
      PromiseNotToAnnounce(id, effects);
      continue;
    }
    bucket.granted = false;
    bucket.ahead = false;
    bucket.run->Rewind();
    effects.push_back(SendFrameEffect{AnnounceOf(*bucket.run)});
  }
  if (step_.ended()) EndStep(effects);
}

void StepProtocol::BeginAnew() {
  unanswered_.clear();
  attempt_ = next_attempt_ = 0;
  draw_plan_.SetGeneration(options_.generation);
  sending_.clear();
  for (auto& [id, bucket] : buckets_) {
    bucket.attempt = 0;
    bucket.granted = false;
  }
}

absl::StatusOr<bool> StepProtocol::ReduceAgain(bool all, Effects& effects) {
  bool any = false;
  for (auto& [id, bucket] : buckets_) {
    if (!(bucket.overwritten || all) || !step_.IsKept(id)) continue;
    const absl::StatusOr<BucketRun*> run = step_.StartAgain(id, context());
    if (!run.ok()) return run.status();
    bucket = {.run = *run};
    any = true;
    if (!(*run)->holds_result() && !(*run)->is_round_complete()) continue;
    // Nothing to reduce, at least in the first round.
    absl::Status advanced = step_.Advance(**run, context(), effects);
    if (!advanced.ok()) return advanced;
  }
  return any;
}

// A bucket without elements has its result as soon as it begins, and nothing of it is overwritten.
bool StepProtocol::MayHaveResults() const {
  return std::any_of(buckets_.begin(), buckets_.end(),
                     [](const auto& one) { return one.second.overwritten; });
}

void StepProtocol::Forget() {
  buckets_.clear();
  unanswered_.clear();
  sending_.clear();
  eager_.EndStep();
  draw_plan_.StepDone(step_.number());
  parameters_.reset();
  attempt_ = std::exchange(next_attempt_, 0);
  contributed_ = false;
}

}  // namespace gradwire::client
