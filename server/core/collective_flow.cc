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
  const bool leaf = options_.leaf.is_leaf();
  if (leaf) collectives_.SetLeaf();
  int process = -1;  // the last one before `r`, which stands for ranks before `end`
  int end = 0;
  for (int r = 0; r < options_.world_size; ++r) {
    if (membership_.IsElsewhere(r)) {
      const int by = r < end ? process : -1;
      collectives_.SetElsewhere(r, leaf ? collectives_.upstream() : by);
    } else {
      process = r;
      end = r + membership_.ranks(r);
    }
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
  return Finish(number, sends, now, effects);
}

MaybeFailure CollectiveFlow::Finish(std::uint64_t number, Sends& sends, absl::Time now,
                                    Effects& effects) {
  Send(sends, effects);
  if (collectives_.number() != number && began_) began_ = now;
  return CheckNobodyGone();
}

// Members' time begins anew, because the root's timeout counted while they waited.
MaybeFailure CollectiveFlow::OnUpstream(const UpstreamProgress& progress, absl::Time now,
                                        Effects& effects) {
  using What = UpstreamProgress::What;
  const std::uint64_t number = collectives_.number();
  Sends sends;
  switch (progress.what) {
    case What::kBegan:
      collectives_.OnUpstreamBegan(sends);
      break;
    case What::kBytes:
      collectives_.OnUpstreamBytes(progress.payload, sends);
      break;
    case What::kTaken:
      collectives_.OnUpstreamTook(progress.taken, sends);
      break;
    case What::kVoid:
      collectives_.OnUpstreamVoid(sends);
      break;
  }
  if (began_) began_ = now;
  return Finish(number, sends, now, effects);
}

std::uint64_t CollectiveFlow::VoidOpen(Effects& effects) {
  Sends sends;
  collectives_.VoidOpen(sends);
  Send(sends, effects);
  return collectives_.number();
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
    if (std::erase(send.ranks, collectives_.upstream()) > 0) {
      effects.push_back(ForUpstream(send.frame));
    }
    if (send.ranks.empty()) continue;
    effects.push_back(FanOutEffect{.ranks = std::move(send.ranks), .frame = std::move(send.frame)});
  }
  if (collectives_.WaitingFor().empty()) began_.reset();
}

UpstreamEffect CollectiveFlow::ForUpstream(const wire::Frame& frame) const {
  using What = UpstreamEffect::What;
  if (const auto* enter = std::get_if<wire::Enter>(&frame.header)) {
    if (enter->kind == wire::CollectiveKind::kBarrier) return {.what = What::kBarrier};
    return {.what = What::kBroadcast,
            .root = enter->root,
            .bytes = enter->bytes,
            .room = collectives_.RoomAfter(0)};
  }
  if (const auto* taken = std::get_if<wire::CollectiveAck>(&frame.header)) {
    return {.what = What::kRoom, .room = collectives_.RoomAfter(taken->received)};
  }
  return {.what = What::kBytes, .payload = frame.payload};
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
