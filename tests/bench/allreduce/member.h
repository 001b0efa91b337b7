// The child processes of allreduce_bench: one member of a session.
#pragma once

#include <cstddef>
#include <string>

namespace gradwire::bench {

struct MemberSettings {
  std::string address;
  std::string session = "bench";
  int rank = 0;
  int world_size = 1;
  std::string hook = "no";
  std::size_t bytes = 0;  // of gradient
  // Where the bucket lies: "own" memory, or "shared" with the daemon, by AllocateGradients.
  std::string gradients = "own";
  bool shares_memory = false;  // expected of the connection
};

// For each line on standard input one step with one bucket. Exits with 1 where a result is not the
// mean.
int RunBulkMember(const MemberSettings& settings);

// For each line on standard input rounds of 4 KiB; answers with the percentiles of a round's time,
// from the call to the result. `beside`: a bucket of `bytes` is under way in the same session.
int RunTinyMember(const MemberSettings& settings, bool beside);

}  // namespace gradwire::bench
