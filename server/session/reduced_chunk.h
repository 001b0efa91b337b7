// A chunk's sum, from its computation until every member has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "hooks/device_reduce.h"
#include "hooks/reduce.h"
#include "proto/wire/frame.h"
#include "server/core/effects.h"
#include "server/core/reduced_result.h"
#include "server/session/session_memory.h"

namespace gradwire::server {

// A reduction's contributions, as they lie in memory.
std::vector<Pieces> InputsOf(const ReduceEffect& effect);

// The result is written over the contributions of the members that take it there. If any member
// does not, the daemon also keeps a copy: in the session's segment of results if there is room,
// else on the heap.
class ReducedChunk final : public ReducedResult {
 public:
  struct Outcome {
    ResultRef chunk;
    ReduceOutcome reduced;
  };
  // The caller holds no lock.
  static Outcome Compute(const ReduceEffect& effect, SessionMemory& memory);
  // The same on a device. An error is the device's; nothing was written then.
  static absl::StatusOr<Outcome> ComputeOn(DeviceReduction& device, const ReduceEffect& effect,
                                           SessionMemory& memory);

  // Of a result that is known, in the segment's dtype.
  static ResultRef Given(const ReduceEffect& effect, std::span<const std::byte> result,
                         SessionMemory& memory);

  std::size_t bytes() const override { return bytes_; }
  std::uint64_t digest() const override { return digest_; }
  wire::PayloadRef kept() const override { return kept_; }
  ResultDelivery DeliveryTo(const Receiver& to) const override;

 private:
  // A contribution that the result overwrites, in this dtype.
  struct Overwritten {
    wire::PayloadRef contribution;
    wire::ResultRoom room;
    DType dtype = DType::kFloat32;
  };

  explicit ReducedChunk(const Segment& segment)
      : dtype_(segment.dtype), numel_(segment.numel), bytes_(segment.bytes()) {}

  void FindPlaces(const ReduceEffect& effect);
  // Where all of it is kept.
  std::span<std::byte> MakeRoom(SessionMemory& memory);
  // Writes results, from element `begin` on, over the contributions.
  void Place(std::size_t begin, std::span<const std::byte> results) const;
  ResentCopy CopyOf(const Overwritten& place) const;

  const DType dtype_;
  const std::size_t numel_;
  const std::size_t bytes_;
  std::uint64_t digest_ = 0;
  std::vector<Overwritten> places_;
  wire::PayloadRef kept_;                        // null: only members hold it
  std::optional<std::uint64_t> block_offset_{};  // where that is the segment of results
};

}  // namespace gradwire::server
