// Contributions in, results out: one chunk at a time.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/joined_payload.h"
#include "server/core/session.h"

namespace gradwire::server {

std::uint64_t Session::CombineDigests(std::uint64_t seed, std::uint64_t value) {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15ULL;  // 2^64 / golden ratio
  seed = (seed ^ value) * kOdd;
  return seed ^ (seed >> 29);
}

std::size_t Session::RawBytes(const Bucket& bucket, std::uint32_t chunk) const {
  return bucket.rounds.back().layout.Range(chunk).numel() * ByteSize(GradientType(bucket));
}

// Before they are looked at one by one.
absl::Status Session::CheckSeveral(const wire::Contribution& header, const Bucket& bucket,
                                   const wire::PayloadRef& payload) const {
  const std::uint32_t count = bucket.rounds.back().layout.chunk_count();
  const auto error = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("sent chunk ", header.chunk, " and ", header.more, " more of bucket ",
                     BucketName(bucket.parameters), " in step ", step_, " ", what));
  };
  if (!header.shared || !header.shared->raw || !options_.spec.OnlyCasts()) {
    return error("at once; allowed: raw ones, with the hooks no, fp16 and bf16");
  }
  if (header.chunk >= count || header.more >= count - header.chunk) {
    return error(absl::StrCat("at once; it has ", count, " chunks"));
  }
  std::size_t expected = 0;
  for (std::uint32_t i = 0; i <= header.more; ++i) expected += RawBytes(bucket, header.chunk + i);
  const std::size_t got = payload == nullptr ? 0 : payload->bytes();
  if (got != expected) {
    return error(absl::StrCat("in ", got, " bytes; they have ", expected));
  }
  return absl::OkStatus();
}

absl::Status Session::CheckContribution(int rank, const wire::Contribution& header,
                                        const Bucket& bucket,
                                        const wire::PayloadRef& payload) const {
  const Round& round = bucket.rounds.back();
  const auto where = [&] {
    return absl::StrCat("step ", step_, " bucket ", BucketName(bucket.parameters), " round ",
                        bucket.round);
  };
  if (!bucket.granted[Index(rank)]) {
    return absl::FailedPreconditionError(absl::StrCat("sent bytes before its grant: ", where()));
  }
  if (header.chunk >= round.layout.chunk_count()) {
    return absl::OutOfRangeError(absl::StrCat("sent chunk ", header.chunk, " of ", where(),
                                              ", which has ", round.layout.chunk_count(),
                                              " chunks"));
  }
  std::size_t expected = round.layout.ChunkBytes(header.chunk);
  const bool raw = header.shared && header.shared->raw;
  if (raw) {
    if (!options_.spec.OnlyCasts()) {
      return absl::InvalidArgumentError(absl::StrCat("sent chunk ", header.chunk, " of ", where(),
                                                     " raw; allowed: the hooks no, fp16 and bf16"));
    }
    expected = RawBytes(bucket, header.chunk);
  }
  const std::size_t got = payload == nullptr ? 0 : payload->bytes();
  if (got != expected) {
    return absl::InvalidArgumentError(absl::StrCat("sent ", got, " bytes as chunk ", header.chunk,
                                                   " of ", where(), ", which has ", expected));
  }
  if (raw && payload->takes_result() && TakesResults(bucket)) return absl::OkStatus();
  if (!round.layout.InWindow(header.chunk, round.received[Index(rank)], options_.window_chunks)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "sent chunk ", header.chunk, " of ", where(), " with ", round.received[Index(rank)],
        " results received; the window is ", options_.window_chunks));
  }
  return absl::OkStatus();
}

