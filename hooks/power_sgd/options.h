// The options of torch's PowerSGDState, with its names and defaults, and Gradwire's own.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "gradwire/hooks/dtype.h"
#include "gradwire/hooks/hook_spec.h"

namespace gradwire {

enum class ErrorFeedback : std::uint8_t {
  kNone,
  kAggregate,  // residual = gradient + residual - averaged result, as torch
  kLocal,      // residual = gradient + residual - approximation by this member's own factors
};

struct PowerSgdOptions {
  bool batched = false;  // comm_hook "batched_power_sgd": the whole bucket as one square matrix
  std::optional<DType> wire{};  // comm_wrapper: the dtype in which everything travels

  std::int64_t matrix_approximation_rank = 1;  // 1 to 1024; clamped to a matrix's sides
  std::int64_t start_powerSGD_iter = 1000;     // 0 and up; before it, a plain mean
  double min_compression_rate = 2;             // above 0
  bool warm_start = true;
  double orthogonalization_epsilon = 0;  // 0 and up
  std::uint32_t random_seed = 0;
  std::int64_t compression_stats_logging_frequency = 10000;  // 1 and up
  bool batch_tensors_with_same_shape = false;
  ErrorFeedback error_feedback = ErrorFeedback::kAggregate;  // kNone: use_error_feedback=false
  int rounds = 2;  // 1: one half-iteration per step, the factors in turn

  // InvalidArgument names the option, the value and what is allowed.
  static absl::StatusOr<PowerSgdOptions> FromSpec(const HookSpec& spec);
};

}  // namespace gradwire
