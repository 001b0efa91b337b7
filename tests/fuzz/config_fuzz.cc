// Any bytes as the daemon's file: it is refused with problems that name their place and are safe to
// show, or gives values that settings take.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/printable.h"
#include "server/daemon/config_file.h"

namespace gradwire::server {
namespace {

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "config_fuzz: %s\n", what);
  std::abort();
}

void TestOneFile(const std::string& text) {
  const ConfigFile file = ParseConfig(text, "f");
  Require(file.problems.empty() || file.values.empty(), "gives values of a file with problems");
  Require(file.problems.size() <= 20, "reports too many problems");
  for (const std::string& problem : file.problems) {
    Require(problem.starts_with("f:"), "names no place");
    Require(problem == Printable(problem), "shows a control character");
    Require(problem.size() < 2000, "quotes much of the file");
  }
  ServerOptions options;
  for (const FileValue& value : file.values) {
    Require(Set(*value.setting, value.setting->key, value.words, options).ok(),
            "gives a value that its setting refuses");
    Require(Check(*value.setting, value.setting->key, options).ok(), "sets a value out of range");
    Require(value.line >= 1 && value.column >= 1, "gives a value without a place");
  }
}

}  // namespace
}  // namespace gradwire::server

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gradwire::server::TestOneFile(std::string(data, data + size));
  return 0;
}
