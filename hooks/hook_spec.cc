#include "gradwire/hooks/hook_spec.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_code.h"
#include "gradwire/hooks/registry.h"
#include "hooks/power_sgd/options.h"

namespace gradwire {
namespace {

constexpr std::size_t kMaxOptionNameBytes = 64;

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

absl::Status NotAllowed(const std::string& field, const std::string& value,
                        const std::vector<std::string>& allowed) {
  std::vector<std::string> quoted;
  for (const std::string& name : allowed) quoted.push_back(Quoted(name));
  return Coded(
      ErrorCode::kUnknownHook,
      absl::InvalidArgumentError(absl::StrCat(
          field, ": ", Quoted(value), " is not known; allowed: ", absl::StrJoin(quoted, ", "))));
}

bool IsOptionName(const std::string& name) {
  if (name.empty() || name.size() > kMaxOptionNameBytes) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

absl::Status CheckOptionName(const std::string& name) {
  if (!IsOptionName(name) || name == "comm_hook" || name == "comm_wrapper") {
    return Coded(ErrorCode::kHookOption,
                 absl::InvalidArgumentError(absl::StrCat(
                     "comm_state_option: ", Quoted(name), " cannot name an option; allowed: 1 to ",
                     kMaxOptionNameBytes, " of A-Z, a-z, 0-9 and _, other than comm_hook and ",
                     "comm_wrapper")));
  }
  return absl::OkStatus();
}

// Returns nullopt unless the whole of `text` is such a number. std::from_chars does not depend on
// the locale, so all members read the same number.
template <class T>
absl::StatusOr<std::optional<T>> ParseNumber(const std::string& text) {
  T value{};
  const char* end = text.data() + text.size();
  const std::from_chars_result result = std::from_chars(text.data(), end, value);
  if (result.ptr != end || result.ec == std::errc::invalid_argument) return std::optional<T>();
  if (result.ec != std::errc()) {
    return Coded(ErrorCode::kHookOption,
                 absl::InvalidArgumentError(absl::StrCat(Quoted(text), " is out of range")));
  }
  return std::optional<T>(value);
}

// Tries the narrowest type first, so that "1" is an integer and "1.0" is a decimal. A number that
// is out of range is an error, not a string.
absl::StatusOr<OptionValue> ParseUnquoted(const std::string& text) {
  if (text == "true") return OptionValue(true);
  if (text == "false") return OptionValue(false);
  absl::StatusOr<std::optional<std::int64_t>> integer = ParseNumber<std::int64_t>(text);
  if (!integer.ok()) return integer.status();
  if (integer->has_value()) return OptionValue(**integer);
  absl::StatusOr<std::optional<double>> decimal = ParseNumber<double>(text);
  if (!decimal.ok()) return decimal.status();
  if (decimal->has_value()) return OptionValue(**decimal);
  return OptionValue(text);
}

absl::StatusOr<OptionValue> ParseQuoted(const std::string& text) {
  std::string value;
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '"' && i + 1 == text.size()) return OptionValue(value);
    // A quote in the middle must be escaped.
    if (text[i] == '"') break;
    if (text[i] == '\\' && ++i == text.size()) break;
    value += text[i];
  }
  return Coded(ErrorCode::kHookOption,
               absl::InvalidArgumentError(absl::StrCat(text, " is not a quoted string")));
}

absl::StatusOr<OptionValue> ParseValue(const std::string& text) {
  return !text.empty() && text.front() == '"' ? ParseQuoted(text) : ParseUnquoted(text);
}

// Splits at commas outside quotes.
std::vector<std::string> SplitItems(const std::string& text) {
  std::vector<std::string> items(1);
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ',' && !quoted) {
      items.emplace_back();
      continue;
    }
    items.back() += text[i];
    if (text[i] == '"') quoted = !quoted;
    // An escaped quote does not end the quoted part; ParseQuoted has the same rule.
    if (text[i] == '\\' && quoted && i + 1 < text.size()) items.back() += text[++i];
  }
  return items;
}

// The shortest text that reads back as the same double, so that a spec survives a round trip.
std::string DoubleText(double value) {
  std::array<char, 32> buffer;
  const std::to_chars_result result =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  std::string text(buffer.data(), result.ptr);
  // "3" would read as an integer; "inf" and "nan" would not.
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

// In the form that ParseValue reads as the same value.
std::string ValueText(const OptionValue& value) {
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const std::int64_t* integer = std::get_if<std::int64_t>(&value)) {
    return absl::StrCat(*integer);
  }
  if (const double* decimal = std::get_if<double>(&value)) return DoubleText(*decimal);
  const std::string& text = std::get<std::string>(value);
  const absl::StatusOr<OptionValue> read = ParseUnquoted(text);
  // A string that would read as a number or a boolean, or that has a comma or a quote, needs
  // quotes.
  const bool is_plain = read.ok() && std::holds_alternative<std::string>(*read) &&
                        text.find_first_of(",\"\\") == std::string::npos;
  return is_plain ? text : Quoted(text);
}

}  // namespace

