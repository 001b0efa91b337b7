#include "client/examples/demo_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace demo {
namespace {

constexpr double kMinAccuracy = 0.95;
constexpr double kRatioTolerance = 0.02;
constexpr double kMaxDifferenceToSingle = 1e-4;

double DifferenceBetweenMembers(const HookResult& result) {
  double largest = 0;
  for (const TrainResult& member : result.members) {
    largest =
        std::max(largest, LargestDifference(member.parameters, result.members.front().parameters));
  }
  return largest;
}

double LowestAccuracy(const HookResult& result) {
  double lowest = 1;
  for (const TrainResult& member : result.members) lowest = std::min(lowest, member.accuracy);
  return lowest;
}

bool Check(const std::string& what, bool passed, const std::string& found) {
  std::printf("check: %-46s %-6s %s\n", what.c_str(), passed ? "ok" : "FAILED", found.c_str());
  return passed;
}

void PrintTable(const std::vector<HookResult>& hooks, const TrainResult& single) {
  std::printf("\n%-12s %9s %13s %13s %7s %16s %9s\n", "hook", "accuracy", "wire/step", "fp32/step",
              "ratio", "between members", "seconds");
  for (const HookResult& result : hooks) {
    std::printf("%-12s %8.2f%% %10.3f MB %10.3f MB %7.4f %16.3g %9.1f\n", result.hook.c_str(),
                100 * LowestAccuracy(result), result.wire_bytes_per_step / 1e6,
                result.fp32_bytes_per_step / 1e6, result.ratio(), DifferenceBetweenMembers(result),
                result.members.front().seconds);
  }
  std::printf("%-12s %8.2f%% %13s %13s %7s %16s %9.1f\n\n", "single", 100 * single.accuracy, "-",
              "-", "-", "-", single.seconds);
}

}  // namespace

absl::StatusOr<TrainResult> ReadTrainResult(const std::string& path) {
  TrainResult result;
  std::ifstream summary(path + ".summary");
  int found = 0;
  for (std::string line; std::getline(summary, line);) {
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos) continue;
    const std::string key = line.substr(0, equals);
    const std::string value = line.substr(equals + 1);
    if (key == "accuracy") found += absl::SimpleAtod(value, &result.accuracy) ? 1 : 0;
    if (key == "seconds") found += absl::SimpleAtod(value, &result.seconds) ? 1 : 0;
    if (key == "steps_applied") found += absl::SimpleAtoi(value, &result.steps_applied) ? 1 : 0;
  }
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const auto bytes = static_cast<std::streamoff>(file.tellg());
  if (found != 3 || bytes <= 0 || bytes % std::streamoff{sizeof(float)} != 0) {
    return absl::DataLossError(absl::StrCat("not a result of train_digits: ", path));
  }
  result.parameters.resize(static_cast<std::size_t>(bytes) / sizeof(float));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(result.parameters.data()), bytes);
  if (!file) return absl::DataLossError(absl::StrCat("cannot read ", path));
  return result;
}

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, difference);
  }
  return largest;
}

bool Report(const std::vector<HookResult>& hooks, const TrainResult& single) {
  PrintTable(hooks, single);
  bool passed = true;
  double to_single = std::numeric_limits<double>::infinity();
  for (const HookResult& result : hooks) {
    const double accuracy = LowestAccuracy(result);
    passed &= Check(absl::StrCat(result.hook, ": test accuracy at least 95 %"),
                    accuracy >= kMinAccuracy, absl::StrFormat("%.2f %%", 100 * accuracy));
    const double ratio = result.ratio() / result.expected_ratio;
    passed &=
        Check(absl::StrFormat("%s: bytes on the wire %s%g of fp32", result.hook,
                              result.may_be_less ? "at most " : "", result.expected_ratio),
              ratio <= 1 + kRatioTolerance && (result.may_be_less || ratio >= 1 - kRatioTolerance),
              absl::StrFormat("%.4f", result.ratio()));
    if (result.hook == "power_sgd-2") {
      const double plain = LowestAccuracy(hooks.front());
      passed &= Check("power_sgd-2: accuracy within 1 point of no's", accuracy >= plain - 0.01,
                      absl::StrFormat("%+.2f points", 100 * (accuracy - plain)));
    }
    const double between = DifferenceBetweenMembers(result);
    passed &= Check(absl::StrCat(result.hook, ": parameters equal on all members"), between == 0,
                    absl::StrFormat("max |d| %g", between));
    if (result.hook == "no") {
      to_single = LargestDifference(result.members.front().parameters, single.parameters);
    }
  }
  passed &= Check("no: same as one process on the whole batch", to_single <= kMaxDifferenceToSingle,
                  absl::StrFormat("max |d| %.2g, at most %g", to_single, kMaxDifferenceToSingle));
  return passed;
}

}  // namespace demo
