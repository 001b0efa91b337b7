// One reduction of one bucket: contributions in, results out, chunk by chunk.
//
// A chunk is complete when every contributor has sent it. It is reduced once every member's window
// includes it, because its result is then kept for all of them. Results are released in chunk order
// and kept until all members have acknowledged them. So a round never keeps more than the window.
//
// Knows no members' names, no frames and no hook. The caller passes only existing ranks and chunks.
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "hooks/raw_contributions.h"
#include "proto/wire/frame.h"
#include "server/core/contributors.h"
#include "server/core/reduced_result.h"

namespace gradwire::server {

class Round {
 public:
  using Unit = wire::ChunkLayout::Unit;

  struct Contribution {
    wire::PayloadRef payload;
    std::optional<std::uint64_t> digest;  // where the member sent one that can be compared
    bool raw = false;
  };
  // What a unit's reduction takes, in rank order.
  struct Inputs {
    std::vector<wire::PayloadRef> payloads;
    std::vector<bool> is_raw;  // empty: none is
  };

  Round(std::uint32_t attempt, wire::ChunkLayout layout,
        std::shared_ptr<const Contributors> contributors, std::uint32_t window_chunks);

  std::uint32_t attempt() const { return attempt_; }
  const wire::ChunkLayout& layout() const { return layout_; }
  const Contributors& contributors() const { return *contributors_; }
  std::uint32_t chunk_count() const { return layout_.chunk_count(); }

  // ---- Contributions

  bool InWindow(int rank, std::uint32_t chunk) const;
  enum class Stored : std::uint8_t {
    kFirst,
    kAgain,    // counted already
    kAnother,  // counted already, with other bytes
  };
  Stored Store(int rank, std::uint32_t chunk, const Contribution& contribution);
  // Whether the member has sent it.
  bool Has(int rank, std::uint32_t chunk) const;
  bool IsReducing(std::uint32_t chunk) const { return chunks_[chunk].reducing; }
  bool HasContributions(std::uint32_t chunk) const { return chunks_[chunk].filled > 0; }

  // ---- Reductions

  // Whether the unit is complete and nobody reduces it yet.
  bool IsComplete(const Unit& unit, std::size_t contributors) const;
  // Members whose windows keep a complete unit from being reduced. None where the hook's results
  // may go in place (`takes_results`) and all of the unit's do: then nothing is kept of it, and
  // members may be ahead of their windows.
  std::vector<int> WindowsWithout(const Unit& unit, bool takes_results) const;
  // The round keeps no reference to the contributions. From now on it cannot start over: results
  // may be written over contributions, so that nobody can be asked for them again.
  Inputs BeginReduction(const Unit& unit);
  bool goes_on() const { return goes_on_; }

  // `result` is of the whole unit.
  void SetResult(const Unit& unit, const ResultRef& result, std::uint64_t reduce_nanoseconds);

  // ---- Results

  // Results that were released; the chunks before it have theirs.
  std::uint32_t released() const { return released_; }
  bool finished() const { return released_ == layout_.chunk_count(); }
  // Releases the next chunk in order, if it has a result.
  std::optional<std::uint32_t> ReleaseNext();
  const ResultRef& result(std::uint32_t chunk) const { return chunks_[chunk].result; }
  std::uint64_t reduce_nanoseconds(std::uint32_t chunk) const {
    return chunks_[chunk].reduce_nanoseconds;
  }

  std::uint32_t received(int rank) const { return received_[static_cast<std::size_t>(rank)]; }
  bool HasAll(int rank) const { return received(rank) >= released_; }
  bool AllHaveAll() const;
  // The member has `received` of the released results. Drops the results that all members have.
  void Acknowledge(int rank, std::uint32_t received);

  // ---- The step is over, and so is comparing what comes again.
  void ForgetContributions();

  std::size_t held_bytes() const;
  // Moves the results that are kept out of the round.
  void TakeResults(std::vector<ResultRef>& results);

  // Upper bound of a round's memory without payloads.
  static std::size_t BytesFor(std::size_t chunks, std::size_t members);

  // Of a seeded bug.
  void CountTwice(std::uint32_t chunk) { ++chunks_[chunk].filled; }

 private:
  // One member's contribution to one chunk. The digest stays until the step is over.
  struct Slot {
    wire::PayloadRef payload;
    std::uint64_t digest = 0;
    bool has_digest = false;
    bool filled = false;
    bool raw = false;
  };
  struct Chunk {
    std::vector<Slot> slots;   // by rank; empty until the first contribution
    std::uint32_t filled = 0;  // contributors that have sent it
    bool reducing = false;     // or already reduced
    ResultRef result;          // from its reduction until everybody has it
    std::uint64_t reduce_nanoseconds = 0;
  };

  static bool IsAnother(const Slot& slot, const wire::Payload& again);

  std::uint32_t attempt_;
  wire::ChunkLayout layout_;  // not const: rounds move
  std::shared_ptr<const Contributors> contributors_;
  std::uint32_t window_chunks_;
  std::vector<Chunk> chunks_;
  std::vector<std::uint32_t> received_;  // by rank: results that it acknowledged
  std::uint32_t released_ = 0;
  std::uint32_t dropped_ = 0;  // results that all have
  bool goes_on_ = false;
};

}  // namespace gradwire::server
