// The step protocol: announcements, grants, contributions, results, commit.
#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/session.h"

namespace gradwire::server {
namespace {

std::string PlanText(const std::vector<RoundPlan>& plans) {
  std::string text;
  for (const RoundPlan& plan : plans) {
    absl::StrAppend(&text, "{");
    for (const Segment& segment : plan.segments) {
      absl::StrAppend(&text, segment.numel, " ", Name(segment.dtype),
                      segment.op == ReduceOp::kMean ? " mean" : " sum", ";");
    }
    absl::StrAppend(&text, "}");
  }
  return text.empty() ? "none" : text;
}

}  // namespace

absl::StatusOr<std::vector<RoundPlan>> Session::CheckedPlan(const wire::Announce& announce) const {
  if (hook_ != nullptr) {
    absl::StatusOr<std::vector<RoundPlan>> plan = hook_->Plan(announce.parameters);
    if (plan.ok() && *plan != announce.rounds) {
      return absl::InvalidArgumentError(
          absl::StrCat("announced rounds ", PlanText(announce.rounds), " for bucket ",
                       BucketName(announce.parameters), "; hook ", options_.spec.ToString(),
                       " has ", PlanText(*plan)));
    }
    return plan;
  }
  std::size_t gradient_bytes = 0;
  for (const std::uint32_t p : announce.parameters) {
    gradient_bytes += options_.manifest[p].numel() * ByteSize(options_.manifest[p].dtype);
  }
  if (announce.rounds.size() > kMaxRounds) {
    return absl::InvalidArgumentError(absl::StrCat(
        "announced ", announce.rounds.size(), " rounds; at most ", kMaxRounds, " are allowed"));
  }
  const std::size_t limit = kMaxBytesPerGradientByte * gradient_bytes + kExtraRoundBytes;
  const std::size_t most_segments =
      kMaxSegmentsPerParameter * announce.parameters.size() + kExtraSegments;
  for (const RoundPlan& plan : announce.rounds) {
    if (plan.segments.size() > most_segments) {
      return absl::InvalidArgumentError(absl::StrCat(
          "announced a round of ", plan.segments.size(), " segments for bucket ",
          BucketName(announce.parameters), "; at most ", most_segments, " are allowed"));
    }
    std::size_t bytes = 0;
    for (const Segment& segment : plan.segments) {
      if (segment.numel > limit) {
        bytes = limit + 1;
        break;
      }
      bytes += segment.bytes();
      // A matrix is gathered whole from every member, whatever the window.
      for (const MatrixShape& matrix : segment.matrices) {
        const std::size_t matrix_bytes = matrix.numel() * ByteSize(segment.dtype);
        if (matrix_bytes <= options_.chunk_bytes) continue;
        return absl::ResourceExhaustedError(absl::StrCat(
            "announced a matrix of ", matrix_bytes, " bytes for bucket ",
            BucketName(announce.parameters), "; at most ", options_.chunk_bytes, " are allowed"));
      }
    }
    if (bytes > limit) {
      return absl::ResourceExhaustedError(
          absl::StrCat("announced a round of more than ", limit, " bytes for bucket ",
                       BucketName(announce.parameters), ", whose gradients have ", gradient_bytes));
    }
  }
  return announce.rounds;
}

absl::Status Session::CheckOwnership(const wire::Announce& announce) const {
  if (announce.parameters.empty()) return absl::InvalidArgumentError("announced an empty bucket");
  std::vector<std::uint32_t> sorted = announce.parameters;
  std::sort(sorted.begin(), sorted.end());
  if (sorted.back() >= options_.manifest.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "announced parameter ", sorted.back(), "; the manifest has ", options_.manifest.size()));
  }
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "announced bucket ", BucketName(announce.parameters), " with a parameter twice"));
  }
  const std::uint32_t id = announce.parameters.front();
  for (std::uint32_t p : announce.parameters) {
    if (!owner_[p] || *owner_[p] == id) continue;
    const Bucket& other = buckets_.at({step_, *owner_[p]});
    return absl::InvalidArgumentError(
        absl::StrCat("announced bucket ", BucketName(announce.parameters), " in step ", step_,
                     ", but parameter ", options_.manifest[p].name, " is in bucket ",
                     BucketName(other.parameters), " already"));
  }
  const auto found = buckets_.find({step_, id});
  if (found == buckets_.end()) return absl::OkStatus();
  if (found->second.parameters != announce.parameters) {
    return absl::InvalidArgumentError(
        absl::StrCat("announced bucket ", BucketName(announce.parameters), " in step ", step_,
                     "; another member's is ", BucketName(found->second.parameters)));
  }
  if (found->second.plans != announce.rounds) {
    return absl::InvalidArgumentError(absl::StrCat(
        "announced rounds ", PlanText(announce.rounds), " for bucket ",
        BucketName(announce.parameters), "; another member's are ", PlanText(found->second.plans)));
  }
  return absl::OkStatus();
}

