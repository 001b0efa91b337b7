#include "server/ctl/yaml.h"

#include <yaml-cpp/yaml.h>

#include <nlohmann/json.hpp>

namespace gradwire::ctl {
namespace {

// In the order of the text, as people expect it.
using Json = nlohmann::ordered_json;

// Whether YAML 1.1 and 1.2 take the text for a string without quotes: a word of letters.
bool IsPlain(const std::string& text) {
  constexpr char kLetters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
  if (text.empty() || text.find_first_not_of(kLetters) != std::string::npos) return false;
  const YAML::Node read = YAML::Load(text);
  bool truth = false;
  return !read.IsNull() && !YAML::convert<bool>::decode(read, truth);
}

void Emit(const Json& value, YAML::Emitter& out) {
  switch (value.type()) {
    case Json::value_t::object:
      // An empty one has no block style.
      if (value.empty()) out << YAML::Flow;
      out << YAML::BeginMap;
      for (const auto& item : value.items()) {
        out << YAML::Key << item.key() << YAML::Value;
        Emit(item.value(), out);
      }
      out << YAML::EndMap;
      return;
    case Json::value_t::array:
      if (value.empty()) out << YAML::Flow;
      out << YAML::BeginSeq;
      for (const Json& item : value) Emit(item, out);
      out << YAML::EndSeq;
      return;
    case Json::value_t::string: {
      const auto& text = value.get_ref<const std::string&>();
      if (!IsPlain(text)) out << YAML::DoubleQuoted;
      out << text;
      return;
    }
    case Json::value_t::null:
      out << YAML::Null;
      return;
    case Json::value_t::boolean:
      out << value.get<bool>();
      return;
    default:
      // As JSON has it: all digits, no exponent of another notation.
      out << value.dump();
      return;
  }
}

}  // namespace

std::string ToYaml(const std::string& json) {
  YAML::Emitter out;
  Emit(Json::parse(json), out);
  return std::string(out.c_str()) + "\n";
}

}  // namespace gradwire::ctl
