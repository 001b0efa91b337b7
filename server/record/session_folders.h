// The folders of sessions in the directory of recordings: those that are written to, and which of
// the others are kept.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>

#include "base/unique_fd.h"

namespace gradwire::server {

// Not thread-safe. A folder that is written to is locked (flock), so that daemons that share the
// directory spare each other's. What is not named as a recording is never deleted.
class SessionFolders {
 public:
  // Keeps the recordings of `ended` sessions that have ended, beside those of the running ones.
  SessionFolders(std::string directory, std::size_t ended)
      : directory_(std::move(directory)), ended_(ended) {}

  // A session, or a shard of it, records into `folder` from now on. Makes the folder, and deletes
  // the recordings that are the longest ago, also those of an earlier daemon.
  void Begin(const std::string& folder);
  // It has ended. The recording stays, until others take its place. As often as Begin: a session
  // that its members take to its next life overlaps with the one before.
  void End(const std::string& folder);
  // Makes the folder, if it is not there. Whether it made it.
  bool Make(const std::string& folder);

 private:
  struct Use {
    int sessions = 0;
    UniqueFd lock;  // of the folder; not valid: there is no folder, or it cannot be locked
  };

  bool IsInUse(const std::string& folder) const;
  void DeleteOldest() const;
  std::string PathOf(const std::string& folder) const { return directory_ + "/" + folder; }

  const std::string directory_;
  const std::size_t ended_;
  std::map<std::string, Use> uses_;  // by folder
};

}  // namespace gradwire::server
