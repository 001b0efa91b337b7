#include "client/core/member.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gradwire::client {

Member::Member(MemberOptions options, Hook* hook)
    : options_(std::move(options)),
      hook_(hook),
      step_(options_.step),
      used_(options_.manifest.size()) {
  for (std::size_t i = 0; i < options_.manifest.size(); ++i) {
    positions_.emplace(options_.manifest[i].name, static_cast<std::uint32_t>(i));
  }
}

Member::~Member() = default;

RoundContext Member::Context() const {
  return {.world_size = options_.world_size, .rank = options_.rank, .attempt = attempt_};
}

wire::RoundId Member::IdOf(std::uint32_t id, const Bucket& bucket) const {
  return {.step = step_, .attempt = bucket.attempt, .bucket = id, .round = bucket.round};
}

absl::Status Member::MapParameters(const GradBucket& bucket,
                                   std::vector<std::uint32_t>& positions) const {
  if (bucket.parameters().empty()) {
    return absl::InvalidArgumentError("the bucket has no parameters");
  }
  std::vector<bool> here(used_.size());
  for (const ParameterSpec& parameter : bucket.parameters()) {
    const auto found = positions_.find(parameter.name);
    if (found == positions_.end()) {
      return absl::InvalidArgumentError(absl::StrCat("parameter ", parameter.name,
                                                     " is not among the session's ",
                                                     options_.manifest.size(), " parameters"));
    }
    if (parameter != options_.manifest[found->second]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "parameter ", parameter.name, " has another shape or dtype than it had at Join"));
    }
    if (used_[found->second] || here[found->second]) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter ", parameter.name, " is in step ", step_, " already"));
    }
    here[found->second] = true;
    positions.push_back(found->second);
  }
  return absl::OkStatus();
}

std::optional<std::uint32_t> Member::BucketId(const GradBucket& bucket) const {
  if (bucket.parameters().empty()) return std::nullopt;
  const auto found = positions_.find(bucket.parameters().front().name);
  return found == positions_.end() ? std::nullopt : std::optional(found->second);
}

absl::Status Member::StartBucket(Ticket ticket, GradBucket& bucket, Effects& effects,
                                 bool measure) {
  if (failed()) return failure_;
  if (ended_) {
    return absl::FailedPreconditionError(absl::StrCat("step ", step_, " was ended by this member"));
  }
  Bucket entry{.ticket = ticket};
  if (absl::Status status = MapParameters(bucket, entry.parameters); !status.ok()) return status;
  absl::StatusOr<std::vector<RoundPlan>> plans = hook_->Plan(bucket.parameters(), step_);
  if (!plans.ok()) return plans.status();
  entry.plans = *std::move(plans);
  absl::StatusOr<std::unique_ptr<HookRun>> run = hook_->Start(bucket, step_);
  if (!run.ok()) return run.status();
  entry.run = *std::move(run);
  if (measure) entry.run->Measure();
  absl::StatusOr<std::optional<RoundPlan>> first = entry.run->Next(Context());
  if (!first.ok()) return first.status();
  if (first->has_value() != !entry.plans.empty() ||
      (first->has_value() && **first != entry.plans.front())) {
    return absl::InternalError("the hook's first round is not the one that it planned");
  }
  entry.done = !first->has_value();
  entry.attempt = attempt_;
  if (!entry.done) entry.layout = wire::ChunkLayout(entry.plans.front(), options_.chunk_bytes);
  const bool is_first_empty = !entry.done && entry.layout.chunk_count() == 0;
  for (std::uint32_t p : entry.parameters) used_[p] = true;

  const std::uint32_t id = entry.parameters.front();
  Bucket& placed = buckets_.emplace(id, std::move(entry)).first->second;
  if (MayBeEager(placed)) {
    SendEager(placed, effects);
    return absl::OkStatus();
  }
  SendAnnounce(placed, effects);
  if (placed.done) Done(placed, effects);
  if (is_first_empty) {
    if (absl::Status status = AdvanceRound(placed, effects); !status.ok()) Fail(status, effects);
  }
  return absl::OkStatus();
}

absl::Status Member::EndStep(Effects& effects) {
  if (failed()) return failure_;
  if (ended_)
    return absl::FailedPreconditionError(absl::StrCat("step ", step_, " was ended before"));
  ended_ = true;
  effects.push_back(SendEffect{wire::EndStep{.step = step_, .generation = options_.generation}});
  return absl::OkStatus();
}

