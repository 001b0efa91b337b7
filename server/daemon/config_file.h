// The daemon's file: YAML with the keys of Settings(), and `version`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/daemon/settings.h"

namespace gradwire::server {

struct FileValue {
  const Setting* setting = nullptr;
  std::vector<std::string> words;
  int line = 0;
  int column = 0;
};

struct ConfigFile {
  // Each with a value that Set accepts, and each setting at most once.
  std::vector<FileValue> values = {};
  // "NAME:LINE:COLUMN: what is wrong; what is allowed", in the file's order and at most 20.
  // Otherwise empty.
  std::vector<std::string> problems = {};
};

// Takes any bytes. `name` is the file's, for the problems. Refuses what a list of settings does not
// need and a file could exhaust memory with: anchors, aliases, tags, deep nesting, more than one
// document.
ConfigFile ParseConfig(const std::string& text, const std::string& name);

// The only version of the file's format.
inline constexpr int kConfigVersion = 1;

}  // namespace gradwire::server
