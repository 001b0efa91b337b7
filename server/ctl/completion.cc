#include "server/ctl/completion.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/error_code.h"

namespace gradwire::ctl {
namespace {

struct Word {
  std::string text;
  std::string help;
};

// An option, or an argument without a name in front.
struct Choice {
  std::vector<std::string> names = {};  // "-o", "--output"; empty: an argument
  std::string help;
  bool takes_value = false;
  bool is_file = false;
  std::vector<Word> values = {};  // the ones that are allowed or offered; empty: any
};

// A command with what may follow it.
struct Command {
  std::vector<std::string> words = {};  // "session", "get"; empty: the program itself
  std::vector<Word> commands = {};
  std::vector<Choice> choices = {};
};

// CLI11 describes the allowed values as "TEXT:{table,json,yaml}".
std::vector<Word> ValuesOf(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  std::vector<Word> values;
  if (type == kErrorCode) {
    for (const ErrorEntry& entry : ErrorCodes()) {
      values.push_back({.text = Name(entry.code), .help = std::string(entry.title)});
    }
    return values;
  }
  const std::size_t begin = type.find(":{");
  const std::size_t end = type.rfind('}');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return {};
  for (std::string& value :
       std::vector<std::string>(absl::StrSplit(type.substr(begin + 2, end - begin - 2), ','))) {
    values.push_back({.text = std::move(value), .help = option.get_description()});
  }
  return values;
}

std::string Joined(const std::vector<Word>& words) {
  return absl::StrJoin(words, " ",
                       [](std::string* out, const Word& one) { out->append(one.text); });
}

Choice ChoiceOf(const CLI::Option& option) {
  Choice choice{.help = option.get_description()};
  for (const std::string& name : option.get_snames()) choice.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) choice.names.push_back("--" + name);
  choice.takes_value = option.get_items_expected_max() > 0;
  choice.is_file = absl::StartsWith(option.get_type_name(), kFile);
  choice.values = ValuesOf(option);
  return choice;
}

void Collect(const CLI::App& app, const std::vector<std::string>& words,
             std::vector<Command>& all) {
  Command command{.words = words};
  for (const CLI::Option* const option : app.get_options()) {
    command.choices.push_back(ChoiceOf(*option));
  }
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* const one : commands) {
    command.commands.push_back({.text = one->get_name(), .help = one->get_description()});
  }
  all.push_back(std::move(command));
  for (const CLI::App* const one : commands) {
    std::vector<std::string> longer = words;
    longer.push_back(one->get_name());
    Collect(*one, longer, all);
  }
}

// The program first.
std::vector<Command> CommandsOf(const CLI::App& app) {
  std::vector<Command> all;
  Collect(app, {}, all);
  return all;
}

// A word in single quotes, for a shell.
std::string Quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// " session get": what the scripts gather word by word.
std::string PathOf(const Command& command) {
  return command.words.empty() ? "" : absl::StrCat(" ", absl::StrJoin(command.words, " "));
}

std::string PathPattern(const std::vector<Command>& all) {
  std::vector<std::string> paths;
  for (const Command& command : all) {
    if (!command.words.empty()) paths.push_back(Quoted(PathOf(command)));
  }
  return absl::StrJoin(paths, " | ");
}

// Options whose value the shell completes, each once.
struct Values {
  std::vector<std::string> file_options;
  std::vector<std::pair<std::string, std::string>> listed;  // "-o | --output", "table json yaml"
  std::vector<std::string> others;                          // any other value
};

Values ValuesOf(const std::vector<Command>& all) {
  Values values;
  std::set<std::string> seen;  // commands share options
  for (const Command& command : all) {
    for (const Choice& choice : command.choices) {
      const std::string names = absl::StrJoin(choice.names, " | ");
      if (choice.names.empty() || !choice.takes_value || !seen.insert(names).second) continue;
      if (choice.is_file) {
        values.file_options.push_back(names);
      } else if (!choice.values.empty()) {
        values.listed.emplace_back(names, Joined(choice.values));
      } else {
        values.others.push_back(names);
      }
    }
  }
  return values;
}

