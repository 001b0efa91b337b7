// The settings of `gradwired`: one table, from which its flags, variables, keys of the file and
// schema come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/daemon/options.h"

namespace gradwire::server {

// Where the value is. The type says how text is read: std::size_t is a size such as 64KiB.
using Field = std::variant<std::string*, std::vector<std::string>*, bool*, int*, std::uint32_t*,
                           std::size_t*, absl::Duration*, double*>;

struct Setting {
  std::string name;  // "log-level": the flag --log-level, the variable GRADWIRE_LOG_LEVEL
  std::string key;   // "log.level": in the file, key `level` of section `log`. Empty: only a flag
  std::string placeholder = "";  // of the value in the help
  std::string help;
  Field (*field)(ServerOptions&);
  bool reloadable = false;    // SIGHUP changes it
  bool may_be_empty = false;  // a list

  // Of numbers and sizes.
  std::int64_t low = 0;
  std::int64_t high = 0;
  std::int64_t multiple = 1;
  // Of texts. `choices` empty: those that are `valid` (null: all), which `allowed` describes.
  // Decimals have the last two.
  std::vector<std::string> choices = {};
  bool (*valid)(const ServerOptions&) = nullptr;
  // Of texts with parts: says which part is wrong, and what is allowed there.
  absl::Status (*check)(const ServerOptions&) = nullptr;
  std::string allowed = "";

  std::string flag() const;      // "--log-level"
  std::string variable() const;  // "GRADWIRE_LOG_LEVEL"; empty: none
  std::string member() const;    // "log_level", as ServerOptions::Validate names it
  std::string section() const;   // "log"; empty: none
};

const std::vector<Setting>& Settings();
const Setting* FindSetting(std::string_view name);

// What the daemon does if nobody sets anything. ServerOptions' own defaults are for a server inside
// another program, which opens no HTTP address by itself.
ServerOptions DaemonDefaults();

enum class Kind { kText, kList, kSwitch, kNumber, kSize, kDuration, kDecimal };
Kind KindOf(const Setting& setting);

// What values are allowed: "1 to 1000000".
std::string Allowed(const Setting& setting);

// Reads `words`, one for each time that the value was given, into `options`. InvalidArgument says
// "NAME is VALUE; allowed are ..." and leaves `options` as they were.
absl::Status Set(const Setting& setting, const std::string& name,
                 const std::vector<std::string>& words, ServerOptions& options);

// InvalidArgument, like Set's, if the value in `options` is none of the allowed.
absl::Status Check(const Setting& setting, const std::string& name, ServerOptions options);

// The value as Set reads it; a list's words separated by commas.
std::string Text(const Setting& setting, ServerOptions options);

}  // namespace gradwire::server
