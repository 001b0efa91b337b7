// The description of a communication pipeline, with the same fields as C++ struct, proto message,
// Python dict, YAML and command line. Field names are Accelerate's, option names PyTorch's.
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

  // Returns InvalidArgument with the field, the value and what is allowed. The factory of a
  // registered hook checks the values of its options.
  absl::Status Validate() const;

  // Parses the output of ToString: "fp16", "my_hook,comm_wrapper=bf16,some_option=2". A value is
  // true/false, an integer, a decimal number, or else a string. A value in double quotes is always
  // a string, in which a backslash escapes quotes and backslashes. Parse also validates the result.
  static absl::StatusOr<HookSpec> Parse(const std::string& text);
  std::string ToString() const;

  // Whether a contribution is just the gradient, cast and divided by the world size.
  bool OnlyCasts() const {
    return comm_wrapper == "no" &&
           (comm_hook == "no" || comm_hook == "fp16" || comm_hook == "bf16");
  }

  // Whether a result can replace gradients of this dtype in place: the hook only casts, and the
  // dtype can represent every value of the wire dtype.
  bool TakesResults(DType gradients) const;

  bool operator==(const HookSpec&) const = default;
};

// `comm_hook is "fp16"; the session's is "no"`, or nullopt when the two are equal.
std::optional<std::string> FirstDifference(const HookSpec& asked, const HookSpec& session);

}  // namespace gradwire
