// YAML text as a small tree with positions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace gradwire::server {

struct YamlNode {
  enum class Kind { kEmpty, kText, kList, kMapping };

  Kind kind = Kind::kEmpty;
  std::string text = "";
  bool quoted = false;
  std::vector<YamlNode> items = {};  // of a list; keys and values of a mapping take turns
  int line = 1;
  int column = 1;
};

// Takes any bytes, and needs memory in proportion to them. InvalidArgument, "LINE:COLUMN: problem":
// what is no YAML, and what settings do not need and a text could exhaust memory or the stack
// with: anchors, aliases, tags, deep nesting, very many values, a second document.
absl::StatusOr<YamlNode> ParseYaml(const std::string& text);

}  // namespace gradwire::server
