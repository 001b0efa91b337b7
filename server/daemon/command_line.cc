#include "server/daemon/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/error_code.h"
#include "base/printable.h"
#include "server/daemon/config_show.h"
#include "server/daemon/exit_codes.h"
#include "server/daemon/named_files.h"
#include "server/daemon/unexpected_word.h"

namespace gradwire::server {
namespace {

constexpr char kConfigFlag[] = "--config";
constexpr char kFooter[] =
    "A flag counts before its variable, and a variable before the file's key. \"gradwired config "
    "schema\" lists the keys.";

// The program's words as CLI11 takes them, the last first. CLI11 would look for the value of
// "--config=" in the next word.
std::vector<std::string> WordsOf(int argc, const char* const* argv) {
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == absl::StrCat(kConfigFlag, "=")) {
      words.insert(words.end(), {kConfigFlag, ""});
    } else {
      words.push_back(word);
    }
  }
  std::reverse(words.begin(), words.end());
  return words;
}

class Parser {
 public:
  Parser() : app_("Gradwire's daemon: reduces the gradients of training sessions.", "gradwired") {
    app_.set_version_flag("--version", absl::StrCat("gradwired ", GRADWIRE_VERSION));
    app_.footer(kFooter);
    app_.failure_message([](const CLI::App* /*app*/, const CLI::Error& error) {
      return absl::StrCat("gradwired: ", CodedText(ErrorCode::kUsage, Printable(error.what())),
                          "\nRun with --help for more information.\n");
    });
    config_ = app_.add_option(kConfigFlag, config_help_)->type_name("FILE");
    for (const Setting& setting : Settings()) options_.emplace_back(&setting, Add(setting));
    AddCommands();
  }

  // False: help, version or an error was printed, with the exit code.
  bool Parse(int argc, const char* const* argv, int& exit_code) {
    try {
      app_.parse(WordsOf(argc, argv));
      return true;
    } catch (const CLI::ParseError& error) {
      // Only now, for the help: CLI11 would take a variable for a flag, and Load reads them.
      for (const auto& [setting, option] : options_) option->envname(setting->variable());
      config_->envname("GRADWIRE_CONFIG");
      const std::string unknown = UnexpectedWord(app_);
      if (error.get_exit_code() != 0 && !unknown.empty()) {
        exit_code = app_.exit(CLI::ParseError(unknown, kExitUsage));
      } else {
        exit_code = app_.exit(error) == 0 ? kExitOk : kExitUsage;
      }
      return false;
    }
  }

  Flags TakeFlags() const {
    Flags flags;
    if (config_->count() > 0) flags.config = config_->results().front();
    if (!file_.empty()) flags.config = file_;
    for (const auto& [setting, option] : options_) {
      if (option->count() > 0) flags.words[setting->name] = option->results();
    }
    return flags;
  }

  bool checks() const { return check_->parsed(); }
  bool shows() const { return show_->parsed(); }
  bool shows_schema() const { return schema_->parsed(); }
  bool origins() const { return origins_; }
  bool json() const { return format_ == "json"; }

 private:
  CLI::Option* Add(const Setting& setting) {
    if (KindOf(setting) == Kind::kSwitch) return app_.add_flag(setting.flag(), setting.help);
    CLI::Option* option = app_.add_option(setting.flag(), setting.help);
    option->type_name(setting.placeholder)->default_str(Text(setting, DaemonDefaults()));
    if (KindOf(setting) == Kind::kList) {
      option->delimiter(',')->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    }
    return option;
  }

  void AddCommands() {
    // Flags may stand before or after the command.
    const auto add = [](CLI::App& app, const char* name, const char* help) {
      CLI::App* command = app.add_subcommand(name, help);
      command->fallthrough();
      return command;
    };
    add(app_, "serve", "Run the daemon; the same as without a command");
    CLI::App* config = add(app_, "config", "Check and show the configuration");
    check_ =
        add(*config, "check", "Say what is wrong with the file, the environment and the flags");
    check_->add_option("FILE", file_, "The file; otherwise that of --config");
    show_ = add(*config, "show", "Print the values that a daemon would have");
    show_->add_flag("--origin", origins_, "And where each comes from");
    show_->add_option("-o", format_, "yaml or json")
        ->check(CLI::IsMember({"yaml", "json"}))
        ->type_name("FORMAT")
        ->capture_default_str();
    schema_ = add(*config, "schema", "Print the JSON schema of the file");
    config->require_subcommand(1);
    app_.require_subcommand(0, 1);
  }

  const std::string config_help_ = absl::StrCat(
      "YAML file with settings; \"\" for none. Default: ", kDefaultConfigPath, ", if it is there");
  CLI::App app_;
  CLI::Option* config_ = nullptr;
  std::vector<std::pair<const Setting*, CLI::Option*>> options_;
  CLI::App* check_ = nullptr;
  CLI::App* show_ = nullptr;
  CLI::App* schema_ = nullptr;
  std::string file_;
  bool origins_ = false;
  std::string format_ = "yaml";
};

// What a start would say about the files that the configuration names. Returns the exit code.
int CheckFiles(const Configuration& configuration) {
  const std::vector<absl::Status> problems = CheckNamedFiles(configuration.options, absl::Now());
  int exit_code = kExitOk;
  for (const absl::Status& problem : problems) {
    std::cerr << "gradwired: " << problem.message() << "\n";
    // Of several, what does not pass by itself.
    if (exit_code != kExitConfig) exit_code = StartExitCode(problem);
  }
  if (problems.empty()) std::cout << configuration.file << ": ok\n";
  return exit_code;
}

}  // namespace

CommandLine ParseCommandLine(int argc, const char* const* argv) {
  CommandLine line;
  Parser parser;
  line.exit = true;
  if (!parser.Parse(argc, argv, line.exit_code)) return line;
  if (parser.shows_schema()) {
    std::cout << Schema();
    return line;
  }
  line.flags = parser.TakeFlags();
  Loaded loaded = Load(line.flags);
  line.configuration = std::move(loaded.configuration);
  for (const std::string& problem : loaded.problems) std::cerr << "gradwired: " << problem << "\n";
  if (!loaded.problems.empty()) {
    line.exit_code = loaded.exit_code;
  } else if (parser.checks() && line.configuration.file.empty()) {
    std::cerr << CodedText(ErrorCode::kUsage,
                           "gradwired: there is no file to check: name one, or set --config")
              << "\n";
    line.exit_code = kExitUsage;
  } else if (parser.checks()) {
    line.exit_code = CheckFiles(line.configuration);
  } else if (parser.shows()) {
    std::cout << (parser.json() ? ShowJson(line.configuration, parser.origins())
                                : ShowYaml(line.configuration, parser.origins()));
  } else {
    line.exit = false;
  }
  return line;
}

}  // namespace gradwire::server
