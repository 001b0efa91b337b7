// What gradwired and gradwirectl say of a word of the command line that nothing takes. CLI11 names
// all such words, the last first, and the values of unknown options with them.
#pragma once

#include <CLI/App.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/nearest.h"
#include "base/printable.h"

namespace gradwire::server {

// The options of the program and of the commands that were given.
inline void ConsiderOptions(const CLI::App& app, Nearest& nearest) {
  for (const CLI::Option* const option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) nearest.Consider(name, "--" + name);
  }
  for (const CLI::App* const command : app.get_subcommands()) ConsiderOptions(*command, nearest);
}

// After a failed parse. The first unknown option is named with the one that it is likely to mean;
// if there is none, the first other word. "": all words were taken.
inline std::string UnexpectedWord(const CLI::App& app) {
  constexpr std::size_t kMostQuoted = 60;
  const std::vector<std::string> words = app.remaining(true);
  if (words.empty()) return "";
  const auto option = std::find_if(words.begin(), words.end(), [](const std::string& one) {
    return one.size() > 1 && one.front() == '-';
  });
  const bool unknown = option != words.end();
  const std::string word = unknown ? option->substr(0, option->find('=')) : words.front();
  Nearest nearest(unknown && word.starts_with("--") ? word.substr(2) : "");
  ConsiderOptions(app, nearest);
  return absl::StrCat(
      unknown ? "unknown option \"" : "unexpected argument \"",
      Printable(word.substr(0, kMostQuoted)), "\"",
      nearest.meant().empty() ? "" : absl::StrCat("; did you mean \"", nearest.meant(), "\"?"));
}

}  // namespace gradwire::server
