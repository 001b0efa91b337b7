#include "client/core/draw_plan_sending.h"

#include <algorithm>
#include <cstddef>

#include "base/limits.h"

namespace gradwire::client {

void DrawPlanSending::Set(const DrawBuckets& buckets, std::uint64_t generation, std::int64_t step) {
  pieces_ = {{.generation = generation}};
  step_ = step;
  std::size_t room = kMaxDrawPlanPiece;
  for (const std::vector<std::uint32_t>& bucket : buckets) {
    for (auto from = bucket.begin(); from != bucket.end();) {
      if (room == 0) {
        pieces_.push_back({.generation = generation,
                           .piece = static_cast<std::uint32_t>(pieces_.size()),
                           .continued = from != bucket.begin()});
        room = kMaxDrawPlanPiece;
      }
      // A bucket that does not fit the rest of a piece continues in the next one.
      const std::size_t count = std::min(room, static_cast<std::size_t>(bucket.end() - from));
      const auto to = from + static_cast<std::ptrdiff_t>(count);
      pieces_.back().buckets.emplace_back(from, to);
      from = to;
      room -= count;
    }
  }
  pieces_.back().last = true;
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
