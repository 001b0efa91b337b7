// A session's state as files. Each exported version is written once for all its readers, and the
// number of exports and imports under way is limited.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/sync.h"
#include "server/core/hook_state.h"

namespace gradwire::server {

// The memory that exports and imports can take together, in addition to the session's own state.
// `file_bytes` as StateFileBytes has it.
std::size_t StateCallBytes(std::size_t file_bytes);

// Thread-safe.
class ExportedFile {
 public:
  // If the status is OK, the pointer is not null.
  using Answer = std::function<void(absl::StatusOr<std::shared_ptr<const std::string>>)>;

  // Calls `answer` once: immediately if the file is complete, otherwise from Made.
  static void Read(const std::shared_ptr<ExportedFile>& file, Answer answer);
  // Stores the file or the error, and calls the waiting answers. Call it at most once.
  static void Made(const std::shared_ptr<ExportedFile>& file, absl::StatusOr<std::string> bytes);

 private:
  // The returned pointer keeps the file alive.
  static absl::StatusOr<std::shared_ptr<const std::string>> BytesOf(
      const std::shared_ptr<ExportedFile>& file, const absl::StatusOr<std::string>& bytes);

  Mutex mutex_;
  std::optional<absl::StatusOr<std::string>> bytes_ GRADWIRE_GUARDED_BY(mutex_);
  std::vector<Answer> waiting_ GRADWIRE_GUARDED_BY(mutex_);
};

// Thread-safe.
class StateFiles {
 public:
  // Identifies one state of the session: its step, and the number of imports so far.
  using Version = std::pair<std::int64_t, std::uint64_t>;
  // A place among the calls that may be under way; destroying it frees the place.
  using Place = std::shared_ptr<const void>;

  static constexpr std::size_t kVersions = 2;  // versions that are read at the same time
  static constexpr std::size_t kImports = 2;

  // `name` is the session's. All its members and a few operators may export at the same time.
  StateFiles(std::string name, int world_size);

  // Return ResourceExhausted, which names the limit, if too many calls are under way.
  absl::StatusOr<Place> BeginExport() const;
  absl::StatusOr<Place> BeginImport() const;

  struct Found {
    std::shared_ptr<ExportedFile> file;
    bool is_new = false;  // the caller must cause the call of Made
  };
  // Returns the file of this version, a new one if nobody reads it yet. Returns ResourceExhausted
  // if too many other versions are still being read.
  absl::StatusOr<Found> FileOf(const Version& version) GRADWIRE_EXCLUDES(mutex_);

 private:
  struct Calls;  // counts the calls under way

  absl::StatusOr<Place> Begin(std::atomic<std::size_t> Calls::*count, std::size_t most,
                              const char* what) const;

  const std::string name_;
  const std::size_t most_exports_;
  const std::shared_ptr<Calls> calls_;  // shared with calls, which may outlive the session
  Mutex mutex_;
  std::vector<std::pair<Version, std::weak_ptr<ExportedFile>>> files_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::server
