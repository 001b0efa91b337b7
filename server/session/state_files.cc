#include "server/session/state_files.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"

namespace gradwire::server {
namespace {

// Exports at a time, in addition to one for each member.
constexpr std::size_t kOperators = 4;

}  // namespace

// Exported files, imported files, and one state that is being written to a file or read from one.
std::size_t StateCallBytes(std::size_t file_bytes) {
  constexpr std::size_t kStates = 2;
  return (StateFiles::kVersions + StateFiles::kImports + kStates) * file_bytes;
}

// ---- ExportedFile

absl::StatusOr<std::shared_ptr<const std::string>> ExportedFile::BytesOf(
    const std::shared_ptr<ExportedFile>& file, const absl::StatusOr<std::string>& bytes) {
  if (!bytes.ok()) return bytes.status();
  // The aliasing pointer keeps the file alive, of which FileOf holds only a weak pointer.
  return std::shared_ptr<const std::string>(file, &*bytes);
}

// Answers are called without the lock, since they write to streams.
void ExportedFile::Read(const std::shared_ptr<ExportedFile>& file, Answer answer) {
  const absl::StatusOr<std::string>* made = nullptr;
  {
    MutexLock lock(file->mutex_);
    if (!file->bytes_) {
      file->waiting_.push_back(std::move(answer));
      return;
    }
    made = &*file->bytes_;  // never changes again
  }
  answer(BytesOf(file, *made));
}

void ExportedFile::Made(const std::shared_ptr<ExportedFile>& file,
                        absl::StatusOr<std::string> bytes) {
  std::vector<Answer> waiting;
  const absl::StatusOr<std::string>* made = nullptr;
  {
    MutexLock lock(file->mutex_);
    made = &file->bytes_.emplace(std::move(bytes));
    waiting = std::move(file->waiting_);
  }
  for (const Answer& answer : waiting) answer(BytesOf(file, *made));
}

// ---- StateFiles

struct StateFiles::Calls {
  std::atomic<std::size_t> exports = 0;
  std::atomic<std::size_t> imports = 0;
};

StateFiles::StateFiles(std::string name, int world_size)
    : name_(std::move(name)),
      most_exports_(static_cast<std::size_t>(world_size) + kOperators),
      calls_(std::make_shared<Calls>()) {}

absl::StatusOr<StateFiles::Place> StateFiles::BeginExport() const {
  return Begin(&Calls::exports, most_exports_, "exports");
}

absl::StatusOr<StateFiles::Place> StateFiles::BeginImport() const {
  return Begin(&Calls::imports, kImports, "imports");
}

// Increments first and takes it back on refusal: a check before the increment could admit two
// callers to one place.
absl::StatusOr<StateFiles::Place> StateFiles::Begin(std::atomic<std::size_t> Calls::*count,
                                                    std::size_t most, const char* what) const {
  const std::shared_ptr<Calls> calls = calls_;
  if (((*calls).*count).fetch_add(1) >= most) {
    ((*calls).*count).fetch_sub(1);
    return Coded(ErrorCode::kQuota, absl::ResourceExhaustedError(absl::StrCat(
                                        "session \"", name_, "\" has ", most, " ", what,
                                        " of its state under way; allowed at a time: ", most)));
  }
  return Place(calls.get(), [calls, count](const void*) { ((*calls).*count).fetch_sub(1); });
}

// Weak pointers: a file lives as long as somebody reads it, not until the next version.
absl::StatusOr<StateFiles::Found> StateFiles::FileOf(const Version& version) {
  MutexLock lock(mutex_);
  std::erase_if(files_, [](const auto& one) { return one.second.expired(); });
  for (const auto& [known, weak] : files_) {
    if (known != version) continue;
    if (std::shared_ptr<ExportedFile> file = weak.lock()) return Found{.file = std::move(file)};
  }
  if (files_.size() >= kVersions) {
    return Coded(
        ErrorCode::kQuota,
        absl::ResourceExhaustedError(absl::StrCat(
            "session \"", name_, "\" has ", files_.size(),
            " versions of its state that are still being read; allowed at a time: ", kVersions)));
  }
  auto file = std::make_shared<ExportedFile>();
  files_.emplace_back(version, file);
  return Found{.file = std::move(file), .is_new = true};
}

}  // namespace gradwire::server
