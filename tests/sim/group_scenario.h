// What one seed of the simulation of node groups stands for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/core/session_options.h"

namespace gradwire::sim {

struct GroupScenario {
  std::uint64_t seed = 0;
  server::SessionOptions options;
  std::vector<std::string> groups;  // by rank, the name of its group; "": in none
  // By step, then bucket: positions in the manifest. Each member starts them in its own order.
  std::vector<std::vector<std::vector<std::uint32_t>>> steps;
  std::vector<bool> ended;  // by step: whether members end it themselves
  std::int64_t nonfinite_step = -1;
  int cut_percent = 0;  // of frames, after which the member's stream breaks
  int dying_rank = -1;
  std::size_t dies_after = 0;  // events of the run

  double Gradient(int rank, std::int64_t step, std::uint32_t parameter, std::size_t i) const;
  std::vector<std::byte> GradientBytes(int rank, std::int64_t step, std::uint32_t parameter) const;
};

GroupScenario MakeGroupScenario(std::uint64_t seed);
std::string Describe(const GroupScenario& scenario);

}  // namespace gradwire::sim