// Options of the program count after each command, too.
std::vector<std::string> WordsAfter(const Command& command, const Command& program) {
  std::vector<std::string> words;
  for (const Word& one : command.commands) words.push_back(one.text);
  const auto add = [&words](const Command& of) {
    for (const Choice& choice : of.choices) {
      if (choice.names.empty()) {
        for (const Word& value : choice.values) words.push_back(value.text);
      } else {
        words.push_back(choice.names.back());
      }
    }
  };
  add(command);
  if (!command.words.empty()) add(program);
  // Both have --help.
  std::sort(words.begin(), words.end());
  words.erase(std::unique(words.begin(), words.end()), words.end());
  return words;
}

bool TakesFile(const Command& command) {
  return std::any_of(command.choices.begin(), command.choices.end(),
                     [](const Choice& choice) { return choice.names.empty() && choice.is_file; });
}

std::string Bash(const CLI::App& app) {
  const std::vector<Command> all = CommandsOf(app);
  const Values values = ValuesOf(all);
  const std::string& name = app.get_name();
  std::string text = absl::StrCat(
      "# Completes ", name, " in bash; `", name, " completion bash` prints this.\n_", name,
      "() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} at='' words='' files='' i\n"
      "  case ${COMP_WORDS[COMP_CWORD - 1]} in\n");
  absl::StrAppend(&text, "    ", absl::StrJoin(values.file_options, " | "),
                  ")\n      mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n      return\n"
                  "      ;;\n");
  for (const auto& [names, list] : values.listed) {
    absl::StrAppend(&text, "    ", names, ")\n      mapfile -t COMPREPLY < <(compgen -W ",
                    Quoted(list), " -- \"$word\")\n      return\n      ;;\n");
  }
  absl::StrAppend(&text, "    ", absl::StrJoin(values.others, " | "),
                  ")\n      COMPREPLY=()\n      return\n      ;;\n  esac\n"
                  "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
                  "    case \"$at ${COMP_WORDS[i]}\" in\n      ",
                  PathPattern(all),
                  ") at+=\" ${COMP_WORDS[i]}\" ;;\n    esac\n  done\n"
                  "  case $at in\n");
  for (const Command& command : all) {
    absl::StrAppend(&text, "    ", Quoted(PathOf(command)),
                    ") words=", Quoted(absl::StrJoin(WordsAfter(command, all.front()), " ")),
                    TakesFile(command) ? " files=yes" : "", " ;;\n");
  }
  absl::StrAppend(&text,
                  "  esac\n"
                  "  mapfile -t COMPREPLY < <(compgen -W \"$words\" ${files:+-f} -- \"$word\")\n"
                  "}\ncomplete -o filenames -F _",
                  name, " ", name, "\n");
  return text;
}

// "name:what it is" for _describe.
std::string Described(const std::string& word, const std::string& help) {
  return Quoted(absl::StrCat(absl::StrReplaceAll(word, {{":", "\\:"}}), ":", help));
}

std::string ZshCase(const Command& command, const Command& program) {
  std::string commands;
  for (const Word& one : command.commands) {
    absl::StrAppend(&commands, " ", Described(one.text, one.help));
  }
  std::set<std::string> options;  // both have --help
  std::string rest;
  const auto add = [&](const Command& of) {
    for (const Choice& choice : of.choices) {
      if (!choice.names.empty()) {
        options.insert(Described(choice.names.back(), choice.help));
      } else if (choice.is_file) {
        rest = " files=yes";
      } else {
        for (const Word& value : choice.values) {
          absl::StrAppend(&commands, " ", Described(value.text, value.help));
        }
      }
    }
  };
  add(command);
  if (!command.words.empty()) add(program);
  return absl::StrCat("    (", Quoted(PathOf(command)), ") commands=(", commands, " ) options=( ",
                      absl::StrJoin(options, " "), " )", rest, " ;;\n");
}

