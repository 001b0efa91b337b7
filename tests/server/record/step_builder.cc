#include "tests/server/record/step_builder.h"

#include <cmath>
#include <span>
#include <utility>

#include "hooks/coordinator_hook.h"
#include "hooks/cpu/kernels.h"
#include "hooks/reduce.h"
#include "proto/wire/digest.h"
#include "proto/wire/proto_conversion.h"
#include "proto/wire/step_chain.h"

namespace gradwire::testing {
namespace {

constexpr std::uint64_t kChainBefore = 77;

ParameterSpec Parameter(std::size_t index, std::size_t numel, DType dtype) {
  const auto side = static_cast<std::int64_t>(std::sqrt(static_cast<double>(numel)));
  ParameterSpec spec{.name = "p" + std::to_string(index),
                     .shape = {static_cast<std::int64_t>(numel)},
                     .dtype = dtype};
  if (static_cast<std::size_t>(side * side) == numel) spec.shape = {side, side};
  return spec;
}

std::string Encoded(const std::vector<double>& values, DType dtype) {
  std::string bytes(values.size() * ByteSize(dtype), '\0');
  cpu::Convert(DType::kFloat64, values.data(), dtype, bytes.data(), values.size());
  return bytes;
}

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

std::uint64_t Draws::Next() {
  state_ += 0x9E3779B97F4A7C15ULL;
  std::uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

std::string RecordBytes(server::RecordKind kind, const std::string& head,
                        const std::string& payload) {
  const auto prefix = server::RecordPrefix(kind, head, BytesOf(payload));
  return std::string(reinterpret_cast<const char*>(prefix.data()), prefix.size()) + head + payload;
}

StepBuilder::StepBuilder(Options options) : options_(std::move(options)), draws_(options_.seed) {
  const HookSpec hook = *HookSpec::Parse(options_.hook);
  std::vector<ParameterSpec> manifest;
  wire::Announce announce;
  announce.step = options_.step;
  for (std::size_t i = 0; i < options_.parameters.size(); ++i) {
    manifest.push_back(Parameter(i, options_.parameters[i], options_.dtype));
    *model_.add_manifest() = wire::ToProto(manifest.back());
    announce.parameters.push_back(static_cast<std::uint32_t>(i));
  }
  announce.rounds = *(*MakeCoordinatorHook(hook, manifest))->Plan(announce.parameters);
  step_.set_version(server::kRecordVersion);
  step_.set_session("digits");
  step_.set_generation(5);
  step_.set_lineage(6);
  step_.set_step(options_.step);
  step_.set_world_size(options_.members);
  *step_.mutable_hook() = wire::ToProto(hook);
  step_.set_chunk_bytes(options_.chunk_bytes);
  step_.set_shards(1);
  step_.set_chain_before(kChainBefore);
  *bucket_.mutable_announce() = wire::ToProto(wire::Header(announce)).announce();
  bucket_.set_part(options_.slice.part);
  bucket_.set_parts(options_.slice.parts);
  end_.set_verdict(v1::STEP_VERDICT_APPLY);
  for (std::uint32_t round = 0; round < announce.rounds.size(); ++round) {
    const wire::ChunkLayout layout(announce.rounds[round], options_.chunk_bytes, options_.slice);
    for (std::uint32_t chunk = 0; chunk < layout.chunk_count();) {
      const wire::ChunkLayout::Unit unit = layout.UnitOf(chunk);
      AddReduction(round, layout, unit);
      chunk += unit.count;
    }
  }
  Conclude();
}

void StepBuilder::AddReduction(std::uint32_t round, const wire::ChunkLayout& layout,
                               const wire::ChunkLayout::Unit& unit) {
  const Segment segment = layout.UnitSegment(unit);
  const bool orthonormal = segment.op == ReduceOp::kOrthonormalizedSum;
  v1::RecordedReduction reduction;
  reduction.mutable_id()->set_step(options_.step);
  reduction.mutable_id()->set_round(round);
  reduction.set_chunk(unit.first);
  reduction.set_weight(options_.members);
  RawContributions raw;
  if (!options_.raw.empty() && !orthonormal) {
    raw.dtype = options_.dtype;
    raw.divisor = options_.members;
    raw.is_raw = options_.raw;
    reduction.mutable_raw()->Add(raw.is_raw.begin(), raw.is_raw.end());
    reduction.set_raw_dtype(static_cast<v1::DataType>(raw.dtype));
    reduction.set_raw_divisor(raw.divisor);
  }
  std::vector<std::string> inputs;
  for (int rank = 0; rank < options_.members; ++rank) {
    reduction.add_ranks(rank);
    std::vector<double> values(segment.numel);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = options_.number ? options_.number(rank, i) : draws_.Number();
    }
    const bool is_raw = raw.raw(static_cast<std::size_t>(rank));
    inputs.push_back(Encoded(values, is_raw ? raw.dtype : segment.dtype));
  }
  std::vector<std::span<const std::byte>> spans;
  for (const std::string& input : inputs) spans.push_back(BytesOf(input));
  std::vector<Pieces> pieces;
  for (const auto& span : spans) pieces.emplace_back(&span, 1);
  std::vector<std::byte> result(segment.bytes());
  const ReduceOutcome outcome = orthonormal ? ReduceOrthonormalized(segment, pieces, result)
                                            : Reduce(segment.dtype, segment.op, segment.numel,
                                                     pieces, result, raw, options_.members);
  if (!outcome.finite) end_.set_verdict(v1::STEP_VERDICT_SKIP);
  reductions_.push_back(std::move(reduction));
  payloads_.emplace_back();
  for (const std::string& input : inputs) payloads_.back() += input;
  std::span<const std::byte> rest(result);
  for (std::uint32_t i = 0; i < unit.count; ++i) {
    const auto bytes = rest.first(layout.ChunkBytes(unit.first + i));
    rest = rest.subspan(bytes.size());
    v1::RecordedResult& one = *end_.add_results();
    one.set_round(round);
    one.set_chunk(unit.first + i);
    one.set_digest(wire::DigestOf(bytes));
  }
}

void StepBuilder::Conclude() {
  std::uint64_t digest = 0;
  for (const v1::RecordedResult& result : end_.results()) {
    digest = wire::CombineDigests(digest, result.digest());
  }
  end_.set_own_digest(wire::CombineDigests(static_cast<std::uint64_t>(options_.step), digest));
  end_.set_digest(end_.own_digest());
  wire::StepDone done;
  done.step = options_.step;
  done.verdict = static_cast<Verdict>(end_.verdict());
  done.digest = end_.digest();
  wire::StepChain chain(options_.step, kChainBefore);
  chain.Advance(done);
  end_.set_chain(chain.Before(options_.step + 1));
}

std::string StepBuilder::File() const {
  using server::RecordKind;
  std::string file = server::kRecordMagic;
  file += RecordBytes(RecordKind::kStep, step_.SerializeAsString());
  file += RecordBytes(RecordKind::kModel, model_.SerializeAsString());
  file += RecordBytes(RecordKind::kBucket, bucket_.SerializeAsString());
  for (std::size_t i = 0; i < reductions_.size(); ++i) {
    file += RecordBytes(RecordKind::kReduction, reductions_[i].SerializeAsString(), payloads_[i]);
  }
  return file + RecordBytes(RecordKind::kEnd, end_.SerializeAsString());
}

}  // namespace gradwire::testing
