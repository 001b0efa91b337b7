// A session's state as files: each exported version is made once, for all who read it; and how many
// calls may have one at a time.
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
#include "hooks/coordinator_hook.h"
#include "server/core/manifest.h"

namespace gradwire::server {

// What a session's state has as a file, at most. 0: it has none.
std::size_t StateFileBytes(const CoordinatorHook* hook, const Manifest& manifest);
// What exports and imports can hold at a time, beside the session's own state.
std::size_t StateCallBytes(std::size_t file_bytes);

// Thread-safe.
class ExportedFile {
 public:
  // Null bytes are never given.
  using Answer = std::function<void(absl::StatusOr<std::shared_ptr<const std::string>>)>;

  // Calls it once the file is made: now, or in Made.
  static void Read(const std::shared_ptr<ExportedFile>& file, Answer answer);
  // Once.
  static void Made(const std::shared_ptr<ExportedFile>& file, absl::StatusOr<std::string> bytes);

 private:
  // Whoever has the bytes keeps the file.
  static absl::StatusOr<std::shared_ptr<const std::string>> BytesOf(
      const std::shared_ptr<ExportedFile>& file, const absl::StatusOr<std::string>& bytes);

  Mutex mutex_;
  std::optional<absl::StatusOr<std::string>> bytes_ GRADWIRE_GUARDED_BY(mutex_);
  std::vector<Answer> waiting_ GRADWIRE_GUARDED_BY(mutex_);
};

// Thread-safe.
class StateFiles {
 public:
  // Which of a session's states: after which step, and how many imports.
  using Version = std::pair<std::int64_t, std::uint64_t>;
  // One of the calls that may be under way at a time, until it is destroyed.
  using Place = std::shared_ptr<const void>;

  static constexpr std::size_t kVersions = 2;  // that are read at a time
  static constexpr std::size_t kImports = 2;

  // `name`: the session's. All its members may export at once, and a few operators.
  StateFiles(std::string name, int world_size);

  // ResourceExhausted says how many there are, and how many are allowed.
  absl::StatusOr<Place> BeginExport() const;
  absl::StatusOr<Place> BeginImport() const;

  struct Found {
    std::shared_ptr<ExportedFile> file;
    bool is_new = false;  // the caller has it made
  };
  // The file of this version: one that somebody has already, or a new one. ResourceExhausted: too
  // many other versions are still being read.
  absl::StatusOr<Found> FileOf(const Version& version) GRADWIRE_EXCLUDES(mutex_);

 private:
  struct Calls;  // under way

  absl::StatusOr<Place> Begin(std::atomic<std::size_t> Calls::*count, std::size_t most,
                              const char* what) const;

  const std::string name_;
  const std::size_t most_exports_;
  const std::shared_ptr<Calls> calls_;  // outlives the session where a call does
  Mutex mutex_;
  std::vector<std::pair<Version, std::weak_ptr<ExportedFile>>> files_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::server
