#include "server/ctl/explain.h"

#include <algorithm>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "base/printable.h"
#include "server/daemon/exit_codes.h"

namespace gradwire::ctl {

int Explain(const std::string& code) {
  if (code.empty()) {
    for (const ErrorEntry& entry : ErrorCodes()) {
      std::cout << Name(entry.code) << "  " << entry.title << "\n";
    }
    return server::kExitOk;
  }
  // As it stands in a message too, with its brackets.
  std::string_view name = code;
  if (name.front() == '[' && name.back() == ']') name = name.substr(1, name.size() - 2);
  if (const std::optional<ErrorCode> known = ParseErrorCode(name)) {
    const auto pages = ErrorPages();
    const auto page = std::find_if(pages.begin(), pages.end(),
                                   [&](const ErrorPage& one) { return one.name == Name(*known); });
    if (page != pages.end()) {
      std::cout << page->text;
      return server::kExitOk;
    }
  }
  PrintFailure(ErrorCode::kCtlUsage,
               absl::StrCat("code is \"", Printable(code.substr(0, 40)),
                            "\"; allowed are the codes that \"gradwirectl explain\" lists"));
  return server::kExitUsage;
}

void PrintFailure(ErrorCode general, const std::string& message) {
  const std::string coded = CodedText(general, message);
  std::cerr << absl::StrCat("gradwirectl: ", coded, "\n", "Run gradwirectl explain ",
                            Name(*FindCode(coded)), " for what to do.\n");
}

}  // namespace gradwire::ctl
