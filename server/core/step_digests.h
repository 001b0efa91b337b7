// The chain after each of the session's steps (wire::StepChain), for operators who compare two
// runs.
//
// The memory is bounded: all of the last steps are kept, of those before them every 100th, and when
// these are too many, every second of them goes and the spacing doubles. Steps that are kept are
// multiples of the spacing, so that two long runs keep the same ones.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "proto/wire/step_chain.h"

namespace gradwire::server {

class StepDigests {
 public:
  static constexpr std::size_t kRecent = 4096;   // the last steps
  static constexpr std::size_t kEarlier = 4096;  // of those before them, at most

  struct Entry {
    std::int64_t step = 0;
    std::uint64_t chain = 0;  // of all steps up to this one
    bool operator==(const Entry&) const = default;
  };

  // The open step is over.
  void Conclude(const wire::StepDone& done);
  // The session had a daemon before this one: `chain` is of all steps before `step`; 0: unknown.
  void GoOnFrom(std::int64_t step, std::uint64_t chain);

  // Of all steps before `step`; 0: it is not known, or `step` is 0.
  std::uint64_t Before(std::int64_t step) const;

  // Steps ascend.
  void Append(std::int64_t step, std::uint64_t chain);
  std::optional<std::uint64_t> Find(std::int64_t step) const;
  // At most `count` that are kept, from step `first` on, ascending.
  std::vector<Entry> Range(std::int64_t first, std::size_t count) const;

 private:
  void Thin(const Entry& oldest);

  wire::StepChain chain_;
  std::int64_t spacing_ = 100;
  std::vector<Entry> earlier_;  // ascending; multiples of the spacing
  std::deque<Entry> recent_;    // ascending, after those
};

}  // namespace gradwire::server
