#include "server/daemon/config_file.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_code.h"
#include "base/nearest.h"
#include "base/printable.h"
#include "server/daemon/yaml_tree.h"

namespace gradwire::server {
namespace {

constexpr std::size_t kMostProblems = 20;
constexpr std::size_t kMostQuoted = 60;
constexpr char kVersionKey[] = "version";

std::string Quoted(const std::string& text) {
  return absl::StrCat("\"", Printable(text.substr(0, kMostQuoted)),
                      text.size() > kMostQuoted ? "..." : "", "\"");
}

// The keys of the file in the order of the settings; sections by themselves too.
std::vector<std::string> AllKeys() {
  std::vector<std::string> keys = {kVersionKey};
  for (const Setting& setting : Settings()) {
    const std::string section = setting.section();
    if (!section.empty() && std::find(keys.begin(), keys.end(), section) == keys.end()) {
      keys.push_back(section);
    }
    if (!setting.key.empty()) keys.push_back(setting.key);
  }
  return keys;
}

std::string WithoutSection(const std::string& key) {
  const std::size_t dot = key.find('.');
  return dot == std::string::npos ? key : key.substr(dot + 1);
}

// What stands in the section, or at the top if `section` is empty.
std::string KeysOf(const std::string& section) {
  std::vector<std::string> keys;
  for (const std::string& key : AllKeys()) {
    const std::size_t dot = key.find('.');
    const std::string of = dot == std::string::npos ? "" : key.substr(0, dot);
    if (of == section) keys.push_back(WithoutSection(key));
  }
  return absl::StrJoin(keys, ", ");
}

// The key that `unknown` is likely to mean. Empty: none is. "log-level" and "log_level" are
// "log.level", as flag and variable.
std::string MeantBy(const std::string& unknown) {
  Nearest nearest(unknown);
  for (const std::string& key : AllKeys()) nearest.Consider(key, key);
  for (const Setting& setting : Settings()) {
    if (!setting.key.empty()) nearest.Consider(setting.name, setting.key);
  }
  return nearest.meant();
}

const Setting* SettingOf(const std::string& key) {
  for (const Setting& setting : Settings()) {
    if (!key.empty() && setting.key == key) return &setting;
  }
  return nullptr;
}

bool IsSection(const std::string& key) {
  return std::any_of(Settings().begin(), Settings().end(),
                     [&key](const Setting& setting) { return setting.section() == key; });
}

std::string Describe(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kEmpty:
      return "empty";
    case YamlNode::Kind::kText:
      return Quoted(node.text);
    case YamlNode::Kind::kList:
      return "a list";
    case YamlNode::Kind::kMapping:
      break;
  }
  return "a mapping";
}

class Reader {
 public:
  explicit Reader(const std::string& name) : name_(name) {}

  ConfigFile Read(const YamlNode& root) {
    // A file of comments only is empty.
    if (root.kind == YamlNode::Kind::kMapping) {
      ReadMapping(root, "");
    } else if (root.kind != YamlNode::Kind::kEmpty) {
      Report(root, absl::StrCat("the file is ", Describe(root),
                                "; allowed are lines such as max_sessions: 256"));
    }
    if (!file_.problems.empty()) file_.values.clear();
    return std::move(file_);
  }

 private:
  void Report(const YamlNode& node, const std::string& problem) {
    if (file_.problems.size() >= kMostProblems) return;
    file_.problems.push_back(
        CodedText(ErrorCode::kConfigKey,
                  absl::StrCat(name_, ":", node.line, ":", node.column, ": ", problem)));
  }

  void ReadMapping(const YamlNode& mapping, const std::string& section) {
    std::map<std::string, int> lines;
    for (std::size_t i = 0; i + 1 < mapping.items.size(); i += 2) {
      const YamlNode& key = mapping.items[i];
      if (key.kind != YamlNode::Kind::kText) {
        Report(key, absl::StrCat("a key is ", Describe(key), "; allowed are ", KeysOf(section)));
        continue;
      }
      const auto [first, fresh] = lines.emplace(key.text, key.line);
      if (!fresh) {
        Report(key, absl::StrCat("key ", Quoted(key.text), " is there twice; it is also on line ",
                                 first->second));
        continue;
      }
      ReadEntry(key, section.empty() ? key.text : absl::StrCat(section, ".", key.text), section,
                mapping.items[i + 1]);
    }
  }

