// The time that the session cores see: monotonic, so that a corrected wall clock ends no session.
#pragma once

#include <chrono>

#include "absl/time/time.h"

namespace gradwire::server {

inline absl::Time MonotonicNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace gradwire::server
