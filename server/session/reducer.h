// The interface for computing the reductions that session cores request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "hooks/reduce.h"
#include "server/core/effects.h"

namespace gradwire::server {

class SessionMemory;

// Bytes of all contributions. Other events wait about 50 us for such a sum; for more, the thread
// yields leadership first.
inline constexpr std::size_t kQuickSums = std::size_t{256} << 10;

// Thread-safe.
class Reducer {
 public:
  struct Done {
    wire::RoundId id;
    std::uint32_t chunk = 0;  // as in the ReduceEffect
    ResultRef result;
    ReduceOutcome outcome{};
    absl::Duration spent;
  };
  using Answer = std::function<void(std::vector<Done>)>;

  virtual ~Reducer() = default;

  // Passes each reduction of the batch to `answer` exactly once: in one or several calls, in any
  // order, on any thread, before or after Reduce returns. `memory` holds results that members on
  // this host read. The caller must not hold a lock that `answer` takes.
  virtual void Reduce(std::vector<ReduceEffect> batch, std::shared_ptr<SessionMemory> memory,
                      Answer answer) = 0;
};

}  // namespace gradwire::server
