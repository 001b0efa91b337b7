// A compressed archive in memory. zlib is in every image already, because gRPC needs it.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace gradwire::ctl {

// `path` has at most 99 bytes, letters, digits, '.', '-', '_' and '/' of this program's own.
struct ArchivedFile {
  std::string path;
  std::string text;
};

// All files in one folder, as a tar file (ustar) in gzip's format.
std::string TarGz(const std::string& folder, const std::vector<ArchivedFile>& files,
                  absl::Time now);

}  // namespace gradwire::ctl