void Session::OnContribution(int rank, const wire::Contribution& header,
                             const wire::PayloadRef& payload, Effects& effects) {
  const wire::RoundId& id = header.id;
  if (!IsActive(Mutant::kGenerationNotCompared) && header.generation != options_.generation) {
    return Violation(
        rank,
        absl::InvalidArgumentError(absl::StrCat("sent a chunk of generation ", header.generation,
                                                "; this session is ", options_.generation)),
        effects);
  }
  if (header.rank != rank) {
    return Violation(
        rank, absl::PermissionDeniedError(absl::StrCat("sent a chunk as rank ", header.rank)),
        effects);
  }
  if (id.step == step_ - 1) {  // repeated after a resume; the original made it
    ++stats_.duplicate_chunks;
    return;
  }
  if (id.step != step_) {
    return Violation(rank,
                     absl::FailedPreconditionError(absl::StrCat(
                         "sent a chunk of step ", id.step, "; the session is at step ", step_)),
                     effects);
  }
  const auto found = buckets_.find({id.step, id.bucket});
  if (found == buckets_.end() || !found->second.announced[Index(rank)] ||
      id.round > found->second.round || found->second.rounds.empty()) {
    return Violation(rank,
                     absl::FailedPreconditionError(absl::StrCat("sent a chunk of step ", id.step,
                                                                " bucket ", id.bucket, " round ",
                                                                id.round, ", which is not open")),
                     effects);
  }
  Bucket& bucket = found->second;
  Round& round = bucket.rounds.back();
  const bool stale_attempt = id.attempt < round.attempt && !IsActive(Mutant::kAttemptNotCompared);
  if (id.round < bucket.round || stale_attempt) {
    ++stats_.duplicate_chunks;
    return;
  }
  if (id.attempt > round.attempt) {
    return Violation(
        rank,
        absl::FailedPreconditionError(absl::StrCat("sent a chunk of attempt ", id.attempt,
                                                   "; the round is in attempt ", round.attempt)),
        effects);
  }
  OnAck(rank, id, header.received, effects);
  if (state_ != State::kRunning) return;
  if (header.more == 0) {
    if (absl::Status status = CheckContribution(rank, header, bucket, payload); !status.ok()) {
      return Violation(rank, status, effects);
    }
    return Store(rank, bucket, header, payload, effects);
  }
  if (absl::Status status = CheckSeveral(header, bucket, payload); !status.ok()) {
    return Violation(rank, status, effects);
  }
  std::size_t offset = 0;
  wire::Contribution one = header;
  one.more = 0;
  for (std::uint32_t i = 0; i <= header.more; ++i) {
    one.chunk = header.chunk + i;
    const std::size_t bytes = RawBytes(bucket, one.chunk);
    const wire::PayloadRef part = wire::Part(payload, offset, bytes);
    offset += bytes;
    if (absl::Status status = CheckContribution(rank, one, bucket, part); !status.ok()) {
      return Violation(rank, status, effects);
    }
    Store(rank, bucket, one, part, effects);
    if (state_ != State::kRunning) return;
  }
}

void Session::Store(int rank, Bucket& bucket, const wire::Contribution& header,
                    const wire::PayloadRef& payload, Effects& effects) {
  // Where the member sends none, nothing but this host's kernel lies between it and the daemon.
  std::optional<std::uint64_t> digest;
  if (header.digest && payload->fixed()) digest = payload->digest();
  if (digest && *header.digest != *digest) {
    return Violation(rank,
                     absl::DataLossError(absl::StrCat("chunk ", header.chunk, " of bucket ",
                                                      BucketName(bucket.parameters), " in step ",
                                                      step_, " does not match its digest")),
                     effects);
  }
  Chunk& chunk = bucket.rounds.back().chunks[header.chunk];
  if (chunk.slots.empty()) chunk.slots.resize(members_.size());
  Slot& slot = chunk.slots[Index(rank)];
  if (slot.filled) {
    if (IsAnother(slot, *payload)) {
      return Violation(rank,
                       absl::DataLossError(absl::StrCat("sent chunk ", header.chunk, " of bucket ",
                                                        BucketName(bucket.parameters), " in step ",
                                                        step_, " twice, with different bytes")),
                       effects);
    }
    ++stats_.duplicate_chunks;
    if (IsActive(Mutant::kDuplicateCountedTwice) && !chunk.reducing) {
      ++chunk.filled;
      MaybeReduce(bucket, header.chunk, effects);
    }
    return;
  }
  slot = Slot{.payload = payload,
              .digest = digest,
              .filled = true,
              .raw = header.shared && header.shared->raw};
  stats_.contribution_bytes += payload->bytes();
  members_[Index(rank)].contribution_bytes += payload->bytes();
  ++chunk.filled;
  // It cannot have encoded this without the shared state.
  std::vector<std::uint64_t>& epochs = members_[Index(rank)].epochs;
  for (std::uint32_t p : bucket.parameters) epochs[p] = bucket.epoch;
  MaybeReduce(bucket, header.chunk, effects);
}

// Whether a chunk that comes again is another one. Without digests that can be told until it is
// reduced, and not at all of bytes that may change.
bool Session::IsAnother(const Slot& slot, const wire::Payload& again) {
  if (!again.fixed() || (slot.payload != nullptr && !slot.payload->fixed())) return false;
  if (slot.payload != nullptr) return slot.payload->digest() != again.digest();
  return slot.digest && *slot.digest != again.digest();
}

DType Session::GradientType(const Bucket& bucket) const {
  return options_.manifest[bucket.parameters.front()].dtype;
}

int Session::Required() const {
  if (!IsActive(Mutant::kMemberDroppedPerBucket)) return options_.world_size;
  return static_cast<int>(ReachableRanks().size());
}

