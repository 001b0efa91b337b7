// The files of recordings: their names, and how they are found and read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/record/record_file.h"

namespace gradwire::server {

// "step-41.gwrec".
std::string RecordName(std::int64_t step);
// Behind the name of a file that is being written.
inline constexpr char kPartialSuffix[] = ".partial";

// Of the folder of a session in the directory, or of a shard of it, "digits-000000000000002a" or
// "digits-000000000000002a.shard0of2": what is the same in all of its shards. nullopt: it is not
// named as one.
std::optional<std::string> SessionOfFolder(std::string_view folder);
// A step's file, or one that is being written.
bool IsRecordFile(std::string_view name);

// The steps that have a file in the folder, ascending. NotFound, Unavailable: as the system says.
absl::StatusOr<std::vector<std::int64_t>> ListSteps(const std::string& folder);

// A recorded step in a directory tree.
struct RecordPath {
  std::string folder;  // of the session, below the directory; "" if the directory is the session's
  std::int64_t step = 0;
  std::string path;
};
// Those in the directory and in the folders in it, by folder and step. Errors as ListSteps.
absl::StatusOr<std::vector<RecordPath>> ListRecords(const std::string& directory);

absl::StatusOr<std::unique_ptr<RecordSource>> OpenRecord(const std::string& path);

}  // namespace gradwire::server
