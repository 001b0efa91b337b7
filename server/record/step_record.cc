#include "server/record/step_record.h"

#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/v1/record.pb.h"
#include "proto/wire/checks.h"
#include "proto/wire/proto_conversion.h"

namespace gradwire::server {
namespace {

using wire::CheckRange;
using wire::NotAllowed;

constexpr std::size_t kLeastChunkBytes = 64;
constexpr std::uint64_t kMostChunks = std::uint64_t{1} << 31;  // of a round
constexpr double kMostWeight = 1 << 20;

absl::Status CheckDivisor(const std::string& field, double value) {
  if (std::isfinite(value) && value >= 1 && value <= kMostWeight) return absl::OkStatus();
  return NotAllowed(field, value, absl::StrCat("1 to ", kMostWeight));
}

// A layout counts its chunks in 32 bits.
absl::Status CheckChunks(const RoundPlan& plan, std::size_t chunk_bytes, const Slice& slice) {
  std::uint64_t chunks = 0;
  for (const Segment& segment : plan.segments) {
    chunks += segment.bytes() / chunk_bytes + 1 + segment.matrices.size();
    if (slice.parts > 1 && !segment.matrices.empty()) {
      return NotAllowed("parts", slice.parts, "1, because the bucket has matrices");
    }
  }
  return CheckRange("the round's chunks", chunks, std::uint64_t{0}, kMostChunks);
}

// Reads the records of one file, in order.
class StepReader {
 public:
  explicit StepReader(StepVisitor& visitor) : visitor_(visitor) {}

  absl::Status Take(const Record& record);
  absl::Status CheckComplete() const;

 private:
  absl::Status CheckOrder(RecordKind kind) const;
  absl::Status OnStep(const v1::RecordedStep& message);
  absl::Status OnModel(const v1::RecordedModel& message);
  absl::Status OnBucket(const v1::RecordedBucket& message);
  absl::Status OnReduction(const v1::RecordedReduction& message, const Record& record);
  absl::Status OnEnd(const v1::RecordedEnd& message);
  absl::StatusOr<RecordedReduction> Place(const v1::RecordedReduction& message) const;
  absl::Status SetRanks(const v1::RecordedReduction& message, RecordedReduction& reduction) const;
  static absl::Status SetRaw(const v1::RecordedReduction& message, RecordedReduction& reduction);

  template <class Message>
  absl::Status Parse(const Record& record, absl::Status (StepReader::*take)(const Message&)) {
    Message message;
    if (!message.ParseFromString(record.head)) {
      return absl::DataLossError(absl::StrCat("is no message ", Message::descriptor()->name()));
    }
    return (this->*take)(message);
  }