void Member::Receive(const wire::Frame& frame, Effects& effects) {
  if (failed()) return;
  if (const auto* result = std::get_if<wire::Result>(&frame.header)) {
    OnResult(*result, frame.payload, effects);
  } else if (const auto* grant = std::get_if<wire::Grant>(&frame.header)) {
    OnGrant(*grant, effects);
  } else if (const auto* done = std::get_if<wire::StepDone>(&frame.header)) {
    OnStepDone(*done, effects);
  } else if (const auto* failure = std::get_if<wire::Failure>(&frame.header)) {
    const bool known = failure->code > 0 && failure->code <= 16;
    Fail(absl::Status(
             known ? static_cast<absl::StatusCode>(failure->code) : absl::StatusCode::kUnknown,
             failure->message),
         effects);
  } else if (const auto* restart = std::get_if<wire::Restart>(&frame.header)) {
    OnRestart(*restart, effects);
  } else if (std::holds_alternative<wire::Welcome>(frame.header)) {
    // The first one may be that of a resume, if the stream broke before it came.
    if (!std::exchange(welcomed_, true)) effects.push_back(WelcomeEffect{});
  } else if (const auto* state = std::get_if<wire::SharedState>(&frame.header)) {
    OnSharedState(*state, frame.payload, effects);
  } else if (const auto* reset = std::get_if<wire::StateReset>(&frame.header)) {
    OnStateReset(*reset, effects);
  } else if (const auto* begin = std::get_if<wire::Begin>(&frame.header)) {
    OnBegin(*begin, effects);
  } else if (const auto* chunk = std::get_if<wire::CollectiveChunk>(&frame.header)) {
    OnCollectiveChunk(*chunk, frame.payload, effects);
  } else if (const auto* ack = std::get_if<wire::CollectiveAck>(&frame.header)) {
    OnCollectiveAck(*ack, effects);
  } else if (!std::holds_alternative<wire::Heartbeat>(frame.header)) {
    ProtocolError("a frame that only a member may send", effects);
  }
}

void Member::ProtocolError(const std::string& what, Effects& effects) {
  Fail(absl::InternalError(absl::StrCat("the coordinator sent ", what, " in step ", step_)),
       effects);
}

void Member::OnGrant(const wire::Grant& grant, Effects& effects) {
  if (grant.id.step < step_) return;
  const auto found = buckets_.find(grant.id.bucket);
  if (grant.id.step > step_ || found == buckets_.end()) {
    return ProtocolError(absl::StrCat("a grant for unknown bucket ", grant.id.bucket), effects);
  }
  Bucket& bucket = found->second;
  if (bucket.done || grant.id.round != bucket.round) return;
  // An eager announcement that met another attempt has its grant after all.
  if (bucket.granted && (bucket.received > 0 || grant.id.attempt <= bucket.attempt)) return;
  if (bucket.granted) bucket.sent = 0;
  eager_bytes_ -= std::exchange(bucket.eager_bytes, 0);
  bucket.granted = true;
  bucket.attempt = grant.id.attempt;
  SendChunks(grant.id.bucket, bucket, effects);
}

void Member::OnSharedState(const wire::SharedState& state, const wire::PayloadRef& payload,
                           Effects& effects) {
  if (state.id.step < step_) return;
  const auto found = buckets_.find(state.id.bucket);
  if (state.id.step > step_ || found == buckets_.end()) {
    return ProtocolError(absl::StrCat("state for unknown bucket ", state.id.bucket), effects);
  }
  Bucket& bucket = found->second;
  if (bucket.has_shared || bucket.done || bucket.round > 0) return;  // repeated after a resume
  const std::size_t bytes = payload == nullptr ? 0 : payload->bytes();
  if (state.offset == 0) bucket.shared.clear();
  if (state.bytes != bucket.run->shared_bytes() || state.offset != bucket.shared.size() ||
      bytes > state.bytes - state.offset) {
    return ProtocolError(
        absl::StrCat("bytes ", state.offset, " to ", state.offset + bytes, " of ", state.bytes,
                     " as the state of bucket ", state.id.bucket, ", which has ",
                     bucket.shared.size(), " of ", bucket.run->shared_bytes()),
        effects);
  }
  if (payload != nullptr) {
    for (const auto& piece : payload->pieces()) {
      bucket.shared.insert(bucket.shared.end(), piece.begin(), piece.end());
    }
  }
  if (bucket.shared.size() < state.bytes) return;
  bucket.has_shared = true;
  const std::vector<std::byte> whole = std::move(bucket.shared);
  if (absl::Status status = bucket.run->Import(whole); !status.ok()) Fail(status, effects);
}

void Member::OnStateReset(const wire::StateReset& reset, Effects& effects) {
  const std::pair<std::int64_t, std::int64_t> place(step_, reset.iteration);
  if (!buckets_.empty()) {
    if (last_reset_ == place) return;  // repeated after a resume
    return ProtocolError("a new state in the middle", effects);
  }
  last_reset_ = place;
  hook_->Reset(reset.iteration);
}

