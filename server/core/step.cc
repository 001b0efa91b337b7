#include "server/core/step.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/mutants.h"
#include "server/core/contribution_checks.h"
#include "server/core/plan_checks.h"
#include "server/core/step_digests.h"

namespace gradwire::server {
Step::Step(const SessionOptions& options, const Membership& membership, CoordinatorHook* hook)
    : options_(options),
      membership_(membership),
      hook_(hook),
      parameters_(options.shard.ParametersOf(options.manifest.size())),
      common_(std::make_shared<const Bucket::Common>(
          Bucket::Common{.manifest = options.manifest,
                         .chunk_bytes = options.chunk_bytes,
                         .window_chunks = options.window_chunks})),
      chores_(hook),
      shared_(hook, options.manifest, Index(options.world_size), options.chunk_bytes),
      flow_(options, membership, hook, shared_, gate_),
      table_(options.manifest, options.open_buckets, options.shard),
      groups_(options, membership),
      agreement_(options.shard.number, options.shard.count(), options.world_size,
                 options.leaf.is_leaf()),
      own_state_(hook, options.chunk_bytes),
      digests_(std::make_unique<StepDigests>()),
      reports_(options.manifest),
      blame_(hook),
      records_{.ledger = Ledger(options.LedgerRows()), .late = LateMembers(options)},
      ended_(Index(options.world_size)) {}

Step::~Step() = default;

// ---- Announcements

MaybeFailure Step::OnAnnounce(int rank, const wire::Announce& announce,
                              const wire::PayloadRef& payload, absl::Time now, Effects& effects) {
  if (announce.step == number_ - 1) return std::nullopt;  // sent before it heard the step is done
  if (announce.step != number_) {
    return ViolationOf(rank, absl::FailedPreconditionError(
                                 absl::StrCat("announced a bucket of step ", announce.step,
                                              "; the session is at step ", number_)));
  }
  // `acknowledged` lists eager buckets of this step; those of earlier steps are implied.
  AcknowledgeEarlierSteps(rank);
  for (const std::uint32_t id : announce.acknowledged) {
    Bucket* const done = table_.Find(number_, id);
    if (done != nullptr && done->reduced()) flow_.AcknowledgeAll(rank, *done);
  }
  absl::Status valid = table_.CheckAnnouncement(announce);
  if (valid.ok()) valid = groups_.CheckShare(rank, announce);
  if (!valid.ok()) return ViolationOf(rank, std::move(valid));
  // After the checks above the bucket is new or equal to what others announced.
  const Bucket* const known = table_.Find(number_, announce.parameters.front());
  if (known != nullptr && known->IsAnnouncedBy(rank)) return std::nullopt;  // a resume repeats it
  if (HasEnded(rank)) {
    return ViolationOf(rank,
                       absl::FailedPreconditionError(absl::StrCat(
                           "announced bucket ", options_.manifest.BucketName(announce.parameters),
                           " after it ended step ", number_)));
  }
  if (const std::optional<int> gone = membership_.FirstLeft()) {
    return LeftBeforeEnd(*gone, absl::StrCat("step ", number_));
  }
  if (rank == lead_) FixDrawPlan();
  if (known == nullptr) {
    if (absl::Status status = AddBucket(announce); !status.ok()) {
      return ViolationOf(rank, std::move(status));
    }
  }
  Begin(rank, now);
  return TakeAnnouncement(rank, announce, payload, effects);
}

// What rank 0 sends goes in order: a plan that it sent before its first bucket of the step is here,
// and one that comes later would change the draw or not, as chance has it. Where the session goes
// on without rank 0, no plan can come, and the lowest rank fixes the one that is there.
void Step::FixDrawPlan() {
  if (hook_ == nullptr) return;
  hook_->FixDrawPlan();
  if (!std::exchange(awaits_draw_plan_, false)) return;
  for (auto& [key, bucket] : table_.all()) {
    if (bucket.awaits_draw_plan()) bucket.set_state_version(shared_.Place(bucket.parameters()));
  }
}

absl::Status Step::AddBucket(const wire::Announce& announce) {
  if (absl::Status status = CheckPlan(announce, hook_, options_); !status.ok()) return status;
  Bucket bucket(common_, groups_.groups().contributors(announce.share),
                {.step = number_,
                 .parameters = announce.parameters,
                 .plans = announce.rounds,
                 .share = announce.share,
                 .slice = options_.shard.SliceOf(announce.parameters.front()),
                 .order = next_order_++,
                 .state_version = shared_.Place(announce.parameters)},
                attempt_);
  chunks_ += bucket.ChunkCount();
  if (chunks_ > options_.StepChunks()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("announced bucket ", bucket.name(), ", with which step ", number_, " has ",
                     chunks_, " chunks; at most ", options_.StepChunks(), " are allowed"));
  }
  awaits_draw_plan_ |= bucket.awaits_draw_plan();
  table_.Add(std::move(bucket));
  return absl::OkStatus();
}

