#include "server/ctl/explain.h"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/printable.h"
#include "server/daemon/exit_codes.h"

namespace gradwire::ctl {

namespace {

using nlohmann::ordered_json;

// As it stands in a message too, with its brackets; or the number alone.
std::optional<ErrorCode> CodeOf(std::string_view name) {
  if (name.size() > 1 && name.front() == '[' && name.back() == ']') {
    name = name.substr(1, name.size() - 2);
  }
  const std::optional<ErrorCode> code = ParseErrorCode(name);
  return code ? code : ParseErrorCode(absl::StrCat("GW", std::string(name)));
}

void List(const Print& print) {
  ordered_json list = ordered_json::array();
  for (const ErrorEntry& entry : ErrorCodes()) {
    if (print == nullptr) {
      std::cout << Name(entry.code) << "  " << entry.title << "\n";
    } else {
      list.push_back({{"code", Name(entry.code)}, {"title", entry.title}});
    }
  }
  if (print != nullptr) print(list.dump() + "\n");
}

}  // namespace

int Explain(const std::string& code, const Print& print) {
  if (code.empty()) {
    List(print);
    return server::kExitOk;
  }
  if (const std::optional<ErrorCode> known = CodeOf(code)) {
    const auto pages = ErrorPages();
    const auto page = std::find_if(pages.begin(), pages.end(),
                                   [&](const ErrorPage& one) { return one.name == Name(*known); });
    const auto codes = ErrorCodes();
    const auto entry = std::find_if(codes.begin(), codes.end(),
                                    [&](const ErrorEntry& one) { return one.code == *known; });
    if (page != pages.end() && entry != codes.end()) {
      if (print == nullptr) {
        std::cout << page->text;
      } else {
        print(ordered_json({{"code", page->name}, {"title", entry->title}, {"page", page->text}})
                  .dump() +
              "\n");
      }
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
