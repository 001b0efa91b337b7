#include "server/arbiter/file_arbiter.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/error_code.h"
#include "base/random_bytes.h"
#include "base/unique_fd.h"
#include "server/arbiter/roster_text.h"

namespace gradwire::server {
namespace {

constexpr char kIdFile[] = "id";
// Of the largest session's roster, with a few steps that newcomers were in.
constexpr std::size_t kMostBytes = std::size_t{16} << 20;

absl::Status NotUsable(const std::string& folder, int error) {
  return Coded(
      ErrorCode::kSetting,
      absl::UnavailableError(absl::StrCat(
          "arbiter is \"", folder, "\": ", std::strerror(error),
          "; allowed is a folder that exists, in which gradwired may make files and links, "
          "and which all daemons share that may take its sessions over")));
}

absl::Status AtStart(const absl::Status& status) {
  return absl::Status(status.code(),
                      RecodedText(ErrorCode::kSetting, std::string(status.message())));
}

// 0, or what errno said.
int WriteAll(int file, const std::string& bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t count = write(file, bytes.data() + at, bytes.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    at += static_cast<std::size_t>(count);
  }
  return 0;
}

int WriteFile(const std::string& path, const std::string& bytes) {
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file.valid()) return errno;
  if (const int error = WriteAll(file.get(), bytes); error != 0) return error;
  return fsync(file.get()) == 0 ? 0 : errno;
}

// A name that is made is one after a crash, too.
int SyncFolder(const std::string& folder) {
  const UniqueFd file(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!file.valid()) return errno;
  // Some network file systems have nothing to be done there, and say so.
  return fsync(file.get()) == 0 || errno == EINVAL ? 0 : errno;
}

std::string NameOf(std::uint64_t lineage, std::uint64_t number) {
  return absl::StrCat(Hex16(lineage), "-", number);
}

}  // namespace

absl::Status FileArbiter::Check(const std::string& folder) {
  struct stat entry {};
  if (stat(folder.c_str(), &entry) != 0) return NotUsable(folder, errno);
  if (!S_ISDIR(entry.st_mode)) return NotUsable(folder, ENOTDIR);
  if (faccessat(AT_FDCWD, folder.c_str(), R_OK | W_OK | X_OK, AT_EACCESS) == 0) {
    return absl::OkStatus();
  }
  return NotUsable(folder, errno);
}

// Always tried, and not only where there is no id: so it is known that files can be made here.
absl::StatusOr<std::shared_ptr<const FileArbiter>> FileArbiter::Open(std::string folder) {
  if (absl::Status usable = Check(folder); !usable.ok()) return usable;
  std::shared_ptr<FileArbiter> arbiter(new FileArbiter(std::move(folder)));
  const absl::StatusOr<std::uint64_t> drawn = RandomNumber();
  if (!drawn.ok()) return drawn.status();
  const auto created = arbiter->Create(kIdFile, Hex16(*drawn | 1) + "\n");
  if (!created.ok()) return AtStart(created.status());
  const absl::StatusOr<std::string> text = arbiter->Read(kIdFile);
  if (!text.ok()) return AtStart(text.status());
  const std::string digits(absl::StripSuffix(*text, "\n"));
  if (ParseHex16(digits, &arbiter->id_) && arbiter->id_ != 0) return arbiter;
  return Coded(ErrorCode::kSetting,
               absl::DataLossError(absl::StrCat(
                   "arbiter is \"", arbiter->folder_, "\", whose file \"", kIdFile,
                   "\" is not 16 hexadecimal digits; allowed is a folder for nothing else")));
}

