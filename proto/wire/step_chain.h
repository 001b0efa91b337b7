// The chain of the digests of a session's steps, from its first one on. Daemon and members compute
// it alike, so that a fresh daemon can tell whether all members have applied the same, and two runs
// are the same up to a step if their chains are equal after it.
#pragma once

#include <cstdint>

#include "proto/wire/frame.h"

namespace gradwire::wire {

class StepChain {
 public:
  // Of all steps before `step`. 0 before the first step; later it means that it is not known.
  explicit StepChain(std::int64_t step = 0, std::uint64_t value = 0) : step_(step), value_(value) {}

  bool known() const { return value_ != 0 || step_ == 0; }
  // 0 if that is not known here.
  std::uint64_t Before(std::int64_t step) const { return step == step_ ? value_ : 0; }

  // The step is over. A repeat has no effect; after a gap the chain is not known.
  void Advance(const StepDone& done);

  bool operator==(const StepChain&) const = default;

 private:
  std::int64_t step_;
  std::uint64_t value_;
};

}  // namespace gradwire::wire