void Session::OnAnnounce(int rank, const wire::Announce& announce, const wire::PayloadRef& payload,
                         absl::Time now, Effects& effects) {
  if (!IsActive(Mutant::kGenerationNotCompared) && announce.generation != options_.generation) {
    return Violation(rank,
                     absl::InvalidArgumentError(
                         absl::StrCat("announced a bucket of generation ", announce.generation,
                                      "; this session is generation ", options_.generation)),
                     effects);
  }
  if (announce.step == step_ - 1) return;  // sent before a resume told it that the step is done
  if (announce.step != step_) {
    return Violation(
        rank,
        absl::FailedPreconditionError(absl::StrCat("announced a bucket of step ", announce.step,
                                                   "; the session is at step ", step_)),
        effects);
  }
  AcknowledgeEarlierSteps(rank);
  for (const std::uint32_t id : announce.acknowledged) {
    const auto done = buckets_.find({step_, id});
    if (done != buckets_.end() && done->second.reduced) AcknowledgeAll(rank, done->second);
  }
  if (absl::Status status = CheckOwnership(announce); !status.ok()) {
    return Violation(rank, status, effects);
  }
  const std::uint32_t id = announce.parameters.front();
  auto found = buckets_.find({step_, id});
  if (found != buckets_.end() && found->second.announced[Index(rank)])
    return;  // a resume repeats it
  if (members_[Index(rank)].ended_step) {
    return Violation(
        rank,
        absl::FailedPreconditionError(absl::StrCat(
            "announced bucket ", BucketName(announce.parameters), " after it ended step ", step_)),
        effects);
  }
  for (int r = 0; r < options_.world_size; ++r) {
    if (members_[Index(r)].state != MemberState::kLeft) continue;
    return Fail(absl::AbortedError(absl::StrCat("rank ", rank, " began step ", step_, ", but rank ",
                                                r, " has left the session")),
                r, effects);
  }
  if (found == buckets_.end()) {
    absl::StatusOr<std::vector<RoundPlan>> plans = CheckedPlan(announce);
    if (!plans.ok()) return Violation(rank, plans.status(), effects);
    Bucket bucket{.step = step_, .parameters = announce.parameters, .plans = *std::move(plans)};
    bucket.announced.resize(members_.size());
    bucket.granted.resize(members_.size());
    bucket.eager.resize(members_.size());
    bucket.order = next_order_++;
    if (hook_ != nullptr) bucket.epoch = hook_->SharedVersion(bucket.parameters);
    for (std::uint32_t p : bucket.parameters) owner_[p] = id;
    found = buckets_.emplace(BucketKey{step_, id}, std::move(bucket)).first;
    if (!found->second.plans.empty()) BeginRound(found->second);
  }
  if (!step_began_) step_began_ = now;
  Bucket& bucket = found->second;
  bucket.announced[Index(rank)] = true;
  members_[Index(rank)].reset_sent = false;
  if (!CheckEnded(effects)) return;
  if (announce.eager) {
    if (absl::Status status = CheckEager(rank, announce, bucket, payload); !status.ok()) {
      return Violation(rank, status, effects);
    }
  }
  // Of an earlier attempt it counts as an announcement only.
  if (announce.eager && announce.attempt == bucket.rounds.back().attempt) {
    TakeEager(rank, bucket, announce, payload, effects);
    if (state_ != State::kRunning) return;
  } else if (bucket.open) {
    SendGrant(bucket, rank, effects);
  }
  Advance(bucket);  // one without elements is over now
  GrantBuckets(effects);
  MaybeCommit(effects);
}

