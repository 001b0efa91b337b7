#include "server/core/round_flow.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/mutants.h"
#include "proto/wire/joined_payload.h"
#include "server/core/contribution_checks.h"

namespace gradwire::server {

RoundFlow::RoundFlow(const SessionOptions& options, const Membership& membership,
                     CoordinatorHook* hook, SharedState& shared, const StepGate& gate)
    : options_(options),
      membership_(membership),
      hook_(hook),
      shared_(shared),
      gate_(gate),
      members_(static_cast<std::size_t>(options.world_size)) {}

bool RoundFlow::TakesResults(const Bucket& bucket) const {
  return options_.spec.TakesResults(bucket.gradient_type());
}

std::size_t RoundFlow::Required(const Bucket& bucket) const {
  if (!IsActive(Mutant::kMemberDroppedPerBucket)) return bucket.ContributorsLeft();
  return membership_.Reachable().size();
}

// One frame with `more` stands for several raw chunks; each is checked and stored on its own, as if
// it had come in its own frame.
MaybeFailure RoundFlow::Contribute(int rank, Bucket& bucket, const wire::Contribution& header,
                                   const wire::PayloadRef& payload, Effects& effects) {
  if (header.more == 0) {
    absl::Status status = CheckContribution(rank, header, bucket, payload, options_);
    if (!status.ok()) return ViolationOf(rank, std::move(status));
    return Store(rank, bucket, header, payload, effects);
  }
  absl::Status status = CheckSeveral(header, bucket, payload, options_);
  if (!status.ok()) return ViolationOf(rank, std::move(status));
  std::size_t offset = 0;
  wire::Contribution one = header;
  one.more = 0;
  for (std::uint32_t i = 0; i <= header.more; ++i) {
    one.chunk = header.chunk + i;
    const std::size_t bytes = bucket.RawBytes(one.chunk);
    const wire::PayloadRef part = wire::Part(payload, offset, bytes);
    offset += bytes;
    status = CheckContribution(rank, one, bucket, part, options_);
    if (!status.ok()) return ViolationOf(rank, std::move(status));
    if (MaybeFailure failure = Store(rank, bucket, one, part, effects)) return failure;
  }
  return std::nullopt;
}

// The bucket counts as granted, so that no Grant follows and a Restart names its round. The eager
// bytes count until the member acknowledges the result.
MaybeFailure RoundFlow::ContributeEagerly(int rank, Bucket& bucket, const wire::Announce& announce,
                                          const wire::PayloadRef& payload, Effects& effects) {
  bucket.Grant(rank);
  bucket.SetEagerBytes(rank, payload->bytes());
  members_[Index(rank)].eager_bytes += payload->bytes();
  return Store(rank, bucket, {.id = bucket.CurrentId(), .rank = rank, .digest = announce.digest},
               payload, effects);
}

MaybeFailure RoundFlow::Store(int rank, Bucket& bucket, const wire::Contribution& header,
                              const wire::PayloadRef& payload, Effects& effects) {
  const auto where = [&] {
    return absl::StrCat("chunk ", header.chunk, " of bucket ", bucket.name(), " in step ",
                        bucket.step());
  };
  // A member may omit the digest if only this host's kernel lies between it and the daemon.
  // Bytes that are not `fixed` may change after a check, so a digest of them proves nothing.
  std::optional<std::uint64_t> digest;
  if (header.digest && payload->fixed()) digest = payload->digest();
  if (digest && *header.digest != *digest) {
    return ViolationOf(
        rank, Coded(ErrorCode::kDigest,
                    absl::DataLossError(absl::StrCat(where(), " does not match its digest"))));
  }
  Round& round = bucket.round();
  const bool raw = header.shared && header.shared->raw;
  // A contribution counts once, however often it comes.
  switch (round.Store(rank, header.chunk, {.payload = payload, .digest = digest, .raw = raw})) {
    case Round::Stored::kAnother:
      return ViolationOf(rank, absl::DataLossError(
                                   absl::StrCat("sent ", where(), " twice, with different bytes")));
    case Round::Stored::kAgain:
      ++stats_.duplicate_chunks;
      if (IsActive(Mutant::kDuplicateCountedTwice) && !round.IsReducing(header.chunk)) {
        round.CountTwice(header.chunk);
        ReduceIfComplete(bucket, header.chunk, effects);
      }
      return std::nullopt;
    case Round::Stored::kFirst:
      break;
  }
  stats_.contribution_bytes += payload->bytes();
  members_[Index(rank)].contribution_bytes += payload->bytes();
  shared_.Has(rank, bucket);
  ReduceIfComplete(bucket, header.chunk, effects);
  return std::nullopt;
}

std::vector<int> RoundFlow::WindowsWithout(const Bucket& bucket, std::uint32_t chunk) const {
  const Round& round = bucket.round();
  return round.WindowsWithout(round.layout().UnitOf(chunk), TakesResults(bucket));
}

// A unit is reduced when all contributors have sent it and when its result fits every member's
// window; otherwise results would pile up for the slowest member.
void RoundFlow::ReduceIfComplete(Bucket& bucket, std::uint32_t chunk, Effects& effects) {
  if (gate_.shut()) return;  // Step::Unpause comes back to it
  Round& round = bucket.round();
  const Round::Unit unit = round.layout().UnitOf(chunk);
  if (!round.IsComplete(unit, Required(bucket))) return;
  // The acknowledgement that opens the window calls this again.
  if (!round.WindowsWithout(unit, TakesResults(bucket)).empty()) return;
  Round::Inputs inputs = round.BeginReduction(unit);
  if (IsActive(Mutant::kDuplicateCountedTwice)) {
    inputs.payloads.resize(members_.size(), inputs.payloads.front());
    if (!inputs.is_raw.empty()) inputs.is_raw.resize(members_.size(), inputs.is_raw.front());
  }
  // Who misses the bucket contributes zero: the mean is that of all members.
  const double weight = round.contributors().total_weight();
  // Of other hooks the coordinator reads results itself, when they are released; and a member that
  // sends no bytes needs them, too.
  ReduceEffect reduce{.id = bucket.CurrentId(),
                      .chunk = unit.first,
                      .segment = round.layout().UnitSegment(unit),
                      .inputs = std::move(inputs.payloads),
                      .weight = weight,
                      .begin = round.layout().Range(unit.first).begin,
                      .in_place = TakesResults(bucket) && bucket.Missed().empty()};
  if (!inputs.is_raw.empty()) {
    reduce.raw = {
        .dtype = bucket.gradient_type(), .divisor = weight, .is_raw = std::move(inputs.is_raw)};
  }
  if (options_.leaf.is_leaf()) reduce.parameters = bucket.shared_parameters();
  effects.push_back(std::move(reduce));
}

void RoundFlow::ReduceComplete(Bucket& bucket, Effects& effects) {
  const Round& round = bucket.round();
  for (std::uint32_t c = 0; c < round.chunk_count(); ++c) ReduceIfComplete(bucket, c, effects);
}

// Reductions finish in any order, but members take results in chunk order, and the bucket's digest
// chains them in that order. A member without a stream gets them later (Resend).
void RoundFlow::Reduced(Bucket& bucket, std::uint32_t chunk, const ResultRef& result,
                        absl::Duration spent, Effects& effects) {
  Round& round = bucket.round();
  round.SetResult(
      round.layout().UnitOf(chunk), result,
      static_cast<std::uint64_t>(std::max<std::int64_t>(absl::ToInt64Nanoseconds(spent), 0)));
  std::vector<int> ranks = round.contributors().Among(membership_.Reachable());
  std::erase_if(ranks,
                [&](int rank) { return bucket.IsMissedBy(rank) && !bucket.IsGrantedTo(rank); });
  while (const std::optional<std::uint32_t> next = round.ReleaseNext()) {
    bucket.AddDigest(round.result(*next)->digest());
    SendResult(ranks, bucket, bucket.round_number(), *next, effects);
    Observe(bucket, *next, *round.result(*next));
  }
}

// Repeats exactly the results that were released and not acknowledged, of every round.
void RoundFlow::Resend(int rank, Bucket& bucket, Effects& effects) {
  for (std::uint32_t r = 0; r < bucket.rounds().size(); ++r) {
    const Round& round = bucket.rounds()[r];
    for (std::uint32_t c = round.received(rank); c < round.released(); ++c) {
      SendResult({rank}, bucket, r, c, effects);
    }
  }
}

void RoundFlow::SendResult(std::vector<int> ranks, const Bucket& bucket, std::uint32_t number,
                           std::uint32_t chunk, Effects& effects) {
  const Round& round = bucket.rounds()[number];
  const ResultRef& result = round.result(chunk);
  stats_.result_bytes += result->bytes() * ranks.size();
  effects.push_back(ResultEffect{.ranks = std::move(ranks),
                                 .header = {.id = bucket.IdOf(number),
                                            .chunk = chunk,
                                            .digest = result->digest(),
                                            .reduce_nanoseconds = round.reduce_nanoseconds(chunk)},
                                 .result = result});
}

// Results lie in place only for hooks that cast, and these observe nothing: `kept` is not null
// where it is used.
void RoundFlow::Observe(const Bucket& bucket, std::uint32_t chunk, const ReducedResult& result) {
  if (hook_ == nullptr) return;
  const wire::ChunkLayout& layout = bucket.round().layout();
  if (!hook_->Observes(bucket.round_number(), layout.segment(chunk))) return;
  const wire::PayloadRef kept = result.kept();
  const auto pieces = kept->pieces();
  if (pieces.size() == 1) {
    return hook_->Observe(bucket.parameters(), bucket.round_number(), layout.Range(chunk),
                          pieces.front());
  }
  std::vector<std::byte> bytes;
  for (const auto& piece : pieces) bytes.insert(bytes.end(), piece.begin(), piece.end());
  hook_->Observe(bucket.parameters(), bucket.round_number(), layout.Range(chunk), bytes);
}

MaybeFailure RoundFlow::Acknowledge(int rank, Bucket& bucket, const wire::RoundId& id,
                                    std::uint32_t received, Effects& effects) {
  Round& round = bucket.rounds()[id.round];
  // An acknowledgement of an earlier attempt says nothing about this one.
  if (id.attempt < round.attempt()) return std::nullopt;
  if (received > round.released()) {
    return ViolationOf(rank, absl::InvalidArgumentError(absl::StrCat(
                                 "acknowledged ", received, " results of bucket ", bucket.name(),
                                 " in step ", id.step, "; it was sent ", round.released())));
  }
  // Each Contribution carries the member's latest count again, and a resume repeats Acks.
  if (received <= round.received(rank)) return std::nullopt;
  members_[Index(rank)].eager_bytes -= bucket.Acknowledge(rank, round, received);
  if (id.round != bucket.round_number()) return std::nullopt;
  // Reduce the chunks that waited for this member's window.
  // Members send chunks in order, so nothing is complete behind the first chunk without any.
  for (std::uint32_t c = round.released(); c < round.chunk_count() && round.HasContributions(c);
       ++c) {
    ReduceIfComplete(bucket, c, effects);
  }
  return std::nullopt;
}

void RoundFlow::AcknowledgeAll(int rank, Bucket& bucket) {
  members_[Index(rank)].eager_bytes -= bucket.AcknowledgeAll(rank);
}

}  // namespace gradwire::server
