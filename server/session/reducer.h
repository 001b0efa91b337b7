// What computes the reductions that session cores ask for.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "server/core/effects.h"

namespace gradwire::server {

class SessionMemory;

// Thread-safe.
class Reducer {
 public:
  struct Done {
    wire::RoundId id;
    std::uint32_t chunk = 0;  // as the ReduceEffect had them
    ResultRef result;
    bool finite = true;
    absl::Duration spent;
  };
  using Answer = std::function<void(std::vector<Done>)>;

  virtual ~Reducer() = default;

  // Calls `answer` until it has had each reduction of the batch once: in one or several parts, in
  // any order, on any thread, before Reduce returns or later. `memory` takes results that members
  // of this host read. The caller holds no lock that `answer` takes.
  virtual void Reduce(std::vector<ReduceEffect> batch, std::shared_ptr<SessionMemory> memory,
                      Answer answer) = 0;
};

}  // namespace gradwire::server
