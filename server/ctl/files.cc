#include "server/ctl/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"

namespace gradwire::ctl {
namespace {

absl::Status Failed(const std::string& what, const std::string& path, int error) {
  return Coded(ErrorCode::kCtlFile,
               absl::FailedPreconditionError(absl::StrCat("cannot ", what, " ", path, ": ",
                                                          std::generic_category().message(error))));
}

// 0, or what errno said.
int WriteAll(int file, const std::string& bytes) {
  std::size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t count = write(file, bytes.data() + written, bytes.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    written += static_cast<std::size_t>(count);
  }
  // Before the rename: otherwise a crash could leave the new name with missing content.
  return fsync(file) == 0 ? 0 : errno;
}

}  // namespace

absl::Status WriteFile(const std::string& path, const std::string& bytes) {
  // In the same directory, because rename replaces a file atomically only within a file system.
  // Readers see the old file or the complete new one.
  std::string temporary = path + ".XXXXXX";
  const int file = mkstemp(temporary.data());
  if (file < 0) return Failed("write beside", path, errno);
  int error = WriteAll(file, bytes);
  if (close(file) != 0 && error == 0) error = errno;
  if (error == 0 && std::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return absl::OkStatus();
  unlink(temporary.c_str());
  return Failed("write", path, error);
}

absl::Status CheckWritable(const std::string& path) {
  struct stat entry {};
  if (stat(path.c_str(), &entry) == 0 && S_ISDIR(entry.st_mode)) {
    return Failed("write", path, EISDIR);
  }
  std::string temporary = path + ".XXXXXX";
  const int file = mkstemp(temporary.data());
  if (file < 0) return Failed("write beside", path, errno);
  close(file);
  unlink(temporary.c_str());
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::string& path, std::size_t most) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return Failed("read", path, errno);
  const auto piece = std::make_unique<std::array<char, 1 << 16>>();
  std::string bytes;
  int error = 0;
  while (error == 0 && bytes.size() <= most) {
    const ssize_t count = read(file, piece->data(), piece->size());
    if (count == 0) break;
    if (count > 0) bytes.append(piece->data(), static_cast<std::size_t>(count));
    if (count < 0 && errno != EINTR) error = errno;
  }
  close(file);
  if (bytes.size() > most) error = EFBIG;
  if (error != 0) return Failed("read", path, error);
  return bytes;
}

}  // namespace gradwire::ctl