std::string Zsh(const CLI::App& app) {
  const std::vector<Command> all = CommandsOf(app);
  const Values values = ValuesOf(all);
  const std::string& name = app.get_name();
  // `path` is a variable of zsh's own.
  std::string text =
      absl::StrCat("#compdef ", name, "\n# `", name, " completion zsh` prints this.\n_", name,
                   "() {\n  local at='' files='' i\n  local -a commands options\n"
                   "  case ${words[CURRENT - 1]} in\n    (",
                   absl::StrJoin(values.file_options, " | "), ") _files; return ;;\n");
  for (const auto& [names, list] : values.listed) {
    absl::StrAppend(&text, "    (", names, ") compadd -- ", list, "; return ;;\n");
  }
  absl::StrAppend(&text, "    (", absl::StrJoin(values.others, " | "),
                  ") return ;;\n  esac\n  for ((i = 2; i < CURRENT; i++)); do\n"
                  "    case \"$at ${words[i]}\" in\n      (",
                  PathPattern(all), ") at+=\" ${words[i]}\" ;;\n    esac\n  done\n  case $at in\n");
  for (const Command& command : all) absl::StrAppend(&text, ZshCase(command, all.front()));
  absl::StrAppend(&text,
                  "  esac\n  [[ -z $files ]] || _files\n"
                  "  (( $#commands == 0 )) || _describe command commands\n"
                  "  _describe -o option options\n}\nif [[ $funcstack[1] == _",
                  name, " ]]; then\n  _", name, " \"$@\"\nelse\n  compdef _", name, " ", name,
                  "\nfi\n");
  return text;
}

// What must have been typed for the command, and that none of its own commands has been.
std::string FishCondition(const Command& command, bool wants_command) {
  std::vector<std::string> conditions;
  for (const std::string& word : command.words) {
    conditions.push_back(absl::StrCat("__fish_seen_subcommand_from ", word));
  }
  if (wants_command) {
    std::vector<std::string> names;
    for (const Word& one : command.commands) names.push_back(one.text);
    conditions.push_back(
        absl::StrCat("not __fish_seen_subcommand_from ", absl::StrJoin(names, " ")));
  }
  return conditions.empty() ? ""
                            : absl::StrCat(" -n ", Quoted(absl::StrJoin(conditions, "; and ")));
}

std::string FishChoice(const std::string& name, const Command& command, const Choice& choice) {
  std::string line = absl::StrCat("complete -c ", name, FishCondition(command, false));
  for (const std::string& one : choice.names) {
    const bool is_long = absl::StartsWith(one, "--");
    absl::StrAppend(&line, is_long ? " -l " : " -s ", one.substr(is_long ? 2 : 1));
  }
  if (choice.is_file) {
    absl::StrAppend(&line, choice.names.empty() ? " -F" : " -r -F");
  } else if (!choice.values.empty()) {
    absl::StrAppend(&line, choice.names.empty() ? "" : " -x", " -a ",
                    Quoted(Joined(choice.values)));
  } else if (choice.takes_value) {
    absl::StrAppend(&line, " -x");
  }
  return absl::StrCat(line, " -d ", Quoted(choice.help), "\n");
}

std::string Fish(const CLI::App& app) {
  const std::string& name = app.get_name();
  std::string text = absl::StrCat("# Completes ", name, " in fish; `", name,
                                  " completion fish` prints this.\ncomplete -c ", name, " -f\n");
  for (const Command& command : CommandsOf(app)) {
    for (const Word& one : command.commands) {
      absl::StrAppend(&text, "complete -c ", name, FishCondition(command, true), " -a ", one.text,
                      " -d ", Quoted(one.help), "\n");
    }
    for (const Choice& choice : command.choices) {
      // Any value of an argument: nothing to offer.
      if (choice.names.empty() && !choice.is_file && choice.values.empty()) continue;
      text += FishChoice(name, command, choice);
    }
  }
  return text;
}

}  // namespace

std::string Completion(const CLI::App& app, const std::string& shell) {
  if (shell == "bash") return Bash(app);
  return shell == "zsh" ? Zsh(app) : Fish(app);
}

}  // namespace gradwire::ctl