  StepVisitor& visitor_;
  std::optional<RecordedStep> step_;
  bool has_model_ = false;
  bool ended_ = false;
  Manifest manifest_;
  std::size_t chunk_bytes_ = 0;
  std::int64_t number_ = 0;
  int world_size_ = 0;
  std::map<std::uint32_t, RecordedBucket> buckets_;
  std::set<ResultId> reduced_;
};

absl::Status StepReader::CheckOrder(RecordKind kind) const {
  const bool first = !step_ && !has_model_;
  const RecordKind expected = first ? RecordKind::kStep : RecordKind::kModel;
  if (ended_) return absl::DataLossError("follows the end");
  if (!has_model_ && kind != expected) {
    return absl::DataLossError(
        absl::StrCat("is a ", Name(kind), "; allowed here: ", Name(expected)));
  }
  if (has_model_ && (kind < RecordKind::kBucket || kind > RecordKind::kEnd)) {
    return absl::DataLossError(
        absl::StrCat("is a ", Name(kind), "; allowed here: bucket, reduction and end"));
  }
  return absl::OkStatus();
}

absl::Status StepReader::Take(const Record& record) {
  if (absl::Status order = CheckOrder(record.kind); !order.ok()) return order;
  if (record.kind != RecordKind::kReduction && !record.payload.empty()) {
    return absl::DataLossError(
        absl::StrCat("has a payload of ", record.payload.size(), " bytes; allowed: none"));
  }
  switch (record.kind) {
    case RecordKind::kStep:
      return Parse(record, &StepReader::OnStep);
    case RecordKind::kModel:
      return Parse(record, &StepReader::OnModel);
    case RecordKind::kBucket:
      return Parse(record, &StepReader::OnBucket);
    case RecordKind::kReduction: {
      v1::RecordedReduction message;
      if (message.ParseFromString(record.head)) return OnReduction(message, record);
      return absl::DataLossError("is no message RecordedReduction");
    }
    case RecordKind::kEnd:
      return Parse(record, &StepReader::OnEnd);
  }
  return absl::DataLossError("is of no kind that is known");
}

absl::Status StepReader::CheckComplete() const {
  if (ended_) return absl::OkStatus();
  return absl::DataLossError("ends before the step does; the file is not complete");
}

absl::Status StepReader::OnStep(const v1::RecordedStep& message) {
  if (message.version() != kRecordVersion) {
    return NotAllowed("version", message.version(), absl::StrCat(kRecordVersion));
  }
  if (message.session().size() > kMaxSessionNameBytes) {
    return NotAllowed("the session's name", absl::StrCat(message.session().size(), " bytes"),
                      absl::StrCat("at most ", kMaxSessionNameBytes));
  }
  const absl::StatusOr<HookSpec> hook = wire::FromProto(message.hook());
  if (!hook.ok()) return hook.status();
  const std::uint64_t chunk_bytes = message.chunk_bytes();
  for (const absl::Status& status :
       {CheckRange("step", std::int64_t{message.step()}, std::int64_t{0}, INT64_MAX - 1),
        CheckRange("world_size", int{message.world_size()}, 1, kMaxWorldSize),
        CheckRange("chunk_bytes", std::size_t{chunk_bytes}, kLeastChunkBytes, kMaxChunkBytes),
        CheckRange("shards", message.shards(), std::uint32_t{1}, kMaxShards),
        CheckRange("shard", message.shard(), std::uint32_t{0}, message.shards() - 1)}) {
    if (!status.ok()) return status;
  }
  if (chunk_bytes % 8 != 0) return NotAllowed("chunk_bytes", chunk_bytes, "multiples of 8");
  number_ = message.step();
  world_size_ = message.world_size();
  chunk_bytes_ = static_cast<std::size_t>(chunk_bytes);
  step_ = RecordedStep{.session = message.session(),
                       .generation = message.generation(),
                       .lineage = message.lineage(),
                       .step = number_,
                       .world_size = world_size_,
                       .hook = *hook,
                       .manifest = {},
                       .chunk_bytes = chunk_bytes_,
                       .shard = message.shard(),
                       .shards = message.shards(),
                       .chain_before = message.chain_before()};
  return absl::OkStatus();
}

absl::Status StepReader::OnModel(const v1::RecordedModel& message) {
  absl::StatusOr<std::vector<ParameterSpec>> manifest = wire::FromProto(message.manifest());
  if (!manifest.ok()) return manifest.status();
  has_model_ = true;
  step_->manifest = manifest_ = *std::move(manifest);
  visitor_.OnStep(*std::exchange(step_, std::nullopt));
  return absl::OkStatus();
}

absl::Status StepReader::OnBucket(const v1::RecordedBucket& message) {
  v1::Header header;
  *header.mutable_announce() = message.announce();
  absl::StatusOr<wire::Header> checked = wire::FromProto(header);
  if (!checked.ok()) return checked.status();
  auto& announce = std::get<wire::Announce>(*checked);
  if (announce.step != number_) return NotAllowed("step", announce.step, absl::StrCat(number_));
  for (const std::uint32_t parameter : announce.parameters) {
    if (parameter < manifest_.size()) continue;
    return NotAllowed("parameters", parameter,
                      absl::StrCat("positions below ", manifest_.size(), ", the model's"));
  }
  RecordedBucket bucket{.id = announce.parameters.front(),
                        .parameters = std::move(announce.parameters),
                        .rounds = {},
                        .slice = {.part = message.part(), .parts = message.parts()}};
  for (const absl::Status& status :
       {CheckRange("parts", bucket.slice.parts, std::uint32_t{1}, kMaxShards),
        CheckRange("part", bucket.slice.part, std::uint32_t{0}, bucket.slice.parts - 1)}) {
    if (!status.ok()) return status;
  }
  for (const RoundPlan& plan : announce.rounds) {
    if (absl::Status chunks = CheckChunks(plan, chunk_bytes_, bucket.slice); !chunks.ok()) {
      return chunks;
    }
    bucket.rounds.emplace_back(plan, chunk_bytes_, bucket.slice);
  }
  const auto [at, is_new] = buckets_.emplace(bucket.id, std::move(bucket));
  if (!is_new) return absl::DataLossError(absl::StrCat("bucket ", at->first, " comes twice"));
  visitor_.OnBucket(at->second);
  return absl::OkStatus();
}

absl::StatusOr<RecordedReduction> StepReader::Place(const v1::RecordedReduction& message) const {
  RecordedReduction reduction{.id = {.step = message.id().step(),
                                     .attempt = message.id().attempt(),
                                     .bucket = message.id().bucket(),
                                     .round = message.id().round()},
                              .unit = {},
                              .segment = {},
                              .range = {},
                              .weight = message.weight(),
                              .ranks = {},
                              .raw = {},
                              .inputs = {}};
  if (reduction.id.step != number_) {
    return NotAllowed("id.step", reduction.id.step, absl::StrCat(number_));
  }
  const auto found = buckets_.find(reduction.id.bucket);
  if (found == buckets_.end()) {
    return NotAllowed("id.bucket", reduction.id.bucket, "buckets that were recorded before");
  }
  const std::vector<wire::ChunkLayout>& rounds = found->second.rounds;
  if (reduction.id.round >= rounds.size()) {
    return NotAllowed("id.round", reduction.id.round,
                      absl::StrCat("below ", rounds.size(), ", the bucket's rounds"));
  }
  const wire::ChunkLayout& layout = rounds[reduction.id.round];
  if (message.chunk() >= layout.chunk_count()) {
    return NotAllowed("chunk", message.chunk(),
                      absl::StrCat("below ", layout.chunk_count(), ", the round's chunks"));
  }
  reduction.unit = layout.UnitOf(message.chunk());
  if (reduction.unit.first != message.chunk()) {
    return NotAllowed("chunk", message.chunk(),
                      absl::StrCat(reduction.unit.first, ", where its matrix begins"));
  }
  reduction.segment = layout.UnitSegment(reduction.unit);
  reduction.range = layout.Range(reduction.unit.first);
  reduction.range.end = reduction.range.begin + reduction.segment.numel;
  return reduction;
}

absl::Status StepReader::SetRanks(const v1::RecordedReduction& message,
                                  RecordedReduction& reduction) const {
  if (message.ranks().empty()) return NotAllowed("ranks", "none", "1 or more");
  int before = -1;
  for (const std::int32_t rank : message.ranks()) {
    if (absl::Status good = CheckRange("ranks", int{rank}, before + 1, world_size_ - 1);
        !good.ok()) {
      return good;
    }
    reduction.ranks.push_back(rank);
    before = rank;
  }
  return CheckDivisor("weight", message.weight());
}

absl::Status StepReader::SetRaw(const v1::RecordedReduction& message,
                                RecordedReduction& reduction) {
  if (message.raw().empty()) return absl::OkStatus();
  if (message.raw_size() != message.ranks_size()) {
    return NotAllowed("raw", absl::StrCat(message.raw_size(), " entries"),
                      absl::StrCat(message.ranks_size(), ", as many as ranks"));
  }
  if (!IsDType(message.raw_dtype())) {
    return NotAllowed("raw_dtype", static_cast<int>(message.raw_dtype()), "1 to 4");
  }
  if (reduction.segment.op == ReduceOp::kOrthonormalizedSum) {
    return NotAllowed("raw", "set", "unset, because the sum is made orthonormal");
  }
  reduction.raw = {.dtype = static_cast<DType>(message.raw_dtype()),
                   .divisor = message.raw_divisor(),
                   .is_raw = {message.raw().begin(), message.raw().end()}};
  return CheckDivisor("raw_divisor", message.raw_divisor());
}

absl::Status StepReader::OnReduction(const v1::RecordedReduction& message, const Record& record) {
  absl::StatusOr<RecordedReduction> reduction = Place(message);
  if (!reduction.ok()) return reduction.status();
  if (absl::Status ranks = SetRanks(message, *reduction); !ranks.ok()) return ranks;
  if (absl::Status raw = SetRaw(message, *reduction); !raw.ok()) return raw;
  std::span<const std::byte> rest(record.payload);
  for (std::size_t i = 0; i < reduction->ranks.size(); ++i) {
    const DType dtype = reduction->raw.raw(i) ? reduction->raw.dtype : reduction->segment.dtype;
    const std::size_t bytes = reduction->segment.numel * ByteSize(dtype);
    if (bytes > rest.size()) {
      return absl::DataLossError(absl::StrCat("the payload has ", rest.size(),
                                              " bytes left for rank ", reduction->ranks[i],
                                              ", whose contribution has ", bytes));
    }
    reduction->inputs.push_back(rest.first(bytes));
    rest = rest.subspan(bytes);
  }
  if (!rest.empty()) {
    return absl::DataLossError(
        absl::StrCat("the payload has ", rest.size(), " bytes more than the contributions"));
  }
  const ResultId first{
      .bucket = message.id().bucket(), .round = message.id().round(), .chunk = message.chunk()};
  if (!reduced_.insert(first).second) return absl::DataLossError("comes twice");
  visitor_.OnReduction(*reduction);
  return absl::OkStatus();
}

absl::Status StepReader::OnEnd(const v1::RecordedEnd& message) {
  if (message.verdict() != v1::STEP_VERDICT_APPLY && message.verdict() != v1::STEP_VERDICT_SKIP) {
    return NotAllowed("verdict", static_cast<int>(message.verdict()), "1 and 2");
  }
  RecordedEnd end{.verdict = static_cast<Verdict>(message.verdict()),
                  .reason = message.reason(),
                  .own_digest = message.own_digest(),
                  .digest = message.digest(),
                  .chain = message.chain(),
                  .results = {}};
  end.results.reserve(static_cast<std::size_t>(message.results_size()));
  for (const v1::RecordedResult& result : message.results()) {
    end.results.push_back(
        {.id = {result.bucket(), result.round(), result.chunk()}, .digest = result.digest()});
  }
  ended_ = true;
  visitor_.OnEnd(end);
  return absl::OkStatus();
}

absl::Status InRecord(const absl::Status& status, std::size_t number,
                      const std::optional<RecordKind>& kind) {
  const std::string what = kind ? absl::StrCat(" (", Name(*kind), ")") : "";
  return {status.code(), absl::StrCat("record ", number, what, ": ", status.message())};
}

}  // namespace

std::vector<Pieces> RecordedReduction::pieces() const {
  std::vector<Pieces> all;
  all.reserve(inputs.size());
  for (const std::span<const std::byte>& input : inputs) all.emplace_back(&input, 1);
  return all;
}

absl::Status ReadStep(RecordSource& source, StepVisitor& visitor) {
  if (absl::Status magic = ReadMagic(source); !magic.ok()) return magic;
  StepReader reader(visitor);
  for (std::size_t number = 1;; ++number) {
    absl::StatusOr<std::optional<Record>> record = ReadRecord(source);
    if (!record.ok()) return InRecord(record.status(), number, std::nullopt);
    if (!record->has_value()) return reader.CheckComplete();
    if (absl::Status taken = reader.Take(**record); !taken.ok()) {
      return InRecord(taken, number, (*record)->kind);
    }
  }
}

}  // namespace gradwire::server
