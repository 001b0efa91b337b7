#include "tests/bench/options/load.h"

#include <cstdio>
#include <cstdlib>

namespace gradwire::bench {
namespace {

constexpr std::size_t kMiBOfFloats = (std::size_t{1} << 20) / sizeof(float);

}  // namespace

const std::vector<Load>& Loads() {
  static const auto& loads =
      *new std::vector<Load>{{.name = "shared",
                              .title = "16 MiB, gradients in shared memory",
                              .in_place = true,
                              .numel = 4 * kMiBOfFloats,
                              .steps = 6},
                             {.name = "copied",
                              .title = "16 MiB, copied into shared memory",
                              .numel = 4 * kMiBOfFloats,
                              .steps = 4},
                             {.name = "tcp",
                              .title = "16 MiB over TCP",
                              .tcp = true,
                              .numel = 4 * kMiBOfFloats,
                              .steps = 3},
                             {.name = "small",
                              .title = "10,000 parameters of 8 elements, in shared memory",
                              .parameters = 2500,
                              .numel = 8,
                              .steps = 10}};
  return loads;
}

const Load& LoadOf(const std::string& name) {
  for (const Load& load : Loads()) {
    if (load.name == name) return load;
  }
  std::fprintf(stderr, "bench: no load is named %s\n", name.c_str());
  std::exit(1);
}

}  // namespace gradwire::bench
