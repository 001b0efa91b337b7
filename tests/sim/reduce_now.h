// The sum that a session asks for, computed at once.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "hooks/reduce.h"
#include "server/core/effects.h"
#include "tests/sim/bytes.h"

namespace gradwire::sim {

struct ReducedNow {
  server::ResultRef result;
  bool finite = true;
};

inline ReducedNow ReduceNow(const server::ReduceEffect& effect, Random& random) {
  std::vector<ByteVector> inputs;
  for (const wire::PayloadRef& input : effect.inputs) inputs.push_back(Flatten(input.get()));
  const std::vector<std::span<const std::byte>> pieces(inputs.begin(), inputs.end());
  std::vector<Pieces> contributions;
  for (const auto& piece : pieces) contributions.emplace_back(&piece, 1);
  const Segment& segment = effect.segment;
  ByteVector out(segment.bytes());
  const bool finite = (segment.op == ReduceOp::kOrthonormalizedSum
                           ? ReduceOrthonormalized(segment, contributions, out)
                           : Reduce(segment.dtype, segment.op, segment.numel, contributions, out,
                                    effect.raw, effect.weight))
                          .finite;
  return {.result = server::KeptResult::Make(MakePayload(std::move(out), random)),
          .finite = finite};
}

}  // namespace gradwire::sim