absl::Status Session::CheckEager(int rank, const wire::Announce& announce, const Bucket& bucket,
                                 const wire::PayloadRef& payload) const {
  const std::string where =
      absl::StrCat("bucket ", BucketName(announce.parameters), " in step ", step_);
  if (bucket.plans.size() != 1 || bucket.rounds.back().layout.chunk_count() != 1 ||
      bucket.epoch != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "announced ", where, " eagerly; allowed: one round of one chunk without shared state"));
  }
  const std::size_t expected = bucket.rounds.back().layout.ChunkBytes(0);
  const std::size_t got = payload == nullptr ? 0 : payload->bytes();
  if (got != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("announced ", where, " eagerly with ", got, " bytes; it has ", expected));
  }
  if (announce.attempt > bucket.rounds.back().attempt) {
    return absl::FailedPreconditionError(absl::StrCat("announced ", where, " eagerly in attempt ",
                                                      announce.attempt, "; it is in attempt ",
                                                      bucket.rounds.back().attempt));
  }
  const std::size_t before = members_[Index(rank)].eager_bytes;
  if (expected > options_.eager_bytes - before) {
    return absl::FailedPreconditionError(
        absl::StrCat("announced ", where, " eagerly with ", expected, " bytes after ", before,
                     " without results; allowed: ", options_.eager_bytes, " together"));
  }
  return absl::OkStatus();
}

// The announcement brings the only chunk; there will be no grant.
void Session::TakeEager(int rank, Bucket& bucket, const wire::Announce& announce,
                        const wire::PayloadRef& payload, Effects& effects) {
  bucket.granted[Index(rank)] = true;
  bucket.eager[Index(rank)] = payload->bytes();
  members_[Index(rank)].eager_bytes += payload->bytes();
  Store(rank, bucket, {.id = CurrentId(bucket), .rank = rank, .digest = announce.digest}, payload,
        effects);
}

bool Session::AllGranted(const Bucket& bucket) {
  return std::all_of(bucket.granted.begin(), bucket.granted.end(), [](bool one) { return one; });
}

bool Session::WaitsForGrant(const Bucket& bucket) {
  for (std::size_t r = 0; r < bucket.granted.size(); ++r) {
    if (bucket.announced[r] && !bucket.granted[r]) return true;
  }
  return false;
}

// Both sides pass over rounds without elements at once, so that they agree which round is open.
void Session::BeginRound(Bucket& bucket) {
  while (true) {
    Round round{.attempt = attempt_,
                .layout = wire::ChunkLayout(bucket.plans[bucket.round], options_.chunk_bytes)};
    round.chunks.resize(round.layout.chunk_count());
    round.received.resize(members_.size());
    bucket.rounds.push_back(std::move(round));
    if (!bucket.rounds.back().finished() || bucket.round + 1 == bucket.plans.size()) return;
    ++bucket.round;
  }
}

wire::RoundId Session::CurrentId(const Bucket& bucket) const {
  return {.step = bucket.step,
          .attempt = bucket.rounds.back().attempt,
          .bucket = bucket.parameters.front(),
          .round = bucket.round};
}

void Session::SendGrant(Bucket& bucket, int rank, Effects& effects) {
  if (bucket.granted[Index(rank)]) return;
  bucket.granted[Index(rank)] = true;
  if (members_[Index(rank)].state != MemberState::kConnected) return;  // its Restart will say so
  SendShared(bucket, rank, effects);
  effects.push_back(
      SendEffect{.rank = rank, .frame = {.header = wire::Grant{.id = CurrentId(bucket)}}});
}

void Session::GrantBuckets(Effects& effects) {
  CloseAcknowledged();
  std::vector<Bucket*> waiting;
  std::size_t open = 0;
  for (auto& [key, bucket] : buckets_) {
    if (bucket.open) {
      ++open;
    } else if (!bucket.reduced && !bucket.rounds.empty() && !bucket.rounds.back().finished() &&
               WaitsForGrant(bucket)) {
      waiting.push_back(&bucket);
    }
  }
  std::sort(waiting.begin(), waiting.end(),
            [](const Bucket* a, const Bucket* b) { return a->order < b->order; });
  if (IsActive(
          Mutant::kCreditDeadlock)) {  // each member its own oldest bucket, as a naive server would
    for (std::size_t r = 0; r < members_.size(); ++r) {
      const auto busy = std::any_of(waiting.begin(), waiting.end(),
                                    [r](const Bucket* bucket) { return bucket->granted[r]; });
      for (Bucket* bucket : waiting) {
        if (!busy && bucket->announced[r]) {
          SendGrant(*bucket, static_cast<int>(r), effects);
          break;
        }
      }
    }
    return;
  }
  for (Bucket* bucket : waiting) {
    if (open >= options_.open_buckets) break;
    bucket->open = true;
    for (int r = 0; r < options_.world_size; ++r) {
      if (bucket->announced[Index(r)]) SendGrant(*bucket, r, effects);
    }
    ++open;
  }
}

