#include "server/core/hand_over_relay.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutants.h"
#include "server/core/membership.h"

namespace gradwire::server {
namespace {

// That may be under way, so that a member which does not read holds nobody's memory. A member has
// four at a time, and sends them again on each new stream.
constexpr int kMostPieces = 16;

}  // namespace

MaybeFailure HandOverRelay::On(int rank, const wire::HandOver& piece,
                               const wire::PayloadRef& payload, const std::string& may_not,
                               Effects& effects) {
  const std::size_t bytes = payload == nullptr ? 0 : payload->bytes();
  if (piece.rank == rank || !membership_.IsRank(piece.rank) || bytes > chunk_bytes_ ||
      bytes > piece.bytes - piece.offset) {
    return ViolationOf(rank, absl::InvalidArgumentError(absl::StrCat(
                                 "sent ", bytes, " bytes of ", piece.bytes, " from ", piece.offset,
                                 " on to hand its residuals over to rank ", piece.rank,
                                 "; allowed: at most ", chunk_bytes_,
                                 " at a time, to another rank "
                                 "of the session")));
  }
  Way& way = ways_[rank];
  const bool is_taken = way.id == piece.id && way.taken && !IsActive(Mutant::kHandedOverTwice);
  if (piece.offset == 0 && !is_taken) {
    const int unanswered = way.id == piece.id && way.to == piece.rank ? way.unanswered : 0;
    way = {.id = piece.id, .to = piece.rank, .unanswered = unanswered};
  }
  // A stream that broke may have lost the answer.
  if (is_taken) {
    effects.push_back(SendEffect{
        .rank = rank,
        .frame = {.header = wire::HandOverAnswer{
                      .id = way.id, .rank = way.to, .received = piece.bytes, .taken = true}}});
    return std::nullopt;
  }
  // Of a way that was refused, or begun anew.
  if (way.id != piece.id || way.to != piece.rank || piece.offset != way.sent) return std::nullopt;
  if (way.unanswered == kMostPieces) {  // on this stream and earlier ones
    way.lacks_room = true;
    return std::nullopt;
  }
  if (const std::string why = may_not.empty() ? WhyNot(piece.rank) : may_not; !why.empty()) {
    Refuse(rank, std::exchange(way, {}), why, effects);
    return std::nullopt;
  }
  // It may resume, and has the whole sent again then.
  if (membership_.state(piece.rank) == MemberState::kLost) return std::nullopt;
  way.sent += bytes;
  ++way.unanswered;
  wire::HandOver on = piece;
  on.generation = 0;
  on.rank = rank;
  effects.push_back(SendEffect{.rank = piece.rank, .frame = {.header = on, .payload = payload}});
  return std::nullopt;
}

MaybeFailure HandOverRelay::On(int rank, const wire::HandOverAnswer& answer, Effects& effects) {
  const auto found = ways_.find(answer.rank);
  if (found == ways_.end()) return std::nullopt;
  Way& way = found->second;
  if (way.id != answer.id || way.to != rank || way.taken) return std::nullopt;
  if (way.unanswered > 0) --way.unanswered;
  if (way.unanswered == 0 && way.lacks_room && !answer.taken && answer.refusal.empty()) {
    BeginAnew(answer.rank, way, effects);
    return std::nullopt;
  }
  // To pieces that are sent anew since.
  if (answer.received > way.sent && !answer.taken) return std::nullopt;
  way.taken = answer.taken;
  wire::HandOverAnswer on = answer;
  on.generation = 0;
  on.rank = rank;
  effects.push_back(SendEffect{.rank = answer.rank, .frame = {.header = on}});
  if (way.taken) {
    effects.push_back(LogEffect{
        .message = absl::StrCat("rank ", answer.rank, " has handed its residuals over to ",
                                membership_.NameOf(rank), ": ", answer.received, " bytes"),
        .rank = answer.rank});
  }
  if (!answer.refusal.empty()) way = {};
  return std::nullopt;
}

void HandOverRelay::OnAttached(int rank, Effects& effects) {
  for (auto& [from, way] : ways_) {
    if (way.to == rank && !way.taken && way.id != 0) BeginAnew(from, way, effects);
  }
}

void HandOverRelay::BeginAnew(int from, Way& way, Effects& effects) {
  way = {.id = way.id, .to = way.to};
  effects.push_back(SendEffect{
      .rank = from, .frame = {.header = wire::HandOverAnswer{.id = way.id, .rank = way.to}}});
}

void HandOverRelay::OnGone(int rank, Effects& effects) {
  ways_.erase(rank);
  for (auto& [from, way] : ways_) {
    if (way.to != rank || way.taken || way.id == 0) continue;
    Refuse(from, std::exchange(way, {}), absl::StrCat("rank ", rank, " has left"), effects);
  }
}

std::string HandOverRelay::WhyNot(int to) const {
  if (membership_.state(to) == MemberState::kLost) return "";
  if (membership_.state(to) != MemberState::kConnected) {
    return absl::StrCat("rank ", to, " is ", Name(membership_.state(to)));
  }
  if (!membership_.abilities(to).takes_residuals) {
    return absl::StrCat("rank ", to, "'s client is of a version that takes no residuals");
  }
  return "";
}

void HandOverRelay::Refuse(int from, const Way& way, const std::string& why, Effects& effects) {
  effects.push_back(SendEffect{
      .rank = from,
      .frame = {.header = wire::HandOverAnswer{.id = way.id, .rank = way.to, .refusal = why}}});
}

}  // namespace gradwire::server
