#include "server/core/collective_flow.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/mutants.h"

namespace gradwire::server {

CollectiveFlow::CollectiveFlow(const SessionOptions& options, const Membership& membership)
    : options_(options),
      membership_(membership),
      collectives_(options.world_size, options.chunk_bytes, options.window_chunks) {}

void CollectiveFlow::Begin() {
  if (options_.leaf.is_leaf()) collectives_.SetLeaf();
  for (int r = 0; r < options_.world_size; ++r) {
    if (membership_.IsElsewhere(r)) collectives_.SetElsewhere(r);
  }
}

absl::Status CollectiveFlow::Take(int rank, const wire::Frame& frame, Sends& sends) {
  if (const auto* enter = std::get_if<wire::Enter>(&frame.header)) {
    return collectives_.OnEnter(rank, *enter, sends);
  }
  if (const auto* chunk = std::get_if<wire::CollectiveChunk>(&frame.header)) {
    return collectives_.OnChunk(rank, *chunk, frame.payload, sends);
  }
  if (const auto* received = std::get_if<wire::CollectiveAck>(&frame.header)) {
    return collectives_.OnAck(rank, *received, sends);
  }
  return absl::InvalidArgumentError("sent a frame that only the coordinator may send");
}

// A collective's time runs from its first Enter, or from the end of the one before that it waited
// for.
MaybeFailure CollectiveFlow::OnFrame(int rank, const wire::Frame& frame, absl::Time now,
                                     Effects& effects) {
  const std::uint64_t number = collectives_.number();
  if (!began_ && std::holds_alternative<wire::Enter>(frame.header)) began_ = now;
  Sends sends;
  absl::Status status = Take(rank, frame, sends);
  if (!status.ok()) return ViolationOf(rank, std::move(status));
  Send(sends, effects);
  if (collectives_.TakeAsk()) {
    effects.push_back(UpstreamEffect{.what = UpstreamEffect::What::kBarrier});
  }
  if (collectives_.number() != number && began_) began_ = now;
  return CheckNobodyGone();
}

void CollectiveFlow::OnUpstream(absl::Time now, Effects& effects) {
  Sends sends;
  collectives_.OnUpstream(sends);
  Send(sends, effects);
  if (began_) began_ = now;
}

// A collective needs every member. If one has left, it fails now and not at the step timeout.
MaybeFailure CollectiveFlow::CheckNobodyGone() const {
  for (int r = 0; began_ && r < options_.world_size; ++r) {
    if (membership_.state(r) != MemberState::kLeft || collectives_.IsThrough(r)) continue;
    return LeftBeforeEnd(r, "a collective");
  }
  return std::nullopt;
}

void CollectiveFlow::Send(Sends& sends, Effects& effects) {
  for (Collectives::Send& send : sends) {
    effects.push_back(FanOutEffect{.ranks = std::move(send.ranks), .frame = std::move(send.frame)});
  }
  if (collectives_.WaitingFor().empty()) began_.reset();
}

bool CollectiveFlow::OnLeave(int rank, Effects& effects) {
  Sends sends;
  if (!collectives_.OnLeave(rank, sends)) return false;
  Send(sends, effects);
  // Its acknowledgement may have ended a broadcast and opened the collective that others had
  // entered early, which now cannot end.
  return collectives_.IsThrough(rank);
}

void CollectiveFlow::Resume(int rank, Effects& effects) const {
  if (IsActive(Mutant::kCollectiveNotResumed)) return;
  Sends sends;
  collectives_.Resume(rank, sends);
  for (Collectives::Send& again : sends) {
    effects.push_back(
        FanOutEffect{.ranks = std::move(again.ranks), .frame = std::move(again.frame)});
  }
}

void CollectiveFlow::End() {
  began_.reset();
  collectives_ = Collectives(options_.world_size, options_.chunk_bytes, options_.window_chunks);
}

}  // namespace gradwire::server
