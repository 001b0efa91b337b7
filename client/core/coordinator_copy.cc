#include "client/core/coordinator_copy.h"

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "hooks/safetensors.h"
#include "proto/wire/digest.h"

namespace gradwire::client {
namespace {

// The generator's state and what describes it; the draw plan has each parameter's position, and no
// more seeds than there are parameters.
constexpr std::size_t kMostBytes = std::size_t{1} << 16;
constexpr std::size_t kMostForEachParameter = 32;

}  // namespace

absl::Status CoordinatorCopy::Take(const wire::CoordinatorState& state,
                                   const wire::Payload* piece) {
  if (pending_.complete()) return absl::OkStatus();
  const std::size_t most = kMostBytes + parameters_ * kMostForEachParameter;
  if (state.bytes > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", state.bytes, " bytes; allowed: ", most, " at most"));
  }
  absl::Status added = pending_.Add(state.offset, state.bytes, piece);
  if (!added.ok() || !pending_.complete()) return added;
  const auto* const text = reinterpret_cast<const char*>(pending_.content().data());
  absl::StatusOr<HookState> read = ReadSafetensors({text, pending_.content().size()});
  if (!read.ok()) {
    pending_.Take();
    return read.status();
  }
  next_ = *std::move(read);
  return absl::OkStatus();
}

void CoordinatorCopy::Apply() {
  if (!pending_.complete()) return;
  pending_.Take();
  own_ = std::move(next_);
  unknown_ = false;
}

void CoordinatorCopy::Answer(const wire::StateRequest& request, HookState held,
                             std::uint64_t generation, std::size_t chunk_bytes,
                             Effects& effects) const {
  if (unknown_) {
    effects.push_back(SendFrameEffect{wire::StateCopy{.generation = generation, .unknown = true}});
    return;
  }
  held.metadata.insert(own_.metadata.begin(), own_.metadata.end());
  const std::string file = WriteSafetensors(held);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(file));
  wire::StateCopy copy{.generation = generation, .digest = wire::DigestOf(bytes)};
  if (!request.donor) {
    effects.push_back(SendFrameEffect{copy});
    return;
  }
  copy.bytes = file.size();
  wire::InPieces({bytes.begin(), bytes.end()}, chunk_bytes,
                 [&](std::uint64_t offset, wire::PayloadRef piece) {
                   copy.offset = offset;
                   effects.push_back(SendFrameEffect{.header = copy, .payload = std::move(piece)});
                 });
}

}  // namespace gradwire::client