void Member::OnResult(const wire::Result& result, const wire::PayloadRef& payload,
                      Effects& effects) {
  const auto acknowledge = [&](std::uint32_t received) {
    effects.push_back(SendEffect{wire::Ack{.id = result.id, .received = received}});
  };
  if (result.id.step < step_) return acknowledge(result.chunk + 1);  // repeated after a resume
  const auto found = buckets_.find(result.id.bucket);
  if (result.id.step > step_ || found == buckets_.end()) {
    return ProtocolError(absl::StrCat("a result for unknown bucket ", result.id.bucket), effects);
  }
  Bucket& bucket = found->second;
  if (bucket.done || result.id.round < bucket.round) return acknowledge(result.chunk + 1);
  if (result.id.round > bucket.round || result.chunk > bucket.received ||
      result.chunk >= bucket.layout.chunk_count()) {
    return ProtocolError(absl::StrCat("result ", result.chunk, " of bucket ", result.id.bucket,
                                      " round ", result.id.round, " out of order"),
                         effects);
  }
  if (result.chunk < bucket.received) return acknowledge(bucket.received);
  const bool decoded = result.in_place && payload == nullptr;
  if (!decoded &&
      (payload == nullptr || payload->bytes() != bucket.layout.ChunkBytes(result.chunk))) {
    return ProtocolError(
        absl::StrCat("result ", result.chunk, " of bucket ", result.id.bucket, " with ",
                     payload == nullptr ? 0 : payload->bytes(), " bytes"),
        effects);
  }
  const absl::Status taken = decoded ? bucket.run->DecodeInPlace(bucket.layout.Range(result.chunk))
                                     : Decode(bucket, result, *payload);
  if (!taken.ok()) return Fail(taken, effects);
  ++bucket.received;
  bucket.sent = std::max(bucket.sent, bucket.received);  // after a resume: it was sent before
  if (bucket.received < bucket.layout.chunk_count()) {
    if (bucket.sent == bucket.layout.chunk_count() && bucket.ahead) {
      return acknowledge(bucket.received);  // others' windows may wait for it
    }
    return SendChunks(result.id.bucket, bucket, effects);  // carries the acknowledgement
  }
  if (bucket.eager_bytes == 0 || IsAnotherOpen(bucket)) {
    // It may be what the other one's grant waits for.
    eager_bytes_ -= std::exchange(bucket.eager_bytes, 0);
    acknowledge(bucket.received);
  }
  if (absl::Status status = AdvanceRound(bucket, effects); !status.ok()) Fail(status, effects);
}

absl::Status Member::Decode(Bucket& bucket, const wire::Result& result,
                            const wire::Payload& payload) {
  ElementRange rest = bucket.layout.Range(result.chunk);
  const std::size_t width = ByteSize(bucket.layout.segment(result.chunk).dtype);
  std::array<std::byte, 8> straddling{};
  std::size_t held = 0;
  const auto decode = [&](std::span<const std::byte> bytes) {
    ElementRange range = rest;
    range.end = range.begin + bytes.size() / width;
    rest.begin = range.end;
    return bucket.run->Decode(range, bytes);
  };
  for (std::span<const std::byte> piece : payload.pieces()) {
    if (held > 0) {
      const std::size_t take = std::min(width - held, piece.size());
      std::memcpy(straddling.data() + held, piece.data(), take);
      held += take;
      piece = piece.subspan(take);
      if (held < width) continue;
      held = 0;
      if (absl::Status status = decode(std::span(straddling).first(width)); !status.ok())
        return status;
    }
    const std::size_t whole = piece.size() / width * width;
    if (whole > 0) {
      if (absl::Status status = decode(piece.first(whole)); !status.ok()) return status;
    }
    held = piece.size() - whole;
    std::memcpy(straddling.data(), piece.data() + whole, held);
  }
  return absl::OkStatus();
}

absl::Status Member::AdvanceRound(Bucket& bucket, Effects& effects) {
  do {
    absl::StatusOr<std::optional<RoundPlan>> next = bucket.run->Next(Context());
    if (!next.ok()) return next.status();
    if (!next->has_value()) {
      if (IsActive(Mutant::kStateTouchedBeforeCommit)) bucket.run->Commit();
      Done(bucket, effects);
      return absl::OkStatus();
    }
    ++bucket.round;
    if (bucket.round >= bucket.plans.size() || **next != bucket.plans[bucket.round]) {
      return absl::InternalError("the hook's round is not the one that it planned");
    }
    bucket.layout = wire::ChunkLayout(**next, options_.chunk_bytes);
    bucket.attempt = attempt_;
    bucket.sent = 0;
    bucket.received = 0;
  } while (bucket.layout.chunk_count() == 0);
  SendChunks(bucket.parameters.front(), bucket, effects);
  return absl::OkStatus();
}

