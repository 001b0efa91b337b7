// JSON text as YAML, for those who read it.
#pragma once

#include <string>

namespace gradwire::ctl {

// The same document in block style. `json` is valid JSON; strings stay strings, in double quotes
// where YAML would take them for something else.
std::string ToYaml(const std::string& json);

}  // namespace gradwire::ctl