// Members that keep the unit, all of whose contributions are there, from being reduced. Where
// somebody does not take the result in place, it is kept, for everybody: not more of it than each
// member's window, though those that take theirs may be ahead.
std::vector<int> Session::WindowsWithout(const Bucket& bucket,
                                         const wire::ChunkLayout::Unit& unit) const {
  const Round& round = bucket.rounds.back();
  const std::vector<Slot>& slots = round.chunks[unit.first].slots;
  const auto takes_result = [](const Slot& slot) {
    return slot.payload != nullptr && slot.payload->takes_result();
  };
  std::vector<int> ranks;
  if (TakesResults(bucket) && std::all_of(slots.begin(), slots.end(), takes_result)) return ranks;
  for (int r = 0; r < options_.world_size; ++r) {
    if (members_[Index(r)].state != MemberState::kLeft &&
        !round.layout.InWindow(unit.first, round.received[Index(r)], options_.window_chunks)) {
      ranks.push_back(r);
    }
  }
  return ranks;
}

// What is being reduced may be overwritten by its result, so that nobody can be asked for it again.
bool Session::Round::goes_on() const {
  if (IsActive(Mutant::kReducingStartsOver)) return reduced > 0;
  return std::any_of(chunks.begin(), chunks.end(), [](const Chunk& one) { return one.reducing; });
}

void Session::MaybeReduce(Bucket& bucket, std::uint32_t index, Effects& effects) {
  Round& round = bucket.rounds.back();
  const wire::ChunkLayout::Unit unit = round.layout.UnitOf(index);
  const std::span chunks = std::span(round.chunks).subspan(unit.first, unit.count);
  for (const Chunk& chunk : chunks) {
    if (chunk.reducing || chunk.filled == 0 || chunk.filled < Required()) return;
  }
  if (!WindowsWithout(bucket, unit).empty()) return;  // an acknowledgement calls again
  // Of other hooks the coordinator reads results itself, when they are released.
  ReduceEffect reduce{.id = CurrentId(bucket),
                      .chunk = unit.first,
                      .segment = round.layout.UnitSegment(unit),
                      .in_place = TakesResults(bucket)};
  std::vector<std::vector<wire::PayloadRef>> inputs(members_.size());
  std::vector<bool> raw(members_.size());  // a unit of several chunks has none
  for (Chunk& chunk : chunks) {
    chunk.reducing = true;
    for (std::size_t r = 0; r < chunk.slots.size(); ++r) {
      if (chunk.slots[r].payload == nullptr) continue;
      inputs[r].push_back(std::move(chunk.slots[r].payload));
      raw[r] = chunk.slots[r].raw;
    }
  }
  const bool some_raw = std::find(raw.begin(), raw.end(), true) != raw.end();
  if (some_raw) {
    reduce.raw = {.dtype = GradientType(bucket),
                  .divisor = static_cast<double>(options_.world_size)};
  }
  for (std::size_t r = 0; r < inputs.size(); ++r) {
    if (inputs[r].empty()) continue;
    reduce.inputs.push_back(wire::Join(std::move(inputs[r])));
    if (some_raw) reduce.raw.is_raw.push_back(raw[r]);
  }
  if (IsActive(Mutant::kDuplicateCountedTwice)) {
    while (reduce.inputs.size() < members_.size()) reduce.inputs.push_back(reduce.inputs.front());
    if (some_raw) reduce.raw.is_raw.resize(members_.size(), reduce.raw.is_raw.front());
  }
  effects.push_back(std::move(reduce));
  MaybeCommit(effects);  // of no effect: nothing commits before its results are out
}

void Session::Reduced(const wire::RoundId& id, std::uint32_t index, const ResultRef& result,
                      bool finite, absl::Duration spent, Effects& effects) {
  if (state_ != State::kRunning) return;
  const auto found = buckets_.find({id.step, id.bucket});
  if (found == buckets_.end()) return;
  Bucket& bucket = found->second;
  if (bucket.rounds.empty() || bucket.reduced || CurrentId(bucket) != id) return;  // started over
  if (!finite) nonfinite_ = true;
  Round& round = bucket.rounds.back();
  const wire::ChunkLayout::Unit unit = round.layout.UnitOf(index);
  std::size_t offset = 0;
  for (std::uint32_t c = unit.first; c < unit.first + unit.count; ++c) {
    const std::size_t bytes = round.layout.ChunkBytes(c);
    Chunk& chunk = round.chunks[c];
    // A matrix of several chunks is never in place: its result is kept whole.
    chunk.result =
        unit.count == 1 ? result : KeptResult::Make(wire::Part(result->kept(), offset, bytes));
    offset += bytes;
  }
  round.chunks[unit.first].reduce_nanoseconds =
      static_cast<std::uint64_t>(std::max<std::int64_t>(absl::ToInt64Nanoseconds(spent), 0));
  ReleaseReduced(bucket, effects);
  Advance(bucket);
  GrantBuckets(effects);
  MaybeCommit(effects);
}

