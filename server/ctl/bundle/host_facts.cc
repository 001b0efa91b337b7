#include "server/ctl/bundle/host_facts.h"

#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/printable.h"
#include "hooks/cpu/kernels.h"

namespace gradwire::ctl {
namespace {

constexpr char kPrefix[] = "GRADWIRE_";
constexpr char kToken[] = "GRADWIRE_TOKEN";

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The value of the line "key: value", or with another character between them.
std::string ValueIn(const std::string& path, const std::string& key, char between = ':') {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(between);
    if (colon == std::string::npos || !absl::StartsWith(line, key)) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

void Add(const std::string& name, const std::string& value, std::string& to) {
  if (!value.empty()) absl::StrAppend(&to, name, ": ", Printable(value), "\n");
}

std::string Limit(rlim_t value) {
  return value == RLIM_INFINITY ? "unlimited" : absl::StrCat(value);
}

// A group's limits hold for those below it too, so all of them are listed.
void AddControlGroups(std::string& to) {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (!absl::StartsWith(line, "0::/")) continue;  // version 2
    for (std::string group = line.substr(3);; group.erase(group.rfind('/'))) {
      for (const char* const file : {"memory.max", "memory.high", "memory.current", "cpu.max"}) {
        const std::string path = absl::StrCat("/sys/fs/cgroup", group, "/", file);
        Add(path, FirstLine(path), to);
      }
      if (group.empty() || group == "/") break;
    }
  }
  // Version 1, as a container sees its own group.
  for (const char* const path :
       {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us",
        "/sys/fs/cgroup/cpu/cpu.cfs_period_us"}) {
    Add(path, FirstLine(path), to);
  }
}

// Those of Gradwire.
std::vector<std::pair<std::string, std::string>> Variables() {
  std::vector<std::pair<std::string, std::string>> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const std::size_t equals = text.find('=');
    if (!absl::StartsWith(text, kPrefix) || equals == std::string::npos) continue;
    variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

bool IsNamedLikeASecret(const std::string& name) {
  constexpr const char* kWords[] = {"TOKEN", "SECRET", "PASSWORD", "PASSWD", "KEY", "CREDENTIAL"};
  return std::any_of(std::begin(kWords), std::end(kWords),
                     [&name](const char* word) { return absl::StrContains(name, word); });
}

// Paths of files are shown, for example of GRADWIRE_TOKEN_FILE; a key or token in their place is
// not.
bool IsShown(const std::string& name, const std::string& value) {
  if (name == kToken) return false;
  if (!IsNamedLikeASecret(name)) return true;
  return value.empty() || (value.front() == '/' && access(value.c_str(), F_OK) == 0);
}

}  // namespace

std::string HostFacts() {
  std::string facts;
  utsname system{};
  if (uname(&system) == 0) {
    Add("uname",
        absl::StrJoin(
            {system.sysname, system.nodename, system.release, system.version, system.machine}, " "),
        facts);
  }
  Add("system", ValueIn("/etc/os-release", "PRETTY_NAME", '='), facts);
  Add("processor", ValueIn("/proc/cpuinfo", "model name"), facts);
  Add("processors", absl::StrCat(std::thread::hardware_concurrency()), facts);
  const auto append_name = [](std::string* out, const cpu::Target& one) { *out += one.name; };
  Add("vector instructions, best first", absl::StrJoin(cpu::SupportedTargets(), " ", append_name),
      facts);
  Add("memory", ValueIn("/proc/meminfo", "MemTotal"), facts);
  Add("memory available", ValueIn("/proc/meminfo", "MemAvailable"), facts);
  rlimit descriptors{};
  if (getrlimit(RLIMIT_NOFILE, &descriptors) == 0) {
    Add("RLIMIT_NOFILE",
        absl::StrCat(Limit(descriptors.rlim_cur), ", at most ", Limit(descriptors.rlim_max)),
        facts);
  }
  Add("vm.max_map_count", FirstLine("/proc/sys/vm/max_map_count"), facts);
  AddControlGroups(facts);
  return facts;
}

std::string EnvironmentFacts() {
  std::set<std::string> lines;
  for (const auto& [name, value] : Variables()) {
    lines.insert(Printable(IsShown(name, value) ? absl::StrCat(name, "=", value)
                                                : name + " is set; its value is a secret"));
  }
  if (lines.empty()) return "no variable begins with GRADWIRE_\n";
  return absl::StrJoin(lines, "\n") + "\n";
}

std::string EnvironmentToken() {
  for (const auto& [name, value] : Variables()) {
    if (name == kToken) return value;
  }
  return "";
}

}  // namespace gradwire::ctl
