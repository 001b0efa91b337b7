#include "tests/sim/shard_counts.h"

namespace gradwire::sim {

std::string Name(ShardCount count) {
  constexpr std::array<const char*, static_cast<std::size_t>(ShardCount::kNumCounts)> kNames = {
      "steps",
      "skips",
      "skips of other shards",
      "low-rank steps",
      "sliced buckets",
      "divided buckets",
      "shards without parameters",
      "sessions of one shard",
      "members alone",
      "draw plans",
      "resumes",
      "resumes ahead",
      "resumes behind",
      "lost READYs",
      "lost conclusions",
      "lost verdicts of shards",
      "lost StepDones",
      "early restarts",
      "early leaves",
      "deaths",
      "lost daemons",
      "evictions",
      "last words",
      "failures",
      "leaves",
      "weighed buckets",
      "empty buckets of leaves",
      "barriers",
      "broadcasts",
      "broadcasts through leaves",
      "sessions finished",
      "sessions failed",
      "deaths of leaves",
      "absences",
      "early departures",
      "leaves without last words"};
  return kNames[static_cast<std::size_t>(count)];
}

}  // namespace gradwire::sim