bool Session::Acknowledged(const Bucket& bucket) const {
  if (!bucket.reduced) return false;
  return std::all_of(bucket.rounds.begin(), bucket.rounds.end(), [this](const Round& round) {
    for (std::size_t r = 0; r < members_.size(); ++r) {
      if (members_[r].state != MemberState::kLeft && round.received[r] < round.reduced)
        return false;
    }
    return true;
  });
}

void Session::CloseAcknowledged() {
  for (auto it = buckets_.begin(); it != buckets_.end();) {
    Bucket& bucket = it->second;
    if (!Acknowledged(bucket)) {
      ++it;
      continue;
    }
    bucket.open = false;
    DropAcknowledged(bucket);
    it = bucket.step < step_ ? buckets_.erase(it) : std::next(it);
  }
}

void Session::OnEndStep(int rank, const wire::EndStep& end, absl::Time now, Effects& effects) {
  if (!IsActive(Mutant::kGenerationNotCompared) && end.generation != options_.generation) {
    return Violation(
        rank,
        absl::InvalidArgumentError(absl::StrCat("ended a step of generation ", end.generation,
                                                "; this session is ", options_.generation)),
        effects);
  }
  if (end.step == step_ - 1) return;
  if (end.step != step_) {
    return Violation(rank,
                     absl::FailedPreconditionError(
                         absl::StrCat("ended step ", end.step, "; the session is at step ", step_)),
                     effects);
  }
  for (int r = 0; r < options_.world_size; ++r) {
    if (members_[Index(r)].state != MemberState::kLeft) continue;
    return Fail(absl::AbortedError(absl::StrCat("rank ", rank, " ended step ", step_, ", but rank ",
                                                r, " has left the session")),
                r, effects);
  }
  AcknowledgeEarlierSteps(rank);
  if (!step_began_) step_began_ = now;
  members_[Index(rank)].ended_step = true;
  members_[Index(rank)].reset_sent = false;
  if (CheckEnded(effects)) MaybeCommit(effects);
}

// A member that ended the step must have announced every bucket of it.
bool Session::CheckEnded(Effects& effects) {
  for (int r = 0; r < options_.world_size; ++r) {
    if (!members_[Index(r)].ended_step) continue;
    for (const auto& [key, bucket] : buckets_) {
      if (bucket.step != step_ || bucket.announced[Index(r)]) continue;
      Violation(r,
                absl::FailedPreconditionError(absl::StrCat("ended step ", step_, " without bucket ",
                                                           BucketName(bucket.parameters),
                                                           ", which another member announced")),
                effects);
      return false;
    }
  }
  return true;
}

bool Session::CompleteForCommit(const Bucket& bucket) const {
  if (bucket.reduced) return true;
  if (!IsActive(Mutant::kCommitAnnouncedEarly)) return false;
  if (bucket.rounds.empty() || bucket.round + 1 != bucket.plans.size()) return false;
  const auto& chunks = bucket.rounds.back().chunks;
  return std::all_of(chunks.begin(), chunks.end(),
                     [](const Chunk& chunk) { return chunk.reducing; });
}

void Session::MaybeCommit(Effects& effects) {
  if (state_ != State::kRunning || !step_began_) return;
  std::size_t parameters = 0;
  for (const auto& [key, bucket] : buckets_) {
    if (bucket.step != step_) continue;
    if (!CompleteForCommit(bucket)) return;
    parameters += bucket.parameters.size();
  }
  const bool all_reduced = !options_.manifest.empty() && parameters == options_.manifest.size();
  const bool all_ended = std::all_of(members_.begin(), members_.end(),
                                     [](const Member& member) { return member.ended_step; });
  if (all_reduced || all_ended) Commit(effects);
}

