// Claims of rosters as files in a folder, which all daemons share that may take a session over.
//
// A file comes into being with all its bytes, under a name that nobody else can take: it is written
// under another name, and then linked. That is atomic on local file systems and on NFS. The folder
// has
//   id                  a random number, by which members know the folder
//   LINEAGE-NUMBER      a roster: 16 hexadecimal digits, and a decimal number
// and whatever else; nobody looks at that.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/core/roster_claims.h"

namespace gradwire::server {

// Thread-safe. All calls but id() may take as long as the file system does.
class FileArbiter {
 public:
  // Whether it could be opened; makes nothing. The error names the setting, the folder and what the
  // system says.
  static absl::Status Check(const std::string& folder);
  // Makes its id, if it has none.
  static absl::StatusOr<std::shared_ptr<const FileArbiter>> Open(std::string folder);

  std::uint64_t id() const { return id_; }  // not 0

  // Claims the number for the lineage, unless somebody has it; 0: only reads. With an error the
  // claim may stand nevertheless. Unavailable: as the system says. DataLoss: the highest claim
  // cannot be read.
  absl::StatusOr<ClaimAnswer> Claim(std::uint64_t lineage, const RosterClaim& claim) const;

  // The lineage's session has ended in good order. The highest claim stays: members that it was
  // made without may still look for a daemon, and must not go on from where they were.
  absl::Status Forget(std::uint64_t lineage) const;

 private:
  explicit FileArbiter(std::string folder) : folder_(std::move(folder)) {}

  // False: the name is taken.
  absl::StatusOr<bool> Create(const std::string& name, const std::string& content) const;
  absl::StatusOr<std::string> Read(const std::string& name) const;
  // Of the claims, ascending.
  absl::StatusOr<std::vector<std::uint64_t>> Numbers(std::uint64_t lineage) const;
  absl::Status Failed(const std::string& what, int error) const;

  const std::string folder_;
  std::uint64_t id_ = 0;
};

}  // namespace gradwire::server
