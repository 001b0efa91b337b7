#include "server/core/own_state_sending.h"

#include <utility>

#include "base/mutants.h"
#include "hooks/safetensors.h"
#include "proto/wire/byte_pieces.h"

namespace gradwire::server {

// A step that is skipped changes nothing.
void OwnStateSending::Prepare(std::int64_t step, Verdict verdict, const std::vector<int>& ranks,
                              Effects& effects) {
  if (hook_ == nullptr || verdict != Verdict::kApply || hook_->OwnVersion() == known_) return;
  if (IsActive(Mutant::kOwnStateNotTold)) return;
  told_ = hook_->OwnVersion();
  const std::string file = WriteSafetensors(hook_->OwnState());
  const std::span<const std::byte> bytes = std::as_bytes(std::span(file));
  wire::InPieces(
      {bytes.begin(), bytes.end()}, chunk_bytes_,
      [&](std::uint64_t offset, wire::PayloadRef piece) {
        frames_.push_back(
            {.header = wire::CoordinatorState{.step = step, .offset = offset, .bytes = file.size()},
             .payload = std::move(piece)});
      });
  for (const wire::Frame& frame : frames_) {
    effects.push_back(FanOutEffect{.ranks = ranks, .frame = frame});
  }
}

void OwnStateSending::Repeat(int rank, Effects& effects) const {
  for (const wire::Frame& frame : frames_) {
    effects.push_back(SendEffect{.rank = rank, .frame = frame});
  }
}

void OwnStateSending::Conclude(Verdict verdict) {
  if (!frames_.empty() && verdict == Verdict::kApply) known_ = told_;
  frames_.clear();
}

}  // namespace gradwire::server