void Session::Commit(Effects& effects) {
  std::uint64_t digest = CombineDigests(options_.lineage, static_cast<std::uint64_t>(step_));
  for (const auto& [key, bucket] : buckets_) {
    if (bucket.step == step_) digest = CombineDigests(digest, bucket.digest);
  }
  last_done_ = wire::StepDone{.step = step_,
                              .attempt = attempt_,
                              .verdict = nonfinite_ ? Verdict::kSkip : Verdict::kApply,
                              .digest = digest};
  FanOut(*last_done_, nullptr, effects);
  if (hook_ != nullptr) {
    hook_->EndStep(IsActive(Mutant::kCoordinatorCommitsSkips) ? Verdict::kApply
                                                              : last_done_->verdict);
    if (const auto chore = hook_->TakeChore()) chore->Run();
  }
  std::erase_if(reports_, [this](const auto& entry) {
    return !buckets_.contains({step_, entry.first});
  });
  if (last_done_->verdict == Verdict::kApply) LogCompression(effects);
  ++(nonfinite_ ? stats_.steps_skipped : stats_.steps_applied);
  ++step_;
  attempt_ = 0;
  nonfinite_ = false;
  step_began_.reset();
  std::fill(owner_.begin(), owner_.end(), std::nullopt);
  for (Member& member : members_) member.ended_step = false;
  CloseAcknowledged();
}

// To each member the rounds that it was granted. One whose announcement is still on its way gets a
// grant, and before it the shared state, without which it cannot encode.
void Session::SendRestarts(Effects& effects) {
  for (int r : ReachableRanks()) {
    wire::Restart restart{.step = step_, .attempt = attempt_};
    for (const auto& [key, bucket] : buckets_) {
      if (bucket.step != step_ || bucket.reduced) continue;
      if (bucket.granted[Index(r)]) restart.open.push_back(CurrentId(bucket));
    }
    effects.push_back(SendEffect{.rank = r, .frame = {.header = std::move(restart)}});
  }
}

void Session::Resume(int rank, std::int64_t member_step, Effects& effects) {
  effects.push_back(LogEffect{.message = absl::StrCat("rank ", rank, " resumed in step ", step_)});
  ++attempt_;
  for (auto& [key, bucket] : buckets_) {
    if (bucket.step != step_ || bucket.reduced || bucket.rounds.empty()) continue;
    if (bucket.rounds.back().goes_on()) continue;
    bucket.rounds.pop_back();
    BeginRound(bucket);
  }
  const auto send = [&](wire::Header header, wire::PayloadRef payload) {
    effects.push_back(SendEffect{
        .rank = rank, .frame = {.header = std::move(header), .payload = std::move(payload)}});
  };
  send(wire::Welcome{.step = member_step, .attempt = attempt_, .resumed = true}, nullptr);
  for (auto& [key, bucket] : buckets_) {
    for (std::size_t r = 0; r < bucket.rounds.size(); ++r) {
      Round& round = bucket.rounds[r];
      // Its StepDone came after them.
      if (bucket.step < member_step) Acknowledge(rank, bucket, round, round.reduced);
      for (std::uint32_t c = round.received[Index(rank)]; c < round.reduced; ++c) {
        SendResult({rank}, bucket, static_cast<std::uint32_t>(r), c, effects);
      }
    }
  }
  if (member_step < step_ && last_done_) send(*last_done_, nullptr);
  if (members_[Index(rank)].reset_sent) {
    send(wire::StateReset{.iteration = hook_->iteration()}, nullptr);
  }
  for (auto& [key, bucket] : buckets_) {
    if (bucket.step == step_ && bucket.open && !bucket.reduced && bucket.granted[Index(rank)] &&
        !IsActive(Mutant::kSharedStateNotResumed)) {
      SendShared(bucket, rank, effects);
    }
  }
  SendRestarts(effects);
  std::vector<Collectives::Send> sends;
  collectives_.Resume(rank, sends);
  for (Collectives::Send& again : sends) {
    effects.push_back(
        FanOutEffect{.ranks = std::move(again.ranks), .frame = std::move(again.frame)});
  }
  GrantBuckets(effects);
}

}  // namespace gradwire::server
