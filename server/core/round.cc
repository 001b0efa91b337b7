#include "server/core/round.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/mutants.h"
#include "proto/wire/joined_payload.h"

namespace gradwire::server {

Round::Round(std::uint32_t attempt, wire::ChunkLayout layout,
             std::shared_ptr<const Contributors> contributors, std::uint32_t window_chunks)
    : attempt_(attempt),
      layout_(std::move(layout)),
      contributors_(std::move(contributors)),
      window_chunks_(window_chunks),
      chunks_(layout_.chunk_count()),
      received_(contributors_->world_size()) {
  for (std::size_t r = 0; r < received_.size(); ++r) {
    if (!contributors_->has(r)) received_[r] = chunk_count();
  }
}

bool Round::InWindow(int rank, std::uint32_t chunk) const {
  return layout_.InWindow(chunk, received(rank), window_chunks_);
}

Round::Stored Round::Store(int rank, std::uint32_t index, const Contribution& contribution) {
  Chunk& chunk = chunks_[index];
  if (chunk.slots.empty()) chunk.slots.resize(contributors_->world_size());
  Slot& slot = chunk.slots[static_cast<std::size_t>(rank)];
  if (slot.filled) {
    return IsAnother(slot, *contribution.payload) ? Stored::kAnother : Stored::kAgain;
  }
  slot = Slot{.payload = contribution.payload,
              .digest = contribution.digest.value_or(0),
              .has_digest = contribution.digest.has_value(),
              .filled = true,
              .raw = contribution.raw};
  if (contributors_->has(static_cast<std::size_t>(rank))) ++chunk.filled;
  return Stored::kFirst;
}

// Whether a repeated chunk differs from the first one. Without a digest this can be decided only
// until the first one is reduced (its bytes are then gone), and never for bytes that may change.
bool Round::IsAnother(const Slot& slot, const wire::Payload& again) {
  if (!again.fixed() || (slot.payload != nullptr && !slot.payload->fixed())) return false;
  if (slot.payload != nullptr) return slot.payload->digest() != again.digest();
  return slot.has_digest && slot.digest != again.digest();
}

bool Round::Has(int rank, std::uint32_t chunk) const {
  const std::vector<Slot>& slots = chunks_[chunk].slots;
  return !slots.empty() && slots[static_cast<std::size_t>(rank)].filled;
}

// A matrix that travels in several chunks is complete when all of its chunks are; with no
// contributors left (`filled` 0) there is nothing to reduce.
bool Round::IsComplete(const Unit& unit, std::size_t contributors) const {
  const std::span chunks = std::span(chunks_).subspan(unit.first, unit.count);
  return std::all_of(chunks.begin(), chunks.end(), [&](const Chunk& chunk) {
    return !chunk.reducing && chunk.filled > 0 && chunk.filled >= contributors;
  });
}

// The ranks whose window does not yet admit the unit's results. If every member takes the result in
// place, no result occupies the window, so none has to wait.
std::vector<int> Round::WindowsWithout(const Unit& unit, bool takes_results) const {
  const std::vector<Slot>& slots = chunks_[unit.first].slots;
  const auto takes_result = [](const Slot& slot) {
    return slot.payload != nullptr && slot.payload->takes_result();
  };
  std::vector<int> ranks;
  if (IsActive(Mutant::kWindowsIgnored)) return ranks;
  if (takes_results && std::all_of(slots.begin(), slots.end(), takes_result)) return ranks;
  for (int r = 0; r < static_cast<int>(received_.size()); ++r) {
    if (!InWindow(r, unit.first)) ranks.push_back(r);
  }
  return ranks;
}

// A unit of several chunks is a matrix, which is reduced whole: each member's parts are joined.
Round::Inputs Round::BeginReduction(const Unit& unit) {
  goes_on_ = goes_on_ || !IsActive(Mutant::kReducingStartsOver);
  std::vector<std::vector<wire::PayloadRef>> parts(received_.size());
  std::vector<bool> raw(received_.size());
  for (Chunk& chunk : std::span(chunks_).subspan(unit.first, unit.count)) {
    chunk.reducing = true;
    for (std::size_t r = 0; r < chunk.slots.size(); ++r) {
      if (chunk.slots[r].payload == nullptr) continue;
      parts[r].push_back(std::move(chunk.slots[r].payload));
      raw[r] = chunk.slots[r].raw;
    }
  }
  const bool some_raw = std::find(raw.begin(), raw.end(), true) != raw.end();
  Inputs inputs;
  for (std::size_t r = 0; r < parts.size(); ++r) {
    if (parts[r].empty()) continue;
    inputs.payloads.push_back(wire::Join(std::move(parts[r])));
    if (some_raw) inputs.is_raw.push_back(raw[r]);
  }
  return inputs;
}

void Round::SetResult(const Unit& unit, const ResultRef& result, std::uint64_t reduce_nanoseconds) {
  std::size_t offset = 0;
  for (std::uint32_t c = unit.first; c < unit.first + unit.count; ++c) {
    const std::size_t bytes = layout_.ChunkBytes(c);
    // Results of several chunks are never in place: they are kept whole.
    chunks_[c].result =
        unit.count == 1 ? result : KeptResult::Make(wire::Part(result->kept(), offset, bytes));
    offset += bytes;
  }
  // One reduction produced all of the unit's results, so its time counts with the first only.
  chunks_[unit.first].reduce_nanoseconds = reduce_nanoseconds;
}

// Results are released in chunk order, in whatever order reductions finish. A round with a released
// result is final: a new attempt may not start it over (goes_on_).
std::optional<std::uint32_t> Round::ReleaseNext() {
  if (finished() || chunks_[released_].result == nullptr) return std::nullopt;
  goes_on_ = true;
  return released_++;
}

bool Round::AllHaveAll() const {
  return std::all_of(received_.begin(), received_.end(),
                     [this](std::uint32_t received) { return received >= released_; });
}

// A result is kept until the slowest member has acknowledged it: a resume may need it again.
void Round::Acknowledge(int rank, std::uint32_t received) {
  received_[static_cast<std::size_t>(rank)] = received;
  const std::uint32_t everybody = *std::min_element(received_.begin(), received_.end());
  for (; dropped_ < everybody; ++dropped_) chunks_[dropped_].result = nullptr;
}

// swap frees the slots' memory; clear() would keep it.
void Round::ForgetContributions() {
  for (Chunk& chunk : chunks_) std::vector<Slot>().swap(chunk.slots);
}

// Results in place and the contributions that they overwrite lie in the members' memory: the daemon
// holds nothing of them.
std::size_t Round::held_bytes() const {
  std::size_t bytes = 0;
  for (const Chunk& chunk : chunks_) {
    if (chunk.result != nullptr && chunk.result->kept() != nullptr) bytes += chunk.result->bytes();
    for (const Slot& slot : chunk.slots) {
      if (slot.payload != nullptr && !slot.payload->takes_result()) bytes += slot.payload->bytes();
    }
  }
  return bytes;
}

void Round::TakeResults(std::vector<ResultRef>& results) {
  for (Chunk& chunk : chunks_) {
    if (chunk.result != nullptr) results.push_back(std::move(chunk.result));
  }
}

std::size_t Round::BytesFor(std::size_t chunks, std::size_t members) {
  return sizeof(Round) + members * sizeof(std::uint32_t) +
         chunks * (sizeof(Chunk) + members * sizeof(Slot));
}

}  // namespace gradwire::server
