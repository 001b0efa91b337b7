#include "client/group/this_node.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"

namespace gradwire::client {

// NCCL itself tells machines by these two.
absl::StatusOr<std::string> ThisNode() {
  constexpr const char* kBootId = "/proc/sys/kernel/random/boot_id";
  std::string boot;
  std::ifstream file(kBootId);
  if (!std::getline(file, boot) || boot.empty()) {
    return Coded(ErrorCode::kNodeGroup,
                 absl::FailedPreconditionError(absl::StrCat("cannot read ", kBootId)));
  }
  std::array<char, 65> name{};  // Linux's names have 64 bytes at most
  if (gethostname(name.data(), name.size() - 1) != 0) {
    return Coded(ErrorCode::kNodeGroup, absl::FailedPreconditionError(
                                            absl::StrCat("gethostname: ", std::strerror(errno))));
  }
  return absl::StrCat(name.data(), "/", boot.substr(0, 36));
}

}  // namespace gradwire::client
