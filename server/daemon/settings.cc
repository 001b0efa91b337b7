#include "server/daemon/settings.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/error_code.h"
#include "base/limits.h"
#include "base/printable.h"
#include "server/daemon/memory_limit.h"

namespace gradwire::server {
namespace {

constexpr absl::Duration kLongest = absl::Hours(24 * 365);
// Of a value that an error quotes.
constexpr std::size_t kMostQuoted = 100;

std::string Quoted(const std::string& text) {
  const bool cut = text.size() > kMostQuoted;
  return absl::StrCat("\"", Printable(text.substr(0, kMostQuoted)), cut ? "..." : "", "\"");
}

absl::Status Wrong(const Setting& setting, const std::string& name, const std::string& value) {
  return Coded(ErrorCode::kSetting, absl::InvalidArgumentError(absl::StrCat(
                                        name, " is ", value, "; allowed are ", Allowed(setting))));
}

// Reads the only word into a field of any type but a list's. False: it is none of that type.
bool Read(const std::string& word, std::string& value) {
  value = word;
  return true;
}

bool Read(const std::string& word, bool& value) {
  const bool on = word == "on";
  if (!on && word != "off") return absl::SimpleAtob(word, &value);
  value = on;
  return true;
}

bool Read(const std::string& word, int& value) { return absl::SimpleAtoi(word, &value); }

bool Read(const std::string& word, std::uint32_t& value) { return absl::SimpleAtoi(word, &value); }

bool Read(const std::string& word, std::size_t& value) {
  // A percentage of nothing is nothing, which no size may be.
  const absl::StatusOr<std::size_t> bytes = ParseMemoryLimit(word, 0);
  if (bytes.ok()) value = *bytes;
  return bytes.ok();
}

bool Read(const std::string& word, double& value) { return absl::SimpleAtod(word, &value); }

bool Read(const std::string& word, absl::Duration& value) {
  return absl::ParseDuration(word, &value);
}

}  // namespace

std::string Setting::flag() const { return absl::StrCat("--", name); }

std::string Setting::member() const { return absl::StrReplaceAll(name, {{"-", "_"}}); }

std::string Setting::variable() const {
  return key.empty() ? "" : absl::StrCat("GRADWIRE_", absl::AsciiStrToUpper(member()));
}

std::string Setting::section() const {
  const std::size_t dot = key.find('.');
  return dot == std::string::npos ? "" : key.substr(0, dot);
}

const Setting* FindSetting(std::string_view name) {
  for (const Setting& setting : Settings()) {
    if (setting.name == name) return &setting;
  }
  return nullptr;
}

ServerOptions DaemonDefaults() {
  ServerOptions options;
  options.http_listen = "auto";
  // READY costs two message delays in a step; a session that ends with its daemon costs more.
  options.on_coordinator_loss = "resume";
  return options;
}

Kind KindOf(const Setting& setting) {
  ServerOptions any;
  const Field field = setting.field(any);
  if (std::holds_alternative<std::vector<std::string>*>(field)) return Kind::kList;
  if (std::holds_alternative<bool*>(field)) return Kind::kSwitch;
  if (std::holds_alternative<std::size_t*>(field)) return Kind::kSize;
  if (std::holds_alternative<absl::Duration*>(field)) return Kind::kDuration;
  if (std::holds_alternative<double*>(field)) return Kind::kDecimal;
  return std::holds_alternative<std::string*>(field) ? Kind::kText : Kind::kNumber;
}

std::string Allowed(const Setting& setting) {
  switch (KindOf(setting)) {
    case Kind::kSwitch:
      return "true and false";
    case Kind::kNumber:
      return absl::StrCat(setting.low, " to ", setting.high);
    case Kind::kSize:
      return absl::StrCat("multiples of ", setting.multiple, " from ", setting.low, " to ",
                          setting.high, ", or a size such as 64KiB");
    case Kind::kDuration:
      return absl::StrCat("durations such as 500ms, 30s and 2m, up to ",
                          absl::FormatDuration(kLongest));
    case Kind::kText:
    case Kind::kList:
    case Kind::kDecimal:
      break;
  }
  if (setting.choices.empty()) return setting.allowed;
  const auto last = std::prev(setting.choices.end());
  return absl::StrCat(absl::StrJoin(setting.choices.begin(), last, ", "), " and ", *last);
}

absl::Status Set(const Setting& setting, const std::string& name,
                 const std::vector<std::string>& words, ServerOptions& options) {
  ServerOptions changed = options;
  const Field field = setting.field(changed);
  if (const auto* list = std::get_if<std::vector<std::string>*>(&field)) {
    const bool none = setting.may_be_empty && words == std::vector<std::string>{""};
    **list = none ? std::vector<std::string>() : words;
  } else if (words.size() != 1) {
    return Coded(ErrorCode::kSetting, absl::InvalidArgumentError(absl::StrCat(
                                          name, " has ", words.size(), " values; allowed is one")));
  } else {
    const bool readable = std::visit(
        [&word = words.front()](auto* value) {
          if constexpr (std::is_same_v<decltype(value), std::vector<std::string>*>) {
            return false;
          } else {
            return Read(word, *value);
          }
        },
        field);
    if (!readable) return Wrong(setting, name, Quoted(words.front()));
  }
  if (absl::Status status = Check(setting, name, changed); !status.ok()) return status;
  options = std::move(changed);
  return absl::OkStatus();
}

absl::Status Check(const Setting& setting, const std::string& name, ServerOptions options) {
  const auto in_range = [&setting](std::int64_t value) {
    return value >= setting.low && value <= setting.high && value % setting.multiple == 0;
  };
  const Field field = setting.field(options);
  const std::string text = Text(setting, options);
  bool right = true;
  bool quoted = false;
  if (const auto* number = std::get_if<int*>(&field)) {
    right = in_range(**number);
  } else if (const auto* count = std::get_if<std::uint32_t*>(&field)) {
    right = in_range(**count);
  } else if (const auto* size = std::get_if<std::size_t*>(&field)) {
    right = in_range(static_cast<std::int64_t>(std::min<std::size_t>(**size, INT64_MAX)));
  } else if (const auto* duration = std::get_if<absl::Duration*>(&field)) {
    right = **duration > absl::ZeroDuration() && **duration <= kLongest;
  } else if (std::holds_alternative<double*>(field)) {
    right = setting.valid(options);
  } else if (const auto* list = std::get_if<std::vector<std::string>*>(&field)) {
    if ((*list)->empty() && !setting.may_be_empty) return Wrong(setting, name, "empty");
  } else if (!setting.choices.empty()) {
    quoted = true;
    right =
        std::find(setting.choices.begin(), setting.choices.end(), text) != setting.choices.end();
  } else {
    quoted = true;
    right = setting.valid == nullptr || setting.valid(options);
    if (setting.check != nullptr) {
      const absl::Status parts = setting.check(options);
      if (parts.ok()) return parts;
      return Coded(ErrorCode::kSetting,
                   absl::InvalidArgumentError(absl::StrCat(
                       name, " is ", Quoted(text), ", which is not valid: ", parts.message())));
    }
  }
  return right ? absl::OkStatus() : Wrong(setting, name, quoted ? Quoted(text) : text);
}

std::string Text(const Setting& setting, ServerOptions options) {
  return std::visit(
      [](const auto* value) -> std::string {
        using Value = std::remove_cvref_t<decltype(*value)>;
        if constexpr (std::is_same_v<Value, std::string>) {
          return *value;
        } else if constexpr (std::is_same_v<Value, std::vector<std::string>>) {
          return absl::StrJoin(*value, ",");
        } else if constexpr (std::is_same_v<Value, bool>) {
          return *value ? "true" : "false";
        } else if constexpr (std::is_same_v<Value, absl::Duration>) {
          return absl::FormatDuration(*value);
        } else {
          return absl::StrCat(*value);
        }
      },
      setting.field(options));
}

}  // namespace gradwire::server
