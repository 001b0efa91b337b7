// A chunk's sum, from its computation until every member has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "proto/wire/frame.h"
#include "server/core/session.h"
#include "server/session_memory.h"

namespace gradwire::server {

// Lies in place of the contributions of members that take it there, each its own. If one member
// does not, it lies in memory of the daemon as well: in the session's segment of results if there
// is room, else on the heap.
class ReducedChunk final : public wire::Payload {
 public:
  struct Outcome {
    std::shared_ptr<const ReducedChunk> chunk;
    bool finite = true;
  };
  // The caller holds no lock.
  static Outcome Compute(const ReduceEffect& effect, SessionMemory& memory);

  // Whether the member knows the result to be where its contribution was: it came by this stream.
  bool IsPlaced(int rank, std::uint64_t stream) const;
  // Where it lies in the segment of results.
  std::optional<std::uint64_t> offset() const;
  // For a frame to a member of whose place another stream knows: a copy of what lies there. Null:
  // it lies in memory of the daemon, this payload has it.
  wire::PayloadRef CopyFor(int rank) const;

  // Empty where only members have it.
  std::span<const std::span<const std::byte>> pieces() const override {
    return {&piece_, piece_.empty() ? std::size_t{0} : std::size_t{1}};
  }
  std::size_t bytes() const override { return bytes_; }

 private:
  // A contribution whose place takes the result, in this dtype.
  struct Place {
    std::shared_ptr<const ResultPlace> at;
    DType dtype = DType::kFloat32;
  };

  explicit ReducedChunk(const Segment& segment)
      : dtype_(segment.dtype), numel_(segment.numel), bytes_(segment.bytes()) {}

  void FindPlaces(const ReduceEffect& effect);
  // Where all of it is kept.
  std::span<std::byte> MakeRoom(SessionMemory& memory);

  const DType dtype_;
  const std::size_t numel_;
  const std::size_t bytes_;
  std::vector<Place> places_;
  std::shared_ptr<ResultBlock> block_;
  std::unique_ptr<std::byte[]> heap_;
  std::span<const std::byte> piece_;
};

}  // namespace gradwire::server