MaybeFailure Step::TakeAnnouncement(int rank, const wire::Announce& announce,
                                    const wire::PayloadRef& payload, Effects& effects) {
  Bucket& bucket = *table_.Find(number_, announce.parameters.front());
  bucket.Announce(rank);
  if (MaybeFailure failure = CheckEnded()) return failure;
  if (announce.eager) {
    absl::Status status = CheckEager(announce, bucket, payload, flow_.eager_bytes(rank), options_);
    if (!status.ok()) return ViolationOf(rank, std::move(status));
  }
  // Of an earlier attempt it counts as an announcement only.
  if (announce.eager && announce.attempt == bucket.round().attempt()) {
    if (auto failure = flow_.ContributeEagerly(rank, bucket, announce, payload, effects)) {
      return failure;
    }
  } else if (bucket.is_open()) {
    SendGrant(bucket, rank, effects);
  }
  TellMissed(bucket, effects);
  Advance(bucket, effects);  // one without elements is over now
  GrantNext(effects);
  MaybeConclude(effects);
  return std::nullopt;
}

// ---- Grants

void Step::SendGrant(Bucket& bucket, int rank, Effects& effects) {
  if (bucket.IsGrantedTo(rank)) return;
  if (bucket.IsMissedBy(rank)) return GrantResults(bucket, rank, effects);
  if (membership_.state(rank) != MemberState::kConnected) {
    bucket.Grant(rank);  // its Restart will say so
    return;
  }
  if (!shared_.Send(bucket, rank, effects)) return;
  bucket.Grant(rank);
  effects.push_back(
      SendEffect{.rank = rank, .frame = {.header = wire::Grant{.id = bucket.CurrentId()}}});
}

void Step::GrantNext(Effects& effects) {
  DropHeld(effects);
  if (gate_.shut() && !IsActive(Mutant::kPausedStepGranted)) return;
  for (const BucketTable::Granted& one : table_.OpenNext()) {
    SendGrant(*one.bucket, one.rank, effects);
  }
}

void Step::OnComputed(const wire::RoundId& id, SharedStateWork& work, Effects& effects) {
  Bucket* const bucket = table_.Find(id.step, id.bucket);
  if (bucket == nullptr || !bucket->is_computing()) return;
  shared_.SetComputed(*bucket, work.TakeBytes());
  for (const int rank : bucket->Missed()) SendGrant(*bucket, rank, effects);
  if (!bucket->Missed().empty()) MaybeConclude(effects);
  if (bucket->step() != number_ || bucket->reduced()) return;
  for (int r = 0; r < options_.world_size; ++r) {
    if (bucket->IsAnnouncedBy(r)) SendGrant(*bucket, r, effects);
  }
}

// ---- Node groups

MaybeFailure Step::OnGroupBucket(int rank, const wire::GroupBucket& bucket, absl::Time now,
                                 Effects& effects) {
  if (bucket.step == number_ - 1) return std::nullopt;  // a resume repeats it
  if (bucket.step != number_) {
    return ViolationOf(
        rank, absl::FailedPreconditionError(absl::StrCat("has a bucket of step ", bucket.step,
                                                         "; the session is at step ", number_)));
  }
  if (const std::optional<int> gone = membership_.FirstLeft()) {
    return LeftBeforeEnd(*gone, absl::StrCat("step ", number_));
  }
  AcknowledgeEarlierSteps(rank);
  if (rank == lead_) FixDrawPlan();  // it may have no share of its own to announce
  if (absl::Status status = groups_.OnBucket(rank, bucket, effects); !status.ok()) {
    return ViolationOf(rank, std::move(status));
  }
  Begin(rank, now);
  return CheckEnded();
}

