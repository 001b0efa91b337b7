// What came out of the demo's runs, and whether it is what it should be.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace demo {

// What one train_digits process wrote.
struct TrainResult {
  std::vector<float> parameters;
  double accuracy = 0;
  double seconds = 0;
  std::uint64_t steps_applied = 0;
};
absl::StatusOr<TrainResult> ReadTrainResult(const std::string& path);

// One session: all its members' results, and the bytes of one step as the daemon counted them.
struct HookResult {
  std::string hook;           // as the table shows it
  double expected_ratio = 1;  // bytes on the wire to fp32 bytes
  bool may_be_less = false;   // the ratio, by any amount
  std::vector<TrainResult> members;
  double wire_bytes_per_step = 0;
  double fp32_bytes_per_step = 0;

  double ratio() const { return wire_bytes_per_step / fp32_bytes_per_step; }
};

// Infinite if the sizes differ or a value is no number.
double LargestDifference(const std::vector<float>& a, const std::vector<float>& b);

// Prints the table and a line per check. True if all checks passed.
bool Report(const std::vector<HookResult>& hooks, const TrainResult& single);

}  // namespace demo
