#include "server/record/session_folders.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <vector>

#include "server/record/record_directory.h"

namespace gradwire::server {
namespace {

namespace fs = std::filesystem;

// What a session has recorded, with all of its shards.
struct Recording {
  std::vector<std::string> folders{};
  bool in_use = false;
  bool empty = true;
  // When a file was made in one of them, or deleted.
  fs::file_time_type last = fs::file_time_type::min();
};

UniqueFd OpenFolder(const std::string& path) {
  return UniqueFd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

std::vector<fs::path> FilesIn(const std::string& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator at(folder, error); !error && at != fs::directory_iterator();
       at.increment(error)) {
    if (IsRecordFile(at->path().filename().string())) files.push_back(at->path());
  }
  return files;
}

// The folder stays if there is something else in it.
void Delete(const std::string& folder) {
  std::error_code ignored;
  for (const fs::path& file : FilesIn(folder)) fs::remove(file, ignored);
  rmdir(folder.c_str());
}

}  // namespace

void SessionFolders::Begin(const std::string& folder) {
  ++uses_[folder].sessions;
  Make(folder);
  DeleteOldest();
}

void SessionFolders::End(const std::string& folder) {
  const auto found = uses_.find(folder);
  if (found != uses_.end() && --found->second.sessions == 0) uses_.erase(found);
}

bool SessionFolders::Make(const std::string& folder) {
  const std::string path = PathOf(folder);
  const bool made = mkdir(path.c_str(), 0700) == 0;
  const auto found = uses_.find(folder);
  if (found == uses_.end() || (!made && found->second.lock.valid())) return made;
  UniqueFd lock = OpenFolder(path);
  if (lock.valid() && flock(lock.get(), LOCK_SH | LOCK_NB) == 0) {
    found->second.lock = std::move(lock);
  }
  return made;
}

// A file system without locks can only say what this daemon itself writes.
bool SessionFolders::IsInUse(const std::string& folder) const {
  if (uses_.contains(folder)) return true;
  const UniqueFd lock = OpenFolder(PathOf(folder));
  return !lock.valid() || (flock(lock.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK);
}

void SessionFolders::DeleteOldest() const {
  std::map<std::string, Recording> found;
  std::error_code error;
  for (fs::directory_iterator at(directory_, error); !error && at != fs::directory_iterator();
       at.increment(error)) {
    const std::string folder = at->path().filename().string();
    const auto session = SessionOfFolder(folder);
    std::error_code ignored;
    if (!session || !fs::is_directory(at->symlink_status(ignored))) continue;
    Recording& recording = found[*session];
    recording.folders.push_back(folder);
    recording.in_use |= IsInUse(folder);
    recording.empty &= FilesIn(PathOf(folder)).empty();
    recording.last = std::max(recording.last, fs::last_write_time(at->path(), ignored));
  }
  std::erase_if(found, [](const auto& entry) { return entry.second.in_use; });
  std::vector<const Recording*> ended;
  for (const auto& [session, recording] : found) ended.push_back(&recording);
  // Empty folders, of sessions that have concluded no step, are the first to go.
  std::ranges::stable_sort(ended, [](const Recording* one, const Recording* other) {
    return std::pair(one->empty, other->last) < std::pair(other->empty, one->last);
  });
  std::size_t deleted = 0;
  for (std::size_t i = 0; i < ended.size(); ++i) {
    if (i < ended_ && !ended[i]->empty) continue;
    if (!ended[i]->empty) ++deleted;
    for (const std::string& folder : ended[i]->folders) Delete(PathOf(folder));
  }
  if (deleted == 0) return;
  spdlog::info("record \"{}\": deleted the recordings of {} session(s) that had ended", directory_,
               deleted);
}

}  // namespace gradwire::server
