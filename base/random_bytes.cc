#include "base/random_bytes.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"

namespace gradwire {

absl::Status FillRandom(std::span<std::byte> out) {
  // A signal may interrupt requests of more than 256 bytes, which then come short.
  while (!out.empty()) {
    const ssize_t got = getrandom(out.data(), out.size(), 0);
    if (got >= 0) {
      out = out.subspan(static_cast<std::size_t>(got));
    } else if (errno != EINTR) {
      return Coded(ErrorCode::kSystem,
                   absl::InternalError(absl::StrCat("getrandom failed: ", std::strerror(errno))));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::uint64_t> RandomNumber() {
  std::uint64_t number = 0;
  if (absl::Status filled = FillRandom(std::as_writable_bytes(std::span(&number, 1)));
      !filled.ok()) {
    return filled;
  }
  return number;
}

}  // namespace gradwire
