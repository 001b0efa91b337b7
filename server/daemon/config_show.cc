#include "server/daemon/config_show.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/daemon/config_file.h"

namespace gradwire::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kSizePattern[] = R"(^[0-9]+(\.[0-9]+)? ?([KMGT]i?B|B)?$)";
constexpr char kDurationPattern[] = R"(^([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+$)";

Json ValueOf(const Setting& setting, const ServerOptions& options) {
  const std::string text = Text(setting, options);
  switch (KindOf(setting)) {
    case Kind::kSwitch:
      return text == "true";
    case Kind::kNumber:
    case Kind::kSize:
    case Kind::kDecimal:
      return Json::parse(text);
    case Kind::kList: {
      if (text.empty()) return Json::array();
      const std::vector<std::string> words = absl::StrSplit(text, ',');
      return words;
    }
    case Kind::kText:
    case Kind::kDuration:
      break;
  }
  return text;
}

// Values of variables and flags may be any bytes.
std::string Dump(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// Adds `value` under the setting's key: in its section, which is added with its first key.
void Put(const Setting& setting, Json value, Json& top) {
  const std::string section = setting.section();
  Json& at = section.empty() ? top : top[section];
  at[section.empty() ? setting.key : setting.key.substr(section.size() + 1)] = std::move(value);
}

Json TypeOf(const Setting& setting) {
  switch (KindOf(setting)) {
    case Kind::kSwitch:
      return {{"type", "boolean"}};
    case Kind::kNumber:
      return {{"type", "integer"}, {"minimum", setting.low}, {"maximum", setting.high}};
    case Kind::kSize:
      return {{"type", {"integer", "string"}},
              {"minimum", setting.low},
              {"maximum", setting.high},
              {"multipleOf", setting.multiple},
              {"pattern", kSizePattern}};
    case Kind::kList:
      return {{"type", {"array", "string"}},
              {"items", {{"type", "string"}}},
              {"minItems", setting.may_be_empty ? 0 : 1}};
    case Kind::kDuration:
      return {{"type", "string"}, {"pattern", kDurationPattern}};
    case Kind::kDecimal:
      return {{"type", "number"}};
    case Kind::kText:
      break;
  }
  Json type = {{"type", "string"}};
  if (!setting.choices.empty()) type["enum"] = setting.choices;
  return type;
}

}  // namespace

std::string ShowYaml(const Configuration& configuration, bool origins) {
  // JSON's values are YAML's too.
  std::string out = absl::StrCat("version: ", kConfigVersion, "\n");
  std::string section;
  for (const Setting& setting : Settings()) {
    if (setting.key.empty()) continue;
    const std::string in = setting.section();
    if (in != section && !in.empty()) absl::StrAppend(&out, in, ":\n");
    section = in;
    const std::string key = in.empty() ? setting.key : setting.key.substr(in.size() + 1);
    absl::StrAppend(&out, in.empty() ? "" : "  ", key, ": ",
                    Dump(ValueOf(setting, configuration.options)));
    if (origins) absl::StrAppend(&out, "  # ", configuration.origins.at(setting.name).text);
    absl::StrAppend(&out, "\n");
  }
  return out;
}

std::string ShowJson(const Configuration& configuration, bool origins) {
  Json top = {{"version", kConfigVersion}};
  for (const Setting& setting : Settings()) {
    if (setting.key.empty()) continue;
    Json value = ValueOf(setting, configuration.options);
    if (origins) {
      value = {{"value", std::move(value)},
               {"origin", configuration.origins.at(setting.name).text}};
    }
    Put(setting, std::move(value), top);
  }
  return absl::StrCat(Dump(top, 2), "\n");
}

std::string Schema() {
  const ServerOptions defaults = DaemonDefaults();
  Json properties = {{"version", {{"const", kConfigVersion}, {"description", "Of this format"}}}};
  for (const Setting& setting : Settings()) {
    if (setting.key.empty()) continue;
    Json property = TypeOf(setting);
    property["default"] = ValueOf(setting, defaults);
    property["description"] =
        absl::StrCat(setting.help, ". ", setting.flag(), ", ", setting.variable(), ". ",
                     setting.reloadable ? "SIGHUP applies a change." : "A change needs a restart.");
    const std::string section = setting.section();
    if (!section.empty() && !properties.contains(section)) {
      // A section whose keys are all comments is null.
      properties[section] = {{"type", {"object", "null"}},
                             {"additionalProperties", false},
                             {"properties", Json::object()}};
    }
    Json& at = section.empty() ? properties : properties[section]["properties"];
    at[section.empty() ? setting.key : setting.key.substr(section.size() + 1)] =
        std::move(property);
  }
  const Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                       {"title", "gradwired.yaml"},
                       {"type", {"object", "null"}},
                       {"additionalProperties", false},
                       {"properties", std::move(properties)}};
  return absl::StrCat(Dump(schema, 2), "\n");
}

}  // namespace gradwire::server
