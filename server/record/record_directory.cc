#include "server/record/record_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/unique_fd.h"

namespace gradwire::server {
namespace {

constexpr char kPrefix[] = "step-";
constexpr char kSuffix[] = ".gwrec";
constexpr char kHexDigits[] = "0123456789abcdef";
constexpr std::size_t kLineageDigits = 16;

std::optional<std::int64_t> StepOf(std::string_view name) {
  absl::string_view rest(name.data(), name.size());
  std::int64_t step = 0;
  if (!absl::ConsumePrefix(&rest, kPrefix) || !absl::ConsumeSuffix(&rest, kSuffix) ||
      !absl::SimpleAtoi(rest, &step) || step < 0 || RecordName(step) != name) {
    return std::nullopt;
  }
  return step;
}

// ".shard0of2".
bool IsShard(std::string_view suffix) {
  absl::string_view rest(suffix.data(), suffix.size());
  int number = 0;
  int count = 0;
  if (!absl::ConsumePrefix(&rest, ".shard")) return false;
  const std::size_t of = rest.find("of");
  return of != absl::string_view::npos && absl::SimpleAtoi(rest.substr(0, of), &number) &&
         absl::SimpleAtoi(rest.substr(of + 2), &count) &&
         absl::StrCat(".shard", number, "of", count) == suffix;
}

absl::Status CannotRead(const std::string& path, const std::string& why) {
  return absl::UnavailableError(absl::StrCat("cannot read ", path, ": ", why));
}

class FileSource final : public RecordSource {
 public:
  FileSource(std::string path, UniqueFd file, std::uint64_t bytes)
      : path_(std::move(path)), file_(std::move(file)), left_(bytes) {}

  std::uint64_t left() const override { return left_; }
  absl::Status Read(std::span<std::byte> out) override {
    left_ -= out.size();
    while (!out.empty()) {
      const ssize_t count = read(file_.get(), out.data(), out.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return CannotRead(path_, std::strerror(errno));
      if (count == 0) return CannotRead(path_, "it has become shorter");
      out = out.subspan(static_cast<std::size_t>(count));
    }
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  const UniqueFd file_;
  std::uint64_t left_;
};

}  // namespace

std::string RecordName(std::int64_t step) { return absl::StrCat(kPrefix, step, kSuffix); }

std::optional<std::string> SessionOfFolder(std::string_view folder) {
  const std::size_t dash = folder.rfind('-');
  if (dash == std::string_view::npos || dash == 0) return std::nullopt;
  const std::size_t end = folder.find_first_not_of(kHexDigits, dash + 1);
  const std::string_view session = folder.substr(0, end);
  if (session.size() != dash + 1 + kLineageDigits) return std::nullopt;
  if (end != std::string_view::npos && !IsShard(folder.substr(end))) return std::nullopt;
  return std::string(session);
}

bool IsRecordFile(std::string_view name) {
  absl::string_view step(name.data(), name.size());
  absl::ConsumeSuffix(&step, kPartialSuffix);
  return StepOf({step.data(), step.size()}).has_value();
}

absl::StatusOr<std::vector<std::int64_t>> ListSteps(const std::string& folder) {
  std::error_code error;
  std::vector<std::int64_t> steps;
  std::filesystem::directory_iterator at(folder, error);
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
    if (const auto step = StepOf(at->path().filename().string())) steps.push_back(*step);
  }
  if (error) return CannotRead(folder, error.message());
  std::sort(steps.begin(), steps.end());
  return steps;
}

absl::StatusOr<std::vector<RecordPath>> ListRecords(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> folders = {""};
  std::filesystem::directory_iterator at(directory, error);
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
    std::error_code ignored;
    if (at->is_directory(ignored)) folders.push_back(at->path().filename().string());
  }
  if (error) return CannotRead(directory, error.message());
  std::sort(folders.begin(), folders.end());
  std::vector<RecordPath> records;
  for (const std::string& folder : folders) {
    const std::string path = folder.empty() ? directory : absl::StrCat(directory, "/", folder);
    const auto steps = ListSteps(path);
    if (!steps.ok()) return steps.status();
    for (const std::int64_t step : *steps) {
      records.push_back(
          {.folder = folder, .step = step, .path = absl::StrCat(path, "/", RecordName(step))});
    }
  }
  return records;
}

absl::StatusOr<std::unique_ptr<RecordSource>> OpenRecord(const std::string& path) {
  UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat entry {};
  if (!file.valid() || fstat(file.get(), &entry) != 0) {
    return CannotRead(path, std::strerror(errno));
  }
  // A pipe or a device has no length to compare sizes with.
  if (!S_ISREG(entry.st_mode)) return CannotRead(path, "it is not a regular file");
  return std::make_unique<FileSource>(path, std::move(file),
                                      static_cast<std::uint64_t>(entry.st_size));
}

}  // namespace gradwire::server
