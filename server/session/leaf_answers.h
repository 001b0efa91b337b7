// What a leaf's upstream says, as events for its session.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "server/core/effects.h"

namespace gradwire::server {

// As SessionCore's functions of these names. Called without locks.
struct LeafAnswers {
  std::function<void(const std::string& why)> waits;
  std::function<void(const UpstreamWelcome& welcome)> joined;
  std::function<void(std::int64_t step, const UpstreamConclusion& conclusion)> concluded;
  std::function<void(const UpstreamProgress& progress)> goes_on;
  std::function<void(const absl::Status& why, int blamed_rank)> failed;
};

}  // namespace gradwire::server
