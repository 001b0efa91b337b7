// What the executables exit with.
#pragma once

#include "absl/status/status.h"

namespace gradwire::server {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitUnavailable = 69;  // cannot listen; the daemon does not answer
inline constexpr int kExitCut = 75;          // stopped with work under way
inline constexpr int kExitConfig = 78;       // the configuration, or a file it names, is wrong

// For a daemon that could not start. kExitConfig: what the configuration, or a file that it names,
// says is wrong. kExitUnavailable: a later start may succeed without a change of either, because a
// file appears, an address becomes free, or the clock is set. That includes FailedPrecondition: of
// files, it says that a certificate is not valid at this time.
inline int StartExitCode(const absl::Status& why) {
  return absl::IsInvalidArgument(why) ? kExitConfig : kExitUnavailable;
}

}  // namespace gradwire::server
