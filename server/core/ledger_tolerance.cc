#include "server/core/ledger_tolerance.h"

#include <algorithm>
#include <optional>

#include "hooks/power_sgd/options.h"

namespace gradwire::server {
namespace {

// For the largest of a few hundred rows, each of which is the sum of many steps.
constexpr double kSpread = 16;

double HalfUlp(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return 0x1p-53;
    case DType::kFloat32:
      return 0x1p-24;
    case DType::kFloat16:
      return 0x1p-11;
    case DType::kBFloat16:
      return 0x1p-8;
  }
  return 0;
}

std::optional<DType> DtypeOf(const std::string& cast) {
  if (cast == "fp16") return DType::kFloat16;
  if (cast == "bf16") return DType::kBFloat16;
  return std::nullopt;
}

}  // namespace

LedgerTolerance LedgerToleranceOf(const SessionOptions& options) {
  const HookSpec& spec = options.spec;
  LedgerTolerance tolerance;
  double coarsest = 0;
  for (std::size_t p = 0; p < options.manifest.size(); ++p) {
    coarsest = std::max(coarsest, HalfUlp(options.manifest[p].dtype));
  }
  bool keeps_rounding = false;
  if (spec.comm_hook == "power_sgd" || spec.comm_hook == "batched_power_sgd") {
    const auto power_sgd = PowerSgdOptions::FromSpec(spec);
    const ErrorFeedback kept = power_sgd.ok() ? power_sgd->error_feedback : ErrorFeedback::kNone;
    keeps_rounding = kept == ErrorFeedback::kAggregate && power_sgd->start_powerSGD_iter == 0;
    if (kept == ErrorFeedback::kNone) {
      tolerance.loses = "without error feedback, what compression leaves out is lost";
    }
  } else if (spec.comm_hook != "no" && !DtypeOf(spec.comm_hook)) {
    tolerance.loses = "the session does not know whether its hook keeps what it leaves out";
  }
  for (const std::string& cast : {spec.comm_hook, spec.comm_wrapper}) {
    const std::optional<DType> dtype = DtypeOf(cast);
    if (dtype && !keeps_rounding) coarsest = std::max(coarsest, HalfUlp(*dtype));
  }
  tolerance.of_balance = kSpread * coarsest;
  return tolerance;
}

}  // namespace gradwire::server
