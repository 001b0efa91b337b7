// One description of a communication pipeline, the same everywhere: C++ struct, proto message,
// Python dict, YAML, command line. The words are Accelerate's, the options PyTorch's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "gradwire/hooks/dtype.h"

namespace gradwire {

using OptionValue = std::variant<bool, std::int64_t, double, std::string>;

struct HookSpec {
  // "no" (mean in the gradients' own dtype), "fp16", "bf16", "noop", or the name of a registered
  // hook.
  std::string comm_hook = "no";
  // "no", "fp16" or "bf16": a cast around the hook.
  std::string comm_wrapper = "no";
  // The hook's own options. "no", "fp16", "bf16" and "noop" take none.
  std::map<std::string, OptionValue> comm_state_option;

  // InvalidArgument names the field, the value and what is allowed. The values of a registered
  // hook's options are its factory's business.
  absl::Status Validate() const;

  // Parses what ToString prints: "fp16", "my_hook,comm_wrapper=bf16,some_option=2". Values read as
  // true/false, integer, decimal number, else string; what is in double quotes is always a string,
  // with a backslash before each quote and backslash that belongs to it. The result is validated.
  static absl::StatusOr<HookSpec> Parse(const std::string& text);
  std::string ToString() const;

  // Whether a contribution is the gradient, cast and divided by the world size, and nothing else.
  bool OnlyCasts() const {
    return comm_wrapper == "no" &&
           (comm_hook == "no" || comm_hook == "fp16" || comm_hook == "bf16");
  }

  // Whether a result can lie in the place of gradients of this dtype: the hook only casts, and the
  // dtype has every value of the wire's.
  bool TakesResults(DType gradients) const;

  bool operator==(const HookSpec&) const = default;
};

// "comm_hook is "fp16" here and "no" there", or nullopt when the two are equal.
std::optional<std::string> FirstDifference(const HookSpec& here, const HookSpec& there);

}  // namespace gradwire
