#include "hooks/power_sgd/options.h"

#include <cmath>
#include <limits>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_code.h"

namespace gradwire {
namespace {

constexpr std::int64_t kMaxRank = 1024;

const char* const kNames[] = {"matrix_approximation_rank",
                              "start_powerSGD_iter",
                              "min_compression_rate",
                              "use_error_feedback",
                              "warm_start",
                              "orthogonalization_epsilon",
                              "random_seed",
                              "compression_stats_logging_frequency",
                              "batch_tensors_with_same_shape",
                              "error_feedback",
                              "rounds"};

std::string Text(const OptionValue& value) {
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return absl::StrCat(*integer);
  if (const double* decimal = std::get_if<double>(&value)) return absl::StrCat(*decimal);
  return absl::StrCat("\"", std::get<std::string>(value), "\"");
}

// Reads options one by one; the first that is not allowed is the answer.
class Reader {
 public:
  explicit Reader(const HookSpec& spec) : spec_(spec) {
    for (const auto& [name, value] : spec.comm_state_option) {
      bool known = false;
      for (const char* candidate : kNames) known = known || name == candidate;
      if (known || !status_.ok()) continue;
      status_ =
          Coded(ErrorCode::kHookOption, absl::InvalidArgumentError(absl::StrCat(
                                            "comm_state_option: \"", name, "\" (", Text(value),
                                            ") is not an option of comm_hook \"", spec.comm_hook,
                                            "\"; allowed: ", absl::StrJoin(kNames, ", "))));
    }
  }

  void Integer(const char* name, std::int64_t least, std::int64_t most, std::int64_t& out) {
    const OptionValue* value = Find(name);
    if (value == nullptr) return;
    const auto* integer = std::get_if<std::int64_t>(value);
    if (integer == nullptr || *integer < least || *integer > most) {
      const bool is_open = most == std::numeric_limits<std::int64_t>::max();
      return Refuse(name, *value,
                    is_open ? absl::StrCat("integers from ", least)
                            : absl::StrCat("integers from ", least, " to ", most));
    }
    out = *integer;
  }

  // Finite numbers from 0 on; 0 itself if `with_zero`.
  void Number(const char* name, bool with_zero, double& out) {
    const OptionValue* value = Find(name);
    if (value == nullptr) return;
    double number = std::numeric_limits<double>::quiet_NaN();
    if (const auto* integer = std::get_if<std::int64_t>(value)) {
      number = static_cast<double>(*integer);
    } else if (const double* decimal = std::get_if<double>(value)) {
      number = *decimal;
    }
    if (!std::isfinite(number) || number < 0 || (number == 0 && !with_zero)) {
      return Refuse(name, *value, with_zero ? "finite numbers from 0" : "finite numbers above 0");
    }
    out = number;
  }

  void Flag(const char* name, bool& out) {
    const OptionValue* value = Find(name);
    if (value == nullptr) return;
    const bool* flag = std::get_if<bool>(value);
    if (flag == nullptr) return Refuse(name, *value, "true, false");
    out = *flag;
  }

  void Form(const char* name, ErrorFeedback& out) {
    const OptionValue* value = Find(name);
    if (value == nullptr) return;
    const auto* text = std::get_if<std::string>(value);
    if (text == nullptr || (*text != "aggregate" && *text != "local")) {
      return Refuse(name, *value, "\"aggregate\", \"local\"");
    }
    out = *text == "local" ? ErrorFeedback::kLocal : ErrorFeedback::kAggregate;
  }

  const absl::Status& status() const { return status_; }

 private:
  const OptionValue* Find(const char* name) const {
    const auto found = spec_.comm_state_option.find(name);
    return found == spec_.comm_state_option.end() ? nullptr : &found->second;
  }

  void Refuse(const std::string& name, const OptionValue& value, const std::string& allowed) {
    if (!status_.ok()) return;
    status_ = Coded(ErrorCode::kHookOption, absl::InvalidArgumentError(absl::StrCat(
                                                "comm_state_option: \"", name, "\": ", Text(value),
                                                " is not allowed; allowed: ", allowed)));
  }

  const HookSpec& spec_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<PowerSgdOptions> PowerSgdOptions::FromSpec(const HookSpec& spec) {
  constexpr std::int64_t kOpen = std::numeric_limits<std::int64_t>::max();
  PowerSgdOptions options{.batched = spec.comm_hook == "batched_power_sgd"};
  if (spec.comm_wrapper == "fp16") options.wire = DType::kFloat16;
  if (spec.comm_wrapper == "bf16") options.wire = DType::kBFloat16;
  Reader reader(spec);
  reader.Integer("matrix_approximation_rank", 1, kMaxRank, options.matrix_approximation_rank);
  reader.Integer("start_powerSGD_iter", 0, kOpen, options.start_powerSGD_iter);
  reader.Number("min_compression_rate", /*with_zero=*/false, options.min_compression_rate);
  reader.Flag("warm_start", options.warm_start);
  reader.Number("orthogonalization_epsilon", /*with_zero=*/true, options.orthogonalization_epsilon);
  std::int64_t seed = 0;
  reader.Integer("random_seed", 0, std::numeric_limits<std::uint32_t>::max(), seed);
  options.random_seed = static_cast<std::uint32_t>(seed);
  reader.Integer("compression_stats_logging_frequency", 1, kOpen,
                 options.compression_stats_logging_frequency);
  reader.Flag("batch_tensors_with_same_shape", options.batch_tensors_with_same_shape);
  reader.Form("error_feedback", options.error_feedback);
  // After error_feedback, because `use_error_feedback` = false overrides it.
  bool use_error_feedback = true;
  reader.Flag("use_error_feedback", use_error_feedback);
  if (!use_error_feedback) options.error_feedback = ErrorFeedback::kNone;
  std::int64_t rounds = 2;
  reader.Integer("rounds", 1, 2, rounds);
  options.rounds = static_cast<int>(rounds);
  if (!reader.status().ok()) return reader.status();
  // One round sends P or Q and takes the other one from the step before, so it cannot draw anew.
  if (options.rounds == 1 && !options.warm_start) {
    return Coded(
        ErrorCode::kHookOption,
        absl::InvalidArgumentError(
            "comm_state_option: \"warm_start\": false is not allowed with \"rounds\": 1; allowed: "
            "true, "
            "since one round goes on from the factor of the step before"));
  }
  return options;
}

}  // namespace gradwire
