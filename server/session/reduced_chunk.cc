#include "server/session/reduced_chunk.h"

#include <algorithm>
#include <utility>

#include "hooks/cpu/kernels.h"
#include "proto/wire/digest.h"
#include "proto/wire/memory_segment.h"

namespace gradwire::server {

namespace {

// Memory that is not zeroed first.
class HeapResult final : public wire::Payload {
 public:
  explicit HeapResult(std::size_t bytes)
      : content_(std::make_unique_for_overwrite<std::byte[]>(bytes)),
        piece_(content_.get(), bytes) {}

  std::span<std::byte> content() { return {content_.get(), piece_.size()}; }
  std::span<const std::span<const std::byte>> pieces() const override { return {&piece_, 1}; }
  std::size_t bytes() const override { return piece_.size(); }

 private:
  const std::unique_ptr<std::byte[]> content_;
  const std::span<const std::byte> piece_;
};

}  // namespace

std::vector<Pieces> InputsOf(const ReduceEffect& effect) {
  std::vector<Pieces> inputs;
  inputs.reserve(effect.inputs.size());
  for (const wire::PayloadRef& input : effect.inputs) {
    inputs.push_back(input == nullptr ? Pieces() : input->pieces());
  }
  return inputs;
}

// Collects the contributions that their owners allow the result to overwrite.
void ReducedChunk::FindPlaces(const ReduceEffect& effect) {
  if (!effect.in_place) return;
  for (std::size_t i = 0; i < effect.inputs.size(); ++i) {
    const wire::PayloadRef& input = effect.inputs[i];
    const wire::ResultRoom* const room = input == nullptr ? nullptr : input->result_room();
    if (room == nullptr) continue;
    places_.push_back({.contribution = input,
                       .room = *room,
                       .dtype = effect.raw.raw(i) ? effect.raw.dtype : dtype_});
  }
}

// malloc keeps freed memory for the next chunk (see main.cc), so a pool is not needed.
std::span<std::byte> ReducedChunk::MakeRoom(SessionMemory& memory) {
  // Smaller results stay in their frames and need no block.
  if (bytes_ > wire::kInlineBytes) {
    if (std::shared_ptr<ResultBlock> block = memory.Take(bytes_)) {
      const std::span<std::byte> room = block->content();
      block_offset_ = block->offset();
      kept_ = std::move(block);
      return room;
    }
  }
  auto heap = std::make_shared<HeapResult>(bytes_);
  const std::span<std::byte> room = heap->content();
  kept_ = std::move(heap);
  return room;
}

ReducedChunk::Outcome ReducedChunk::Compute(const ReduceEffect& effect, SessionMemory& memory) {
  const std::vector<Pieces> inputs = InputsOf(effect);
  const Segment& segment = effect.segment;
  const std::shared_ptr<ReducedChunk> chunk(new ReducedChunk(segment));
  if (segment.op == ReduceOp::kOrthonormalizedSum) {
    // Orthonormalization needs the whole matrix, so the result is not computed in parts like a sum.
    const std::span<std::byte> room = chunk->MakeRoom(memory);
    ReduceOutcome outcome = ReduceOrthonormalized(segment, inputs, room);
    chunk->digest_ = wire::DigestOf(room);
    return {.chunk = chunk, .reduced = std::move(outcome)};
  }
  chunk->FindPlaces(effect);
  alignas(64) thread_local std::byte scratch[kSinkBytes];
  // If every contribution is overwritten, the results need no room of their own: kSinkBytes of them
  // are computed at a time in the first-level cache and written to all places from there.
  const std::span<std::byte> room = chunk->places_.size() == inputs.size()
                                        ? std::span<std::byte>(scratch)
                                        : chunk->MakeRoom(memory);
  // The digest is computed in the same pass, while the results are in the cache.
  thread_local wire::Digester digester;
  digester.Reset();
  const auto place = [&](std::size_t begin, std::span<const std::byte> results) {
    digester.Update(results);
    chunk->Place(begin, results);
  };
  ReduceOutcome outcome = ReduceInto(segment.dtype, segment.op, segment.numel, inputs, room,
                                     effect.raw, effect.weight, place);
  chunk->digest_ = digester.Finish();
  return {.chunk = chunk, .reduced = std::move(outcome)};
}

void ReducedChunk::Place(std::size_t begin, std::span<const std::byte> results) const {
  const std::size_t numel = results.size() / ByteSize(dtype_);
  for (const Overwritten& one : places_) {
    cpu::Convert(dtype_, results.data(), one.dtype,
                 one.room.bytes.data() + begin * ByteSize(one.dtype), numel);
  }
}

// The results come down once, so they need room of their own even if members take them in place.
absl::StatusOr<ReducedChunk::Outcome> ReducedChunk::ComputeOn(DeviceReduction& device,
                                                              const ReduceEffect& effect,
                                                              SessionMemory& memory) {
  const std::vector<Pieces> inputs = InputsOf(effect);
  const Segment& segment = effect.segment;
  const std::shared_ptr<ReducedChunk> chunk(new ReducedChunk(segment));
  const bool orthonormalizes = segment.op == ReduceOp::kOrthonormalizedSum;
  const std::span<std::byte> room = chunk->MakeRoom(memory);
  auto outcome = orthonormalizes ? device.ReduceOrthonormalized(segment, inputs, room)
                                 : device.Reduce(segment.dtype, segment.op, segment.numel, inputs,
                                                 room, effect.raw, effect.weight);
  if (!outcome.ok()) return outcome.status();
  chunk->digest_ = wire::DigestOf(room);
  if (!orthonormalizes) {
    chunk->FindPlaces(effect);
    chunk->Place(0, room);
  }
  return Outcome{.chunk = chunk, .reduced = *std::move(outcome)};
}

ResultRef ReducedChunk::Given(const ReduceEffect& effect, std::span<const std::byte> result,
                              SessionMemory& memory) {
  const std::shared_ptr<ReducedChunk> chunk(new ReducedChunk(effect.segment));
  chunk->digest_ = wire::DigestOf(result);
  chunk->FindPlaces(effect);
  if (chunk->places_.size() != effect.inputs.size() || effect.inputs.empty()) {
    const std::span<std::byte> room = chunk->MakeRoom(memory);
    std::copy(result.begin(), result.end(), room.begin());
  }
  chunk->Place(0, result);
  return chunk;
}

// Prefers the member's own memory: if the result is there, the frame needs no payload.
ResultDelivery ReducedChunk::DeliveryTo(const Receiver& to) const {
  const auto found = std::find_if(places_.begin(), places_.end(),
                                  [&](const Overwritten& one) { return one.room.rank == to.rank; });
  if (found != places_.end() && found->room.stream == to.stream) return InPlace{};
  if (block_offset_ && to.shares_memory) return InSharedBlock{.offset = *block_offset_};
  if (kept_ == nullptr && found != places_.end()) return CopyOf(*found);
  return InFrame{kept_};
}

// The stream that owned the place was replaced, so its member cannot find the result there. The
// copy is made only when the frame is written; the place keeps the member's segment mapped.
ResentCopy ReducedChunk::CopyOf(const Overwritten& place) const {
  return {.make = [place, numel = numel_, dtype = dtype_, bytes = bytes_] {
    auto copy = std::make_shared<HeapResult>(bytes);
    cpu::Convert(place.dtype, place.room.bytes.data(), dtype, copy->content().data(), numel);
    return copy;
  }};
}

}  // namespace gradwire::server