void Member::Done(Bucket& bucket, Effects& effects) {
  bucket.done = true;
  FinishEager(bucket);
  effects.push_back(BucketDoneEffect{.ticket = bucket.ticket,
                                     .status = absl::OkStatus(),
                                     .bucket = bucket.parameters.front(),
                                     .norms = bucket.run->norms()});
}

void Member::OnStepDone(const wire::StepDone& done, Effects& effects) {
  if (done.step < step_) return;  // repeated after a resume
  const bool complete = std::all_of(buckets_.begin(), buckets_.end(),
                                    [](const auto& entry) { return entry.second.done; });
  if (done.step > step_ || !complete) {
    return ProtocolError(absl::StrCat("the end of step ", done.step, " before its last result"),
                         effects);
  }
  for (auto& [id, bucket] : buckets_) {
    if (done.verdict == Verdict::kApply) {
      if (!IsActive(Mutant::kStateTouchedBeforeCommit)) bucket.run->Commit();
    } else {
      bucket.run->Abort();
    }
  }
  buckets_.clear();
  sending_.clear();
  hook_->EndStep(done.verdict);
  // The next step's first frame acknowledges all of this one.
  eager_done_.clear();
  eager_bytes_ = eager_done_bytes_ = 0;
  eager_stopped_ = false;
  std::fill(used_.begin(), used_.end(), false);
  ended_ = false;
  attempt_ = 0;
  effects.push_back(StepDoneEffect{.step = step_, .verdict = done.verdict});
  ++step_;
}

void Member::OnRestart(const wire::Restart& restart, Effects& effects) {
  if (restart.step != step_) {
    return ProtocolError(absl::StrCat("a restart of step ", restart.step), effects);
  }
  attempt_ = restart.attempt;
  for (const wire::RoundId& id : restart.open) {
    const auto found = buckets_.find(id.bucket);
    if (found == buckets_.end() || found->second.done) continue;
    Bucket& bucket = found->second;
    if (id.round != bucket.round) {
      return ProtocolError(absl::StrCat("a restart of round ", id.round, " of bucket ", id.bucket),
                           effects);
    }
    if (id.attempt != bucket.attempt) {
      if (bucket.received > 0) {
        return ProtocolError(
            absl::StrCat("a restart of bucket ", id.bucket, ", of which results are here"),
            effects);
      }
      bucket.attempt = id.attempt;
      bucket.sent = 0;
    }
    bucket.granted = true;
    SendChunks(id.bucket, bucket, effects);
  }
}

// What went eagerly may have been lost: now it waits for a Restart or a grant, like the rest. How
// much of it the coordinator has is not known, so that nothing else goes eagerly in this step.
void Member::Resumed(Effects& effects) {
  eager_stopped_ = true;
  sending_.clear();
  for (auto& [id, bucket] : buckets_) {
    bucket.eager_bytes = 0;
    bucket.granted = false;
    bucket.ahead = false;
    bucket.sent = bucket.received;
    SendAnnounce(bucket, effects);
  }
  if (ended_) {
    effects.push_back(SendEffect{wire::EndStep{.step = step_, .generation = options_.generation}});
  }
  if (collective_) {
    collective_->begun = false;
    collective_->sent = collective_->everybody;
    effects.push_back(SendEffect{wire::Enter{.number = collective_->number,
                                             .generation = options_.generation,
                                             .kind = collective_->kind,
                                             .root = collective_->root,
                                             .bytes = collective_->bytes}});
  }
}

void Member::Fail(const absl::Status& status, Effects& effects) {
  if (failed()) return;
  failure_ = status;
  for (auto& [id, bucket] : buckets_) {
    bucket.run->Abort();
    if (!bucket.done)
      effects.push_back(BucketDoneEffect{.ticket = bucket.ticket, .status = status, .bucket = id});
  }
  buckets_.clear();
  sending_.clear();
  collective_.reset();
  effects.push_back(FailedEffect{.status = status});
}

std::string Member::Progress() const {
  for (const auto& [id, bucket] : buckets_) {
    if (bucket.done) continue;
    return absl::StrCat("step ", step_, ": bucket of ", options_.manifest[id].name, " has ",
                        bucket.received, " of ", bucket.layout.chunk_count(), " results, ",
                        bucket.granted ? "granted" : "not granted");
  }
  return absl::StrCat("step ", step_, ": no bucket is open here");
}

}  // namespace gradwire::client
