// `gradwirectl debug bundle`: what a bug report needs, gathered from this host and from a daemon.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/ctl/bundle/tar_gz.h"
#include "server/ctl/calls.h"

namespace gradwire::ctl {

struct Bundle {
  std::vector<ArchivedFile> files;   // the first one is README.txt, which says what is missing
  std::vector<std::string> missing;  // what, and why, in one line each
};

// Each call of the daemon has the target's deadline. Parts that cannot be had are missing; a daemon
// that does not answer costs one call. The access token is in no file, wherever it comes from.
Bundle Gather(const Target& target, absl::Time now);

// The file: all in one folder with that name.
std::string Archive(const Bundle& bundle, const std::string& name, absl::Time now);

// "gradwire-debug-20261124T221500Z": the folder in the file, and the file's name without its end.
std::string BundleName(absl::Time now);

// What is in it, for the one who sends it.
std::string Summary(const Bundle& bundle, const std::string& file);
std::string SummaryJson(const Bundle& bundle, const std::string& file);

}  // namespace gradwire::ctl
