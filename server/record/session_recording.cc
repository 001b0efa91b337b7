#include "server/record/session_recording.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/wire/proto_conversion.h"
#include "server/core/step.h"
#include "server/core/step_digests.h"

namespace gradwire::server {
namespace {

std::shared_ptr<const std::string> ModelRecord(const Manifest& manifest) {
  v1::RecordedModel model;
  for (const ParameterSpec& parameter : manifest) {
    *model.add_manifest() = wire::ToProto(parameter);
  }
  return std::make_shared<const std::string>(model.SerializeAsString());
}

std::size_t BytesOf(const ReduceEffect& effect) {
  std::size_t bytes = 0;
  for (const wire::PayloadRef& input : effect.inputs)
    bytes += input == nullptr ? 0 : input->bytes();
  return bytes;
}

std::unique_ptr<std::byte[]> CopyOf(const ReduceEffect& effect, std::size_t bytes) {
  auto copy = std::make_unique_for_overwrite<std::byte[]>(bytes);
  std::byte* to = copy.get();
  for (const wire::PayloadRef& input : effect.inputs) {
    if (input == nullptr) continue;
    for (const std::span<const std::byte>& piece : input->pieces()) {
      if (piece.empty()) continue;
      std::memcpy(to, piece.data(), piece.size());
      to += piece.size();
    }
  }
  return copy;
}

}  // namespace

SessionRecording::SessionRecording(const SessionOptions& options, std::shared_ptr<RecordSink> sink)
    : options_(options),
      folder_(FolderOf(options)),
      sink_(std::move(sink)),
      model_(ModelRecord(options.manifest)) {}

SessionRecording::~SessionRecording() {
  if (open_ != nullptr) sink_->Drop(open_->ticket);
  if (has_begun_) sink_->EndSession(folder_);
}

// A session's name has no character that a path could not have, and the lineage stays when another
// daemon takes the session over. SessionOfFolder reads it.
std::string SessionRecording::FolderOf(const SessionOptions& options) {
  const std::string shard =
      options.shard.count() == 1
          ? ""
          : absl::StrCat(".shard", options.shard.number, "of", options.shard.count());
  return absl::StrFormat("%s-%016x%s", options.name, options.lineage, shard);
}

void SessionRecording::Add(RecordKind kind, const google::protobuf::MessageLite& head) const {
  sink_->Add(open_->ticket,
             {.kind = kind, .head = std::make_shared<const std::string>(head.SerializeAsString())});
}

SessionRecording::Open& SessionRecording::OpenStep(const SessionCore& core, std::int64_t step) {
  if (open_ != nullptr && open_->step == step) return *open_;
  if (open_ != nullptr) sink_->Drop(open_->ticket);
  if (!std::exchange(has_begun_, true)) sink_->BeginSession(folder_);
  open_ = std::make_unique<Open>();
  open_->step = step;
  open_->ticket = sink_->Begin(folder_, step);
  const Step& progress = core.progress();
  skipped_ = progress.flow().stats().steps_skipped;
  v1::RecordedStep head;
  head.set_version(kRecordVersion);
  head.set_session(options_.name);
  head.set_generation(options_.generation);
  head.set_lineage(options_.lineage);
  head.set_step(step);
  head.set_world_size(options_.world_size);
  *head.mutable_hook() = wire::ToProto(options_.spec);
  head.set_chunk_bytes(options_.chunk_bytes);
  head.set_shard(options_.shard.number);
  head.set_shards(options_.shard.count());
  if (progress.agreement().leads()) head.set_chain_before(progress.digests().Before(step));
  Add(RecordKind::kStep, head);
  sink_->Add(open_->ticket, {.kind = RecordKind::kModel, .head = model_});
  return *open_;
}

// The first member's announcement counts; those of others must be the same, or end the session, and
// the step with it.
void SessionRecording::OnFrame(const wire::Header& header, const SessionCore& core) {
  const auto* const announce = std::get_if<wire::Announce>(&header);
  if (announce == nullptr || announce->parameters.empty()) return;
  if (announce->step != core.step() || core.state() != SessionState::kRunning) return;
  Open& open = OpenStep(core, announce->step);
  const std::uint32_t id = announce->parameters.front();
  if (!open.buckets.insert(id).second) return;
  v1::RecordedBucket bucket;
  *bucket.mutable_announce() = wire::ToProto(wire::Header(*announce)).announce();
  const Slice slice = options_.shard.SliceOf(id);
  bucket.set_part(slice.part);
  bucket.set_parts(slice.parts);
  Add(RecordKind::kBucket, bucket);
}

void SessionRecording::OnResult(const ResultEffect& result) {
  const auto& [id, chunk] = std::pair(result.header.id, result.header.chunk);
  if (open_ == nullptr || id.step != open_->step) return;
  std::uint32_t& released = open_->released[{id.bucket, id.round}];
  if (chunk != released) return;
  ++released;
  v1::RecordedResult& recorded = *open_->end.add_results();
  recorded.set_bucket(id.bucket);
  recorded.set_round(id.round);
  recorded.set_chunk(chunk);
  recorded.set_digest(result.result->digest());
}

// Prepared has the digest of this daemon's results, if members are asked before the step is
// concluded; otherwise StepDone has it.
void SessionRecording::OnFanOut(const FanOutEffect& fan_out) {
  if (open_ == nullptr) return;
  v1::RecordedEnd& end = open_->end;
  if (const auto* prepared = std::get_if<wire::Prepared>(&fan_out.frame.header)) {
    if (prepared->step == open_->step) end.set_own_digest(prepared->digest);
  } else if (const auto* done = std::get_if<wire::StepDone>(&fan_out.frame.header)) {
    if (done->step != open_->step) return;
    end.set_digest(done->digest);
    end.set_reason(done->reason);
    if (end.own_digest() == 0) end.set_own_digest(done->digest);
  }
}

v1::RecordedReduction SessionRecording::HeadOf(const ReduceEffect& effect,
                                               const SessionCore& core) const {
  v1::RecordedReduction head;
  head.mutable_id()->set_step(effect.id.step);
  head.mutable_id()->set_attempt(effect.id.attempt);
  head.mutable_id()->set_bucket(effect.id.bucket);
  head.mutable_id()->set_round(effect.id.round);
  head.set_chunk(effect.chunk);
  head.set_weight(effect.weight);
  const BucketTable::Buckets& buckets = core.progress().buckets().all();
  if (const auto found = buckets.find({effect.id.step, effect.id.bucket}); found != buckets.end()) {
    const Contributors& contributors = found->second.contributors();
    for (std::size_t rank = 0; rank < contributors.world_size(); ++rank) {
      if (contributors.has(rank)) head.add_ranks(static_cast<std::int32_t>(rank));
    }
  }
  if (effect.raw.is_raw.empty()) return head;
  head.mutable_raw()->Add(effect.raw.is_raw.begin(), effect.raw.is_raw.end());
  head.set_raw_dtype(static_cast<v1::DataType>(effect.raw.dtype));
  head.set_raw_divisor(effect.raw.divisor);
  return head;
}

// Of a shard that does not lead, members have said how the step ends, and no effect has it.
void SessionRecording::Conclude(const SessionCore& core) {
  const Step& progress = core.progress();
  v1::RecordedEnd& end = open_->end;
  const bool skipped = progress.flow().stats().steps_skipped > skipped_;
  end.set_verdict(skipped ? v1::STEP_VERDICT_SKIP : v1::STEP_VERDICT_APPLY);
  if (progress.agreement().leads()) end.set_chain(progress.digests().Before(open_->step + 1));
  Add(RecordKind::kEnd, end);
  sink_->End(open_->ticket);
  open_.reset();
}

std::shared_ptr<const RecordedReductions> SessionRecording::OnEffects(const Effects& effects,
                                                                      const SessionCore& core) {
  for (const Effect& effect : effects) {
    if (const auto* result = std::get_if<ResultEffect>(&effect)) OnResult(*result);
    if (const auto* fan_out = std::get_if<FanOutEffect>(&effect)) OnFanOut(*fan_out);
  }
  if (open_ != nullptr && core.step() == open_->step + 1) Conclude(core);
  std::shared_ptr<RecordedReductions> reductions;
  for (const Effect& effect : effects) {
    const auto* reduce = std::get_if<ReduceEffect>(&effect);
    if (reduce == nullptr) continue;
    if (reductions == nullptr) reductions = std::make_shared<RecordedReductions>();
    if (open_ != nullptr) reductions->ticket = open_->ticket;
    reductions->heads.push_back(HeadOf(*reduce, core));
  }
  return reductions;
}

void SessionRecording::Keep(const RecordedReductions& reductions,
                            const std::vector<ReduceEffect>& effects) const {
  for (std::size_t i = 0; i < effects.size(); ++i) {
    const std::size_t bytes = BytesOf(effects[i]);
    auto head = std::make_shared<const std::string>(reductions.heads[i].SerializeAsString());
    if (!sink_->HasRoom(reductions.ticket, head->size() + bytes)) return;
    sink_->Add(reductions.ticket, {.kind = RecordKind::kReduction,
                                   .head = std::move(head),
                                   .payload = CopyOf(effects[i], bytes),
                                   .payload_bytes = bytes});
  }
}

}  // namespace gradwire::server
