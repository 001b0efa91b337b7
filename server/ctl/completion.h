// Shell completion, from the commands and options themselves, so that it never lacks one.
#pragma once

#include <CLI/App.hpp>
#include <string>

namespace gradwire::ctl {

// The types of options and arguments that completion takes for a path, and for an error's code.
inline constexpr char kFile[] = "FILE";
inline constexpr char kErrorCode[] = "CODE";

// The script for "bash", "zsh" or "fish". Completes commands, options, the values of options that
// allow few, and paths where an option or argument is a file.
std::string Completion(const CLI::App& app, const std::string& shell);

}  // namespace gradwire::ctl
