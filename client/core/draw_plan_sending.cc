#include "client/core/draw_plan_sending.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/limits.h"

namespace gradwire::client {
namespace {

std::vector<wire::DrawPlan> Cut(const DrawBuckets& buckets, std::uint64_t generation) {
  std::vector<wire::DrawPlan> pieces = {{.generation = generation}};
  std::size_t room = kMaxDrawPlanPiece;
  for (const std::vector<std::uint32_t>& bucket : buckets) {
    for (auto from = bucket.begin(); from != bucket.end();) {
      if (room == 0) {
        pieces.push_back({.generation = generation,
                          .piece = static_cast<std::uint32_t>(pieces.size()),
                          .continued = from != bucket.begin()});
        room = kMaxDrawPlanPiece;
      }
      // A bucket that does not fit the rest of a piece continues in the next one.
      const std::size_t count = std::min(room, static_cast<std::size_t>(bucket.end() - from));
      const auto to = from + static_cast<std::ptrdiff_t>(count);
      pieces.back().buckets.emplace_back(from, to);
      from = to;
      room -= count;
    }
  }
  pieces.back().last = true;
  return pieces;
}

}  // namespace

void DrawPlanSending::Set(const DrawBuckets& buckets, std::uint64_t generation, std::int64_t step,
                          Effects& effects) {
  std::vector<wire::DrawPlan> pieces = Cut(buckets, generation);
  for (const wire::DrawPlan& piece : pieces) effects.push_back(SendFrameEffect{piece});
  if (fixed_) return;
  pieces_ = std::move(pieces);
  step_ = step;
}

void DrawPlanSending::SetGeneration(std::uint64_t generation) {
  for (wire::DrawPlan& piece : pieces_) piece.generation = generation;
}

void DrawPlanSending::Send(Effects& effects) const {
  for (const wire::DrawPlan& piece : pieces_) effects.push_back(SendFrameEffect{piece});
}

void DrawPlanSending::StepDone(std::int64_t next) {
  if (next > step_ + 1) Forget();
}

}  // namespace gradwire::client
