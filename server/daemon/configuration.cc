#include "server/daemon/configuration.h"

#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/error_code.h"
#include "base/printable.h"
#include "proto/tls/pem.h"
#include "server/daemon/config_file.h"
#include "server/daemon/exit_codes.h"

namespace gradwire::server {
namespace {

std::optional<std::string> Variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr) return std::nullopt;
  return value;
}

// Empty: none.
std::string PathOf(const Flags& flags) {
  if (flags.config) return *flags.config;
  if (const auto path = Variable("GRADWIRE_CONFIG")) return *path;
  return access(kDefaultConfigPath, F_OK) == 0 ? kDefaultConfigPath : "";
}

class Loader {
 public:
  explicit Loader(const Flags& flags) : flags_(flags) {}

  Loaded Load() {
    for (const Setting& setting : Settings()) loaded_.configuration.origins[setting.name] = {};
    ReadFile();
    for (const Setting& setting : Settings()) {
      ReadVariable(setting);
      ReadFlag(setting);
    }
    if (loaded_.problems.empty()) FindConflict();
    return std::move(loaded_);
  }

 private:
  void Fail(int exit_code, const std::string& problem) {
    loaded_.problems.push_back(CodedText(ErrorCode::kDaemonStart, problem));
    // Of several, the file's: who starts the daemon again changes nothing about it.
    if (loaded_.exit_code != kExitConfig) loaded_.exit_code = exit_code;
  }

  void ReadFile() {
    const std::string path = PathOf(flags_);
    if (path.empty()) return;
    const std::string name = Printable(path);
    const absl::StatusOr<std::string> text = tls::ReadSmallFile(name, path);
    if (!text.ok())
      return Fail(kExitConfig,
                  CodedText(ErrorCode::kConfigFile, std::string(text.status().message())));
    loaded_.configuration.file = path;
    const ConfigFile file = ParseConfig(*text, path);
    for (const std::string& problem : file.problems) Fail(kExitConfig, problem);
    for (const FileValue& value : file.values) {
      Take(*value.setting, value.setting->key, value.words,
           {.kind = Origin::Kind::kFile, .text = absl::StrCat(name, ":", value.line)});
    }
  }

  void ReadVariable(const Setting& setting) {
    if (setting.variable().empty()) return;
    const std::optional<std::string> value = Variable(setting.variable());
    if (!value || value->empty()) return;
    std::vector<std::string> words = {*value};
    if (KindOf(setting) == Kind::kList) words = absl::StrSplit(*value, ',');
    Take(setting, setting.variable(), words,
         {.kind = Origin::Kind::kVariable, .text = setting.variable()});
  }

  void ReadFlag(const Setting& setting) {
    const auto found = flags_.words.find(setting.name);
    if (found == flags_.words.end()) return;
    Take(setting, setting.flag(), found->second,
         {.kind = Origin::Kind::kFlag, .text = setting.flag()});
  }

  void Take(const Setting& setting, const std::string& name, const std::vector<std::string>& words,
            const Origin& origin) {
    Configuration& configuration = loaded_.configuration;
    if (absl::Status status = Set(setting, name, words, configuration.options); !status.ok()) {
      return Fail(kExitUsage, std::string(status.message()));
    }
    configuration.origins[setting.name] = origin;
  }

  // Values that are right by themselves, and not together. Whose origin is named may not be what
  // the reader has to change, so the message names the other too.
  void FindConflict() {
    const auto problem = loaded_.configuration.options.FindConflict();
    if (!problem) return;
    const Origin& origin = loaded_.configuration.origins[problem->setting];
    const bool in_file = origin.kind == Origin::Kind::kFile;
    Fail(in_file ? kExitConfig : kExitUsage,
         origin.kind == Origin::Kind::kDefault
             ? std::string(problem->status.message())
             : absl::StrCat(origin.text, ": ", problem->status.message()));
  }

  const Flags& flags_;
  Loaded loaded_;
};

}  // namespace

Loaded Load(const Flags& flags) { return Loader(flags).Load(); }

}  // namespace gradwire::server
