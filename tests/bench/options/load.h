// What a member of options_bench reduces in each step: fp32 in four buckets.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace gradwire::bench {

constexpr std::size_t kBuckets = 4;

struct Load {
  std::string name;
  std::string title;
  bool tcp = false;            // else a unix socket, with payloads in shared memory
  bool in_place = false;       // the gradients lie in shared memory, so that nothing is copied
  std::size_t parameters = 1;  // of a bucket
  std::size_t numel = 1;       // of a parameter
  int steps = 1;               // of a turn

  std::size_t bucket_numel() const { return parameters * numel; }
  bool is_small() const { return parameters > 1; }
};

const std::vector<Load>& Loads();
// Exits the program if there is none of that name.
const Load& LoadOf(const std::string& name);

}  // namespace gradwire::bench
