#include "server/reduced_chunk.h"

#include <algorithm>
#include <utility>

#include "hooks/cpu/kernels.h"
#include "hooks/reduce.h"
#include "proto/wire/digest.h"
#include "proto/wire/memory_segment.h"
#include "proto/wire/owned_payload.h"

namespace gradwire::server {

void ReducedChunk::FindPlaces(const ReduceEffect& effect) {
  if (!effect.in_place) return;
  for (std::size_t i = 0; i < effect.inputs.size(); ++i) {
    auto place = std::dynamic_pointer_cast<const ResultPlace>(effect.inputs[i]);
    if (place == nullptr) continue;
    places_.push_back(
        {.at = std::move(place), .dtype = effect.raw.raw(i) ? effect.raw.dtype : dtype_});
  }
}

// The daemon keeps freed memory at hand (see main.cc), so that there is no need for a pool.
std::span<std::byte> ReducedChunk::MakeRoom(SessionMemory& memory) {
  std::span<std::byte> room;
  if (bytes_ > wire::kInlineBytes) block_ = memory.Take(bytes_);
  if (block_ != nullptr) {
    room = block_->content();
  } else {
    heap_ = std::make_unique_for_overwrite<std::byte[]>(bytes_);
    room = {heap_.get(), bytes_};
  }
  piece_ = room;
  return room;
}

ReducedChunk::Outcome ReducedChunk::Compute(const ReduceEffect& effect, SessionMemory& memory) {
  std::vector<Pieces> inputs;
  inputs.reserve(effect.inputs.size());
  for (const wire::PayloadRef& input : effect.inputs) {
    inputs.push_back(input == nullptr ? Pieces() : input->pieces());
  }
  const Segment& segment = effect.segment;
  const std::shared_ptr<ReducedChunk> chunk(new ReducedChunk(segment));
  if (segment.op == ReduceOp::kOrthonormalizedSum) {
    const std::span<std::byte> room = chunk->MakeRoom(memory);
    const ReduceOutcome outcome = ReduceOrthonormalized(segment, inputs, room);
    chunk->SetDigest(wire::DigestOf(room));
    return {.chunk = chunk, .finite = outcome.finite};
  }
  chunk->FindPlaces(effect);
  alignas(64) thread_local std::byte scratch[kSinkBytes];
  const std::span<std::byte> room = chunk->places_.size() == inputs.size()
                                        ? std::span<std::byte>(scratch)
                                        : chunk->MakeRoom(memory);
  thread_local wire::Digester digester;
  digester.Reset();
  const auto place = [&](std::size_t begin, std::span<const std::byte> results) {
    digester.Update(results);
    const std::size_t numel = results.size() / ByteSize(segment.dtype);
    for (const Place& one : chunk->places_) {
      cpu::Convert(segment.dtype, results.data(), one.dtype,
                   one.at->room().data() + begin * ByteSize(one.dtype), numel);
    }
  };
  const ReduceOutcome outcome =
      ReduceInto(segment.dtype, segment.op, segment.numel, inputs, room, effect.raw, place);
  chunk->SetDigest(digester.Finish());
  return {.chunk = chunk, .finite = outcome.finite};
}

bool ReducedChunk::IsPlaced(int rank, std::uint64_t stream) const {
  return std::any_of(places_.begin(), places_.end(), [&](const Place& one) {
    return one.at->rank() == rank && one.at->stream() == stream;
  });
}

std::optional<std::uint64_t> ReducedChunk::offset() const {
  return block_ == nullptr ? std::nullopt : std::optional(block_->offset());
}

wire::PayloadRef ReducedChunk::CopyFor(int rank) const {
  if (!piece_.empty()) return nullptr;
  const auto found = std::find_if(places_.begin(), places_.end(),
                                  [&](const Place& one) { return one.at->rank() == rank; });
  if (found == places_.end()) return nullptr;
  std::vector<std::byte> bytes(bytes_);
  cpu::Convert(found->dtype, found->at->room().data(), dtype_, bytes.data(), numel_);
  return std::make_shared<const wire::OwnedPayload>(std::move(bytes));
}

}  // namespace gradwire::server