absl::Status HookSpec::Validate() const {
  const std::vector<std::string> hooks = HookRegistry::Global().Names();
  if (std::find(hooks.begin(), hooks.end(), comm_hook) == hooks.end()) {
    return NotAllowed("comm_hook", comm_hook, hooks);
  }
  if (comm_wrapper != "no" && comm_wrapper != "fp16" && comm_wrapper != "bf16") {
    return NotAllowed("comm_wrapper", comm_wrapper, {"no", "fp16", "bf16"});
  }
  for (const auto& option : comm_state_option) {
    if (absl::Status status = CheckOptionName(option.first); !status.ok()) return status;
  }
  if (comm_hook == "power_sgd" || comm_hook == "batched_power_sgd") {
    return PowerSgdOptions::FromSpec(*this).status();
  }
  // Only the factory of a registered hook knows its options.
  if (HookRegistry::IsBuiltIn(comm_hook) && !comm_state_option.empty()) {
    const auto& [name, value] = *comm_state_option.begin();
    return Coded(ErrorCode::kHookOption,
                 absl::InvalidArgumentError(
                     absl::StrCat("comm_state_option: ", Quoted(name), " (", ValueText(value),
                                  ") is not an option of comm_hook ", Quoted(comm_hook),
                                  "; allowed: none, it takes no options")));
  }
  return absl::OkStatus();
}

absl::StatusOr<HookSpec> HookSpec::Parse(const std::string& text) {
  const std::vector<std::string> items = SplitItems(text);
  HookSpec spec;
  spec.comm_hook = items.front();
  bool has_wrapper = false;
  for (std::size_t i = 1; i < items.size(); ++i) {
    const std::size_t equals = items[i].find('=');
    if (equals == std::string::npos) {
      return Coded(ErrorCode::kHookOption, absl::InvalidArgumentError(absl::StrCat(
                                               "hook: ", Quoted(items[i]), " in ", Quoted(text),
                                               " is not of the form ", "name=value")));
    }
    const std::string name = items[i].substr(0, equals);
    const std::string value_text = items[i].substr(equals + 1);
    bool is_new = true;
    if (name == "comm_wrapper") {
      is_new = !has_wrapper;
      has_wrapper = true;
      spec.comm_wrapper = value_text;
    } else {
      absl::StatusOr<OptionValue> value = ParseValue(value_text);
      if (!value.ok()) {
        return Coded(ErrorCode::kHookOption, absl::InvalidArgumentError(absl::StrCat(
                                                 "comm_state_option: ", Quoted(name), ": ",
                                                 std::string(value.status().message()))));
      }
      is_new = spec.comm_state_option.emplace(name, *std::move(value)).second;
    }
    if (!is_new) {
      return Coded(ErrorCode::kHookOption,
                   absl::InvalidArgumentError(
                       absl::StrCat("hook: ", Quoted(name), " is given twice in ", Quoted(text))));
    }
  }
  if (absl::Status status = spec.Validate(); !status.ok()) return status;
  return spec;
}

std::string HookSpec::ToString() const {
  std::string text = comm_hook;
  if (comm_wrapper != "no") absl::StrAppend(&text, ",comm_wrapper=", comm_wrapper);
  for (const auto& [name, value] : comm_state_option) {
    absl::StrAppend(&text, ",", name, "=", ValueText(value));
  }
  return text;
}

// A result may replace the gradient in shared memory only if the gradient's dtype holds it exactly.
bool HookSpec::TakesResults(DType gradients) const {
  if (!OnlyCasts()) return false;
  if (comm_hook == "no" || gradients == DType::kFloat32 || gradients == DType::kFloat64)
    return true;
  return gradients == (comm_hook == "fp16" ? DType::kFloat16 : DType::kBFloat16);
}

std::optional<std::string> FirstDifference(const HookSpec& asked, const HookSpec& session) {
  const auto differs = [](const std::string& field, const std::string& a, const std::string& b) {
    return absl::StrCat(field, " is ", a, "; the session's is ", b);
  };
  if (asked.comm_hook != session.comm_hook) {
    return differs("comm_hook", Quoted(asked.comm_hook), Quoted(session.comm_hook));
  }
  if (asked.comm_wrapper != session.comm_wrapper) {
    return differs("comm_wrapper", Quoted(asked.comm_wrapper), Quoted(session.comm_wrapper));
  }
  // The union of both, so that an option which only one side has is a difference too.
  std::map<std::string, OptionValue> both = asked.comm_state_option;
  both.insert(session.comm_state_option.begin(), session.comm_state_option.end());
  const auto text = [](const HookSpec& spec, const std::string& name) {
    const auto found = spec.comm_state_option.find(name);
    return found == spec.comm_state_option.end() ? "not given" : ValueText(found->second);
  };
  for (const auto& option : both) {
    const std::string in_asked = text(asked, option.first);
    const std::string in_session = text(session, option.first);
    if (in_asked == in_session) continue;
    return differs(absl::StrCat("comm_state_option ", Quoted(option.first)), in_asked, in_session);
  }
  return std::nullopt;
}

}  // namespace gradwire