  void ReadEntry(const YamlNode& key, const std::string& path, const std::string& section,
                 YamlNode value) {
    // yaml-cpp finds nothing where the next key is.
    if (value.kind == YamlNode::Kind::kEmpty) {
      value.line = key.line;
      value.column = key.column;
    }
    const Setting* setting = SettingOf(path);
    if (path == kVersionKey) {
      ReadVersion(value);
    } else if (section.empty() && IsSection(path)) {
      ReadSection(path, value);
    } else if (setting != nullptr && setting->section() == section) {
      ReadValue(*setting, value);
    } else if (setting != nullptr) {
      Report(key, absl::StrCat("unknown key ", Quoted(path), "; allowed is a mapping ",
                               setting->section(), " with the key ", WithoutSection(path)));
    } else {
      const std::string meant = MeantBy(path);
      Report(key, absl::StrCat("unknown key ", Quoted(path), "; ",
                               meant.empty() ? absl::StrCat("allowed are ", KeysOf(section))
                                             : absl::StrCat("did you mean \"", meant, "\"?")));
    }
  }

  void ReadVersion(const YamlNode& value) {
    if (value.kind == YamlNode::Kind::kText && value.text == absl::StrCat(kConfigVersion)) return;
    Report(value, absl::StrCat("version is ", Describe(value), "; allowed is ", kConfigVersion));
  }

  void ReadSection(const std::string& section, const YamlNode& value) {
    // All its keys may be comments.
    if (value.kind == YamlNode::Kind::kEmpty) return;
    if (value.kind == YamlNode::Kind::kMapping) return ReadMapping(value, section);
    Report(value, absl::StrCat(section, " is ", Describe(value), "; allowed is a mapping of ",
                               KeysOf(section)));
  }

  void ReadValue(const Setting& setting, const YamlNode& value) {
    const bool list = KindOf(setting) == Kind::kList;
    std::vector<std::string> words;
    if (value.kind == YamlNode::Kind::kText) {
      words.push_back(value.text);
    } else if (list && value.kind == YamlNode::Kind::kList) {
      for (const YamlNode& item : value.items) {
        if (item.kind != YamlNode::Kind::kText) {
          return Report(item, absl::StrCat("a value in ", setting.key, " is ", Describe(item),
                                           "; allowed are ", Allowed(setting)));
        }
        words.push_back(item.text);
      }
    } else {
      return ReportValue(setting, value);
    }
    if (!IsRightType(setting, value)) return;
    ServerOptions ignored;
    if (absl::Status status = Set(setting, setting.key, words, ignored); !status.ok()) {
      return Report(value, std::string(status.message()));
    }
    file_.values.push_back({.setting = &setting,
                            .words = std::move(words),
                            .line = value.line,
                            .column = value.column});
  }

  void ReportValue(const Setting& setting, const YamlNode& value) {
    Report(value,
           absl::StrCat(setting.key, " is ", Describe(value), "; allowed are ", Allowed(setting)));
  }

  // In YAML, quotes make a text of a number. Flags and variables also take "yes" for true.
  bool IsRightType(const Setting& setting, const YamlNode& value) {
    const Kind kind = KindOf(setting);
    const bool is_plain = kind == Kind::kNumber || kind == Kind::kSwitch || kind == Kind::kDecimal;
    if (value.quoted && is_plain) {
      Report(value, absl::StrCat(setting.key, " is ", Describe(value),
                                 " in quotes; allowed without quotes are ", Allowed(setting)));
      return false;
    }
    if (kind != Kind::kSwitch || value.text == "true" || value.text == "false") return true;
    ReportValue(setting, value);
    return false;
  }

  const std::string name_;
  ConfigFile file_;
};

}  // namespace

ConfigFile ParseConfig(const std::string& text, const std::string& name) {
  const absl::StatusOr<YamlNode> root = ParseYaml(text);
  if (!root.ok()) {
    return {.problems = {absl::StrCat(Printable(name), ":", root.status().message())}};
  }
  return Reader(Printable(name)).Read(*root);
}

}  // namespace gradwire::server
