#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "gradwire/hooks/registry.h"
#include "proto/wire/checks.h"
#include "proto/wire/manifest_reader.h"
#include "proto/wire/proto_conversion.h"

namespace gradwire::wire {
namespace {

constexpr std::size_t kMaxHookNameBytes = 63;
// google.protobuf.Duration's own range.
constexpr std::int64_t kMaxSeconds = 315'576'000'000;
constexpr std::int32_t kMaxNanos = 999'999'999;

bool IsHookName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxHookNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
         });
}

bool IsOptionName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxHookNameBytes + 1 &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_';
         });
}

v1::OptionValue ToProto(const OptionValue& option) {
  v1::OptionValue message;
  if (const auto* flag = std::get_if<bool>(&option)) message.set_bool_value(*flag);
  if (const auto* integer = std::get_if<std::int64_t>(&option)) message.set_int_value(*integer);
  if (const auto* number = std::get_if<double>(&option)) message.set_double_value(*number);
  if (const auto* text = std::get_if<std::string>(&option)) message.set_string_value(*text);
  return message;
}

absl::StatusOr<OptionValue> FromProto(const std::string& name, const v1::OptionValue& message) {
  const std::string field = absl::StrCat("hook.comm_state_option[\"", name, "\"]");
  switch (message.value_case()) {
    case v1::OptionValue::kBoolValue:
      return OptionValue(message.bool_value());
    case v1::OptionValue::kIntValue:
      return OptionValue(std::int64_t{message.int_value()});
    case v1::OptionValue::kDoubleValue:
      // NaN would differ from itself when members' specs are compared.
      if (std::isnan(message.double_value())) return NotAllowed(field, "NaN", "a number");
      return OptionValue(message.double_value());
    case v1::OptionValue::kStringValue:
      if (message.string_value().size() > kMaxOptionBytes) {
        return NotAllowed(field, absl::StrCat("has ", message.string_value().size(), " bytes"),
                          absl::StrCat("at most ", kMaxOptionBytes));
      }
      return OptionValue(message.string_value());
    case v1::OptionValue::VALUE_NOT_SET:
      break;
  }
  return NotAllowed(field, "has no value", "a bool, an int64, a double or a string");
}

}  // namespace

v1::HookSpec ToProto(const HookSpec& spec) {
  v1::HookSpec message;
  message.set_comm_hook(spec.comm_hook);
  message.set_comm_wrapper(spec.comm_wrapper);
  for (const auto& [name, value] : spec.comm_state_option) {
    (*message.mutable_comm_state_option())[name] = ToProto(value);
  }
  return message;
}

absl::StatusOr<HookSpec> FromProto(const v1::HookSpec& message) {
  HookSpec spec;
  if (!message.comm_hook().empty()) spec.comm_hook = message.comm_hook();
  if (!message.comm_wrapper().empty()) spec.comm_wrapper = message.comm_wrapper();
  if (!IsHookName(spec.comm_hook)) {
    return NotAllowed("hook.comm_hook",
                      absl::StrCat("\"", spec.comm_hook.substr(0, kMaxHookNameBytes), "\""),
                      absl::StrCat("1 to ", kMaxHookNameBytes, " of a-z, 0-9 and _"));
  }
  if (spec.comm_wrapper != "no" && spec.comm_wrapper != "fp16" && spec.comm_wrapper != "bf16") {
    return NotAllowed("hook.comm_wrapper",
                      absl::StrCat("\"", spec.comm_wrapper.substr(0, kMaxHookNameBytes), "\""),
                      "\"no\", \"fp16\", \"bf16\"");
  }
  absl::Status count = CheckCount("hook.comm_state_option", message.comm_state_option().size(),
                                  std::size_t{0}, kMaxOptions);
  if (!count.ok()) return count;
  for (const auto& [name, option] : message.comm_state_option()) {
    if (!IsOptionName(name)) {
      return NotAllowed(
          "hook.comm_state_option", absl::StrCat("\"", name.substr(0, kMaxHookNameBytes + 1), "\""),
          absl::StrCat("names of 1 to ", kMaxHookNameBytes + 1, " of A-Z, a-z, 0-9 and _"));
    }
    absl::StatusOr<OptionValue> value = FromProto(name, option);
    if (!value.ok()) return value.status();
    spec.comm_state_option.emplace(name, *std::move(value));
  }
  if (HookRegistry::IsBuiltIn(spec.comm_hook)) {
    if (absl::Status status = spec.Validate(); !status.ok()) return status;
  }
  return spec;
}

v1::Parameter ToProto(const ParameterSpec& parameter) {
  v1::Parameter message;
  message.set_name(parameter.name);
  message.mutable_shape()->Add(parameter.shape.begin(), parameter.shape.end());
  message.set_dtype(static_cast<v1::DataType>(parameter.dtype));
  return message;
}

absl::StatusOr<std::vector<ParameterSpec>> FromProto(const Manifest& manifest) {
  const auto size = static_cast<std::size_t>(manifest.size());
  if (absl::Status status = CheckCount("manifest", size, std::size_t{0}, kMaxParameters);
      !status.ok()) {
    return status;
  }
  ManifestReader reader(size);
  if (absl::Status status = reader.Add(manifest); !status.ok()) return status;
  return std::move(reader).Take();
}

google::protobuf::Duration ToProto(absl::Duration duration) {
  google::protobuf::Duration message;
  duration = std::clamp(duration, -absl::Seconds(kMaxSeconds), absl::Seconds(kMaxSeconds));
  absl::Duration rest;
  message.set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &rest));
  message.set_nanos(static_cast<std::int32_t>(absl::ToInt64Nanoseconds(rest)));
  return message;
}

absl::StatusOr<absl::Duration> FromProto(const google::protobuf::Duration& duration,
                                         const std::string& field) {
  absl::Status status = CheckRange(absl::StrCat(field, ".seconds"),
                                   std::int64_t{duration.seconds()}, std::int64_t{0}, kMaxSeconds);
  status.Update(CheckRange(absl::StrCat(field, ".nanos"), std::int32_t{duration.nanos()},
                           std::int32_t{0}, kMaxNanos));
  if (!status.ok()) return status;
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

}  // namespace gradwire::wire