absl::StatusOr<ClaimAnswer> FileArbiter::Claim(std::uint64_t lineage,
                                               const RosterClaim& claim) const {
  const absl::StatusOr<std::uint64_t> id = RandomNumber();
  if (!id.ok()) return id.status();
  if (claim.number > 0) {
    const auto created = Create(NameOf(lineage, claim.number), RosterText(claim, *id));
    if (!created.ok()) return created.status();
  }
  const auto numbers = Numbers(lineage);
  if (!numbers.ok()) return numbers.status();
  // A folder's entries may be cached here, but not that the name was taken.
  const std::uint64_t highest =
      std::max(claim.number, numbers->empty() ? std::uint64_t{0} : numbers->back());
  if (highest == 0) return ClaimAnswer();
  const std::string name = NameOf(lineage, highest);
  const absl::StatusOr<std::string> text = Read(name);
  if (!text.ok()) return text.status();
  absl::StatusOr<ReadRoster> read = ParseRoster(*text);
  if (!read.ok()) {
    return absl::Status(read.status().code(), absl::StrCat("arbiter file ", folder_, "/", name,
                                                           ": ", read.status().message()));
  }
  read->claim.number = highest;
  return ClaimAnswer{.highest = std::move(read->claim), .is_own = read->id == *id};
}

absl::Status FileArbiter::Forget(std::uint64_t lineage) const {
  auto numbers = Numbers(lineage);
  if (!numbers.ok()) return numbers.status();
  if (!numbers->empty()) numbers->pop_back();
  for (const std::uint64_t number : *numbers) {
    const std::string name = NameOf(lineage, number);
    if (unlink(absl::StrCat(folder_, "/", name).c_str()) != 0 && errno != ENOENT) {
      return Failed(absl::StrCat("cannot remove ", name), errno);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> FileArbiter::Create(const std::string& name,
                                         const std::string& content) const {
  const absl::StatusOr<std::uint64_t> drawn = RandomNumber();
  if (!drawn.ok()) return drawn.status();
  const std::string path = absl::StrCat(folder_, "/", name);
  const std::string partial = absl::StrCat(path, ".", Hex16(*drawn), ".partial");
  const absl::Cleanup remove = [&] { unlink(partial.c_str()); };
  if (const int error = WriteFile(partial, content); error != 0) {
    return Failed(absl::StrCat("cannot write ", partial), error);
  }
  if (link(partial.c_str(), path.c_str()) != 0) {
    if (errno == EEXIST) return false;  // by this call too, if the answer was lost on its way
    return Failed(absl::StrCat("cannot link ", name), errno);
  }
  if (const int error = SyncFolder(folder_); error != 0) return Failed("cannot sync", error);
  return true;
}

absl::StatusOr<std::string> FileArbiter::Read(const std::string& name) const {
  const std::string path = absl::StrCat(folder_, "/", name);
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return Failed(absl::StrCat("cannot open ", name), errno);
  std::string text;
  std::array<char, 4096> piece;
  while (text.size() < kMostBytes) {
    const ssize_t count = read(file.get(), piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Failed(absl::StrCat("cannot read ", name), errno);
    if (count == 0) return text;
    text.append(piece.data(), static_cast<std::size_t>(count));
  }
  return Failed(absl::StrCat("cannot read ", name), EFBIG);
}

absl::StatusOr<std::vector<std::uint64_t>> FileArbiter::Numbers(std::uint64_t lineage) const {
  DIR* const folder = opendir(folder_.c_str());
  if (folder == nullptr) return Failed("cannot open", errno);
  const absl::Cleanup close = [folder] { closedir(folder); };
  std::vector<std::uint64_t> numbers;
  const std::string prefix = Hex16(lineage) + "-";
  errno = 0;
  while (const dirent* const entry = readdir(folder)) {
    absl::string_view digits(entry->d_name);
    std::uint64_t number = 0;
    const bool is_claim = absl::ConsumePrefix(&digits, prefix) &&
                          absl::SimpleAtoi(digits, &number) && number > 0 &&
                          entry->d_name == NameOf(lineage, number);
    if (is_claim) numbers.push_back(number);
    errno = 0;
  }
  if (errno != 0) return Failed("cannot list", errno);
  std::ranges::sort(numbers);
  return numbers;
}

absl::Status FileArbiter::Failed(const std::string& what, int error) const {
  return Coded(ErrorCode::kResume,
               absl::UnavailableError(absl::StrCat("arbiter folder ", folder_, ": ", what, ": ",
                                                   std::strerror(error))));
}

}  // namespace gradwire::server
