// The child processes of options_bench: one of two members of a session.
#pragma once

#include <string>

namespace gradwire::bench {

constexpr int kMembers = 2;

struct MemberSettings {
  std::string address;
  std::string load;
  int rank = 0;
  bool keep_gradients = false;
  bool check_parameters = false;  // in each step
};

// For each line on standard input a turn: a step that does not count, because other sessions have
// emptied the caches, and those of the load. Answers with the median of their milliseconds, from
// the first call to the verdict. Exits with 1 where a result is not the mean.
int RunMember(const MemberSettings& settings);

}  // namespace gradwire::bench