void Step::Begin(int rank, absl::Time now) {
  if (!began_) began_ = now;
  records_.late.Observe(now);
  shared_.BeginsStep(rank);
}

// ---- Contributions and results

Bucket* Step::CurrentBucket(int rank, const wire::Contribution& header, MaybeFailure& failure) {
  const wire::RoundId& id = header.id;
  if (id.step == number_ - 1) {  // repeated after a resume; the original made it
    flow_.CountRepeated();
    return nullptr;
  }
  const auto violation = [&](const std::string& what) {
    failure = ViolationOf(rank, absl::FailedPreconditionError(what));
    return nullptr;
  };
  if (id.step != number_) {
    return violation(
        absl::StrCat("sent a chunk of step ", id.step, "; the session is at step ", number_));
  }
  Bucket* const bucket = table_.Find(id.step, id.bucket);
  if (bucket == nullptr || !bucket->IsAnnouncedBy(rank) || bucket->IsMissedBy(rank) ||
      !bucket->has_rounds() || id.round > bucket->round_number()) {
    return violation(absl::StrCat("sent a chunk of step ", id.step, " bucket ", id.bucket,
                                  " round ", id.round, ", which is not open"));
  }
  const std::uint32_t attempt = bucket->round().attempt();
  const bool stale_attempt = id.attempt < attempt && !IsActive(Mutant::kAttemptNotCompared);
  if (id.round < bucket->round_number() || stale_attempt) {
    flow_.CountRepeated();
    return nullptr;
  }
  if (id.attempt > attempt) {
    return violation(absl::StrCat("sent a chunk of attempt ", id.attempt,
                                  "; the round is in attempt ", attempt));
  }
  return bucket;
}

MaybeFailure Step::OnContribution(int rank, const wire::Contribution& header,
                                  const wire::PayloadRef& payload, Effects& effects) {
  if (header.rank != rank) {
    return ViolationOf(
        rank, absl::PermissionDeniedError(absl::StrCat("sent a chunk as rank ", header.rank)));
  }
  MaybeFailure failure;
  Bucket* const bucket = CurrentBucket(rank, header, failure);
  if (bucket == nullptr) return failure;
  failure = flow_.Acknowledge(rank, *bucket, header.id, header.received, effects);
  if (failure) return failure;
  return flow_.Contribute(rank, *bucket, header, payload, effects);
}

MaybeFailure Step::OnAck(int rank, const wire::Ack& ack, Effects& effects) {
  Bucket* const bucket = table_.Find(ack.id.step, ack.id.bucket);
  if (bucket != nullptr) OnMissed(*bucket, rank, effects);
  if (bucket != nullptr && ack.id.round < bucket->rounds().size()) {
    auto failure = flow_.Acknowledge(rank, *bucket, ack.id, ack.received, effects);
    if (failure) return failure;
  }
  GrantNext(effects);
  MaybeConclude(effects);
  return std::nullopt;
}

void Step::OnReduced(const wire::RoundId& id, std::uint32_t chunk, const ResultRef& result,
                     const ReduceOutcome& outcome, absl::Duration spent, Effects& effects) {
  Bucket* const bucket = table_.Find(id.step, id.bucket);
  // It may have started over meanwhile.
  if (bucket == nullptr || !bucket->has_rounds() || bucket->reduced() ||
      bucket->CurrentId() != id) {
    return;
  }
  blame_.Note(*bucket, chunk, outcome);
  flow_.Reduced(*bucket, chunk, result, spent, effects);
  Advance(*bucket, effects);
  GrantNext(effects);
  MaybeConclude(effects);
}

void Step::Advance(Bucket& bucket, Effects& effects) {
  if (bucket.reduced() || gate_.shut()) return;
  bucket.Advance(attempt_);
  if (!bucket.reduced()) return;
  groups_.OnReduced(bucket.parameters(), effects);
  TellUpstream(bucket, effects);
}

// A member that acts in this step has received the StepDone of earlier steps, and StepDone follows
// all results.
void Step::AcknowledgeEarlierSteps(int rank) {
  for (auto& [key, bucket] : table_.all()) {
    if (bucket.step() < number_) flow_.AcknowledgeAll(rank, bucket);
  }
}

}  // namespace gradwire::server
