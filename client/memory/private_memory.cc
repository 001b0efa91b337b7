#include "client/memory/private_memory.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <sstream>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace gradwire::client {
namespace {

// VmFlags of proc(5) that say nothing against other pages in the same place: read, write, may read,
// may write, may execute, accounted, no reservation, soft-dirty, (no) huge pages, mergeable.
constexpr std::array<std::string_view, 11> kOrdinary = {"rd", "wr", "mr", "mw", "me", "ac",
                                                        "nr", "sd", "hg", "nh", "mg"};

absl::Status Refused(const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat("the memory ", why));
}

struct Mapping {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  std::string permissions;
  std::uint64_t inode = 0;
  bool ours = false;  // a memfd of SharedPages
};

// "7f00-7f10 rw-p 00000000 00:00 0  [heap]"; false for the lines of properties that follow it.
bool Parse(const std::string& line, Mapping& mapping) {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  std::uint64_t inode = 0;
  char permissions[5] = {};
  if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s %*x %*x:%*x %" SCNu64, &begin, &end,
                  permissions, &inode) != 4) {
    return false;
  }
  mapping = {.begin = begin,
             .end = end,
             .permissions = permissions,
             .inode = inode,
             .ours = line.find(absl::StrCat("/memfd:", kSharedPagesName)) != std::string::npos};
  return true;
}

absl::Status CheckMapping(const Mapping& mapping) {
  if (mapping.permissions != "rw-p") {
    return Refused(absl::StrCat("is mapped as ", mapping.permissions, "; allowed: rw-p"));
  }
  if (mapping.inode != 0 && !mapping.ours) return Refused("is mapped from a file");
  return absl::OkStatus();
}

absl::Status CheckFlags(const std::string& flags) {
  std::istringstream words(flags);
  for (std::string flag; words >> flag;) {
    if (std::find(kOrdinary.begin(), kOrdinary.end(), flag) != kOrdinary.end()) continue;
    return Refused(absl::StrCat("has the property ", flag, " in /proc/self/smaps"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPrivateMemory(std::span<const std::byte> memory, std::istream& smaps) {
  constexpr std::string_view kFlags = "VmFlags:";
  auto wanted = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::uintptr_t end = wanted + memory.size();
  Mapping mapping;
  for (std::string line; wanted < end && std::getline(smaps, line);) {
    if (Parse(line, mapping)) continue;
    // The flags are a mapping's last line.
    if (line.compare(0, kFlags.size(), kFlags) != 0) continue;
    if (mapping.end <= wanted) continue;
    if (mapping.begin > wanted) break;
    if (absl::Status ordinary = CheckMapping(mapping); !ordinary.ok()) return ordinary;
    if (absl::Status known = CheckFlags(line.substr(kFlags.size())); !known.ok()) return known;
    wanted = mapping.end;
  }
  if (wanted >= end) return absl::OkStatus();
  return Refused("is not described in /proc/self/smaps");
}

bool IsSharedFrom(std::span<const std::byte> memory, std::uint64_t inode, std::istream& maps) {
  auto wanted = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::uintptr_t end = wanted + memory.size();
  Mapping mapping;
  for (std::string line; wanted < end && std::getline(maps, line);) {
    if (!Parse(line, mapping) || mapping.end <= wanted) continue;
    const bool same = mapping.ours && mapping.inode == inode && mapping.permissions == "rw-s";
    if (mapping.begin > wanted || !same) return false;
    wanted = mapping.end;
  }
  return wanted >= end;
}

}  // namespace gradwire::client
