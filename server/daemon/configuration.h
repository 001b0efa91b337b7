// The values that hold, and where each comes from: flag before environment before file.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/daemon/settings.h"

namespace gradwire::server {

inline constexpr char kDefaultConfigPath[] = "/etc/gradwire/gradwired.yaml";

// What the command line says.
struct Flags {
  // Of --config. Empty: no file. nullopt: GRADWIRE_CONFIG decides, then whether there is a file at
  // kDefaultConfigPath.
  std::optional<std::string> config = {};
  std::map<std::string, std::vector<std::string>> words = {};  // by the setting's name
};

struct Origin {
  enum class Kind { kDefault, kFile, kVariable, kFlag };

  Kind kind = Kind::kDefault;
  std::string text = "default";  // "FILE:LINE", "GRADWIRE_LOG_LEVEL", "--log-level"
};

struct Configuration {
  ServerOptions options = DaemonDefaults();
  std::map<std::string, Origin> origins = {};  // of each setting, by its name
  std::string file = "";                       // that was read; empty: none
};

struct Loaded {
  Configuration configuration;
  // What is wrong, one line each, with its origin; then the configuration is not complete.
  std::vector<std::string> problems;
  int exit_code = 0;  // for the problems: kExitConfig of the file's, kExitUsage of others
};

// Reads the file and the environment. The only place of the daemon that reads the latter: an empty
// variable counts as none, except that GRADWIRE_CONFIG= means no file.
Loaded Load(const Flags& flags);

}  // namespace gradwire::server