void Session::ReleaseReduced(Bucket& bucket, Effects& effects) {
  Round& round = bucket.rounds.back();
  while (round.reduced < round.chunks.size() && round.chunks[round.reduced].result != nullptr) {
    const Chunk& chunk = round.chunks[round.reduced];
    bucket.digest = CombineDigests(bucket.digest, chunk.result->digest());
    SendResult(ReachableRanks(), bucket, bucket.round, round.reduced, effects);
    Observe(bucket, round.reduced, *chunk.result);
    ++round.reduced;
  }
}

void Session::SendResult(std::vector<int> ranks, const Bucket& bucket, std::uint32_t round_number,
                         std::uint32_t index, Effects& effects) {
  const Round& round = bucket.rounds[round_number];
  const Chunk& chunk = round.chunks[index];
  stats_.result_bytes += chunk.result->bytes() * ranks.size();
  effects.push_back(ResultEffect{.ranks = std::move(ranks),
                                 .header = {.id = {.step = bucket.step,
                                                   .attempt = round.attempt,
                                                   .bucket = bucket.parameters.front(),
                                                   .round = round_number},
                                            .chunk = index,
                                            .digest = chunk.result->digest(),
                                            .reduce_nanoseconds = chunk.reduce_nanoseconds},
                                 .result = chunk.result});
}

void Session::Advance(Bucket& bucket) {
  if (bucket.reduced || !std::all_of(bucket.announced.begin(), bucket.announced.end(),
                                     [](bool announced) { return announced; })) {
    return;
  }
  // What has no elements needs no credit.
  if (!bucket.rounds.empty() && !bucket.rounds.back().finished() && !bucket.open &&
      !AllGranted(bucket) && !IsActive(Mutant::kCreditDeadlock)) {
    return;
  }
  while (!bucket.rounds.empty() && bucket.rounds.back().finished()) {
    if (bucket.round + 1 == bucket.plans.size()) break;
    ++bucket.round;
    BeginRound(bucket);
  }
  if (!bucket.rounds.empty() && !bucket.rounds.back().finished()) return;
  bucket.reduced = true;
}

void Session::OnAck(int rank, const wire::RoundId& id, std::uint32_t received, Effects& effects) {
  const auto found = buckets_.find({id.step, id.bucket});
  if (found == buckets_.end() || id.round >= found->second.rounds.size()) return;
  Round& round = found->second.rounds[id.round];
  if (id.attempt < round.attempt) return;
  if (received > round.reduced) {
    return Violation(
        rank,
        absl::InvalidArgumentError(absl::StrCat("acknowledged ", received, " results of bucket ",
                                                BucketName(found->second.parameters), " in step ",
                                                id.step, "; it was sent ", round.reduced)),
        effects);
  }
  if (received <= round.received[Index(rank)]) return;
  Acknowledge(rank, found->second, round, received);
  DropAcknowledged(found->second);
  if (&round != &found->second.rounds.back()) return;
  // What has waited for this member's window.
  for (std::uint32_t c = round.reduced; c < round.chunks.size() && round.chunks[c].filled > 0;
       ++c) {
    MaybeReduce(found->second, c, effects);
  }
}

void Session::AcknowledgeAll(int rank, Bucket& bucket) {
  for (Round& round : bucket.rounds) {
    if (round.received[Index(rank)] < round.reduced) {
      Acknowledge(rank, bucket, round, round.reduced);
    }
  }
  DropAcknowledged(bucket);
}

// The StepDone came after their results.
void Session::AcknowledgeEarlierSteps(int rank) {
  for (auto& [key, bucket] : buckets_) {
    if (bucket.step < step_) AcknowledgeAll(rank, bucket);
  }
}

void Session::Acknowledge(int rank, Bucket& bucket, Round& round, std::uint32_t received) {
  round.received[Index(rank)] = received;
  if (received == round.layout.chunk_count()) {
    members_[Index(rank)].eager_bytes -= std::exchange(bucket.eager[Index(rank)], 0);
  }
}

void Session::DropAcknowledged(Bucket& bucket) {
  for (Round& round : bucket.rounds) {
    std::uint32_t everybody = round.reduced;
    for (std::size_t r = 0; r < members_.size(); ++r) {
      if (members_[r].state == MemberState::kLeft) continue;
      everybody = std::min(everybody, round.received[r]);
    }
    while (everybody > 0 && round.chunks[everybody - 1].result != nullptr) {
      round.chunks[--everybody].result = nullptr;
    }
  }
}

}  // namespace gradwire::server
