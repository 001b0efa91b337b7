// What the kernel says of this process.
#pragma once

#include <cstdint>

namespace gradwire::server {

struct ProcessFigures {
  double cpu_seconds = 0;
  std::uint64_t resident_bytes = 0;
  std::uint64_t open_descriptors = 0;
  std::uint64_t max_descriptors = 0;
  double start_time_seconds = 0;  // since the epoch
};

// Figures that cannot be read are 0.
ProcessFigures ReadProcessFigures();

}  // namespace gradwire::server
