// What one seed of the simulation of node groups stands for.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
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

  // ---- Of a session that outlives its daemon: all of it is drawn from other numbers.
  bool recovers = false;
  std::vector<std::size_t> losses;  // of the daemon: after so many events, ascending
  // Of members, where other processes take their places, maybe: a number that says whose turn it
  // is.
  std::vector<std::pair<std::size_t, std::uint64_t>> deaths;

  double Gradient(int rank, std::int64_t step, std::uint32_t parameter, std::size_t i) const;
  std::vector<std::byte> GradientBytes(int rank, std::int64_t step, std::uint32_t parameter) const;
};

// `recovers`: the session outlives its daemon, and maybe its members.
GroupScenario MakeGroupScenario(std::uint64_t seed, bool recovers = false);
std::string Describe(const GroupScenario& scenario);

}  // namespace gradwire::sim
