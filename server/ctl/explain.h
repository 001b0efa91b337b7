// The pages of deploy/errors, which are part of the program, and how errors name them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/error_code.h"
#include "server/ctl/report.h"

namespace gradwire::ctl {

struct ErrorPage {
  std::string_view name;  // "GW203"
  std::string_view text;  // Markdown
};

// In ascending order.
std::span<const ErrorPage> ErrorPages();

// Prints the page of a code, such as "GW203" or "203", or the list of all if `code` is empty: as
// text or, if `print` is there, with it. Returns the exit code.
int Explain(const std::string& code, const Print& print);

// Prints to standard error: the message, which ends in its code, or in `general` if it has none;
// and the command that explains the code.
void PrintFailure(ErrorCode general, const std::string& message);

}  // namespace gradwire::ctl
